package volumes

import (
	"os"
	"strings"
	"testing"
)

// Earlier versions took a portal without a port, and listened at one by chance. A daemon that did that starts after an upgrade, says
// so, and the portal can be closed; no command opens another.
func TestAnEarlierPortalWithoutAPortIsServed(t *testing.T) {
	const portal = "127.0.0.2:"
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	if err := os.WriteFile(d.state+"/managed.yaml", []byte("portals: [{address: \""+portal+"\"}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	if l := d.portals(); len(l) != 2 {
		t.Errorf("portals %+v", l)
	}
	d.says(portal, "sluice portals remove")
	d.refused("host:port", "portals", "add", "127.0.0.3:")
	d.must("target", "create", target+"-other") // other changes go on
	d.must("portals", "remove", portal)
	if l := d.portals(); len(l) != 1 || strings.Contains(d.managed(), portal) {
		t.Errorf("portals %+v\n%s", l, d.managed())
	}
}
