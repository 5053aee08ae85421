package volumes

import (
	"os"
	"strings"
	"testing"
)

// A LUN that was mapped by command shows the volume that was mapped, not another one that has its name by now.
func TestAMapIsOfTheVolumeThatItWasMadeFor(t *testing.T) {
	with := func(file string) string { return "  - {name: v, path: " + file + "}\n" }
	d := prepare(t, with("one.img"))
	d.file("one.img", 1<<20, '1')
	d.file("two.img", 1<<20, '2')
	mapped := func(what string, want bool) {
		t.Helper()
		if is := d.volumes()["v"].LUN != nil; is != want {
			t.Errorf("%s: mapped is %v", what, is)
		}
	}
	d.start()
	d.must("target", "map", target, "3", "v")
	mapped("as it was made", true)
	d.kill()
	d.start()
	mapped("after a restart", true)
	d.kill()
	d.configure(with("two.img"))
	d.start()
	mapped("another file", false)
	d.says("not served")
	d.must("volume", "create", "other", "1MiB", "--path", d.path("other.img")) // other changes go on
	d.kill()
	d.configure(with("one.img"))
	d.start()
	mapped("the file again", true)
	d.kill()
	d.configure(with("two.img"))
	d.start()
	d.must("target", "map", target, "4", "v")
	d.kill()
	d.start()
	mapped("mapped again", true)
	// A file that is made again by command is the same LUN.
	d.kill()
	if err := os.Remove(d.path("two.img")); err != nil {
		t.Fatal(err)
	}
	d.start()
	mapped("without its file", true)
	d.must("volume", "create", "v", "1MiB")
	mapped("made again", true)
	d.kill()
	d.start()
	mapped("made again, after a restart", true)
}

// A map of an earlier version says nothing of its volume; it is of the one that is there when this version starts.
func TestAnEarlierMapIsOfTheVolumeThatIsThere(t *testing.T) {
	d := prepare(t, "  - {name: v, path: one.img}\n")
	d.file("one.img", 1<<20, '1')
	if err := os.WriteFile(d.state+"/managed.yaml", []byte("maps: [{target: \""+target+"\", lun: 3, volume: v}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	if d.volumes()["v"].LUN == nil || !strings.Contains(d.managed(), "unit:") {
		t.Errorf("%+v\n%s", d.volumes()["v"], d.managed())
	}
}
