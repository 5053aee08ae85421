package volumes

import (
	"fmt"
	"path/filepath"
	"testing"
)

// A volume that is forgotten and keeps its file is the same disk when that is configured again: a host that was fenced there stays so.
func TestAVolumeThatIsForgottenWithoutItsDataKeepsWhoIsFenced(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	d.must("volume", "create", "x", "1MiB")
	d.must("target", "map", target, "7", "x")
	v, end := d.open(7)
	reserve(t, v)
	end()
	d.must("target", "unmap", target, "7")
	d.must("volume", "delete", "x")
	path := filepath.Join(d.state, "x.img")
	d.configure(fmt.Sprintf("  - {name: v, path: v.img}\n  - {name: y, path: %q}", path), "v", "y")
	d.must("reload")
	if n := d.registrations(1); n != 1 {
		t.Errorf("%d hosts are registered", n)
	}
}
