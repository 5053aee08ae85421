package volumes

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A creation that is refused, for whatever reason, leaves every file there was as it was.
func TestARefusedCreationLeavesTheOperatorsFile(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	mine := d.file("mine.img", 4096, 'm')
	beside := d.file("new.img.redo", 4096, 'r')
	d.start()
	same := func(f string, b byte) {
		t.Helper()
		if got, err := os.ReadFile(f); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{b}, 4096)) {
			t.Fatalf("%s is not as it was: %v", f, err)
		}
	}
	d.refused("there already", "volume", "create", "a", "1MiB", "--path", mine)
	d.refused("there already", "volume", "create", "a", "4096", "--path", mine)
	d.refused("same path", "volume", "create", "a", "1MiB", "--path", d.path("v.img"))
	d.refused("", "volume", "create", "b", "1000", "--path", d.path("odd.img"))
	d.refused("", "volume", "create", "a/b", "1MiB", "--path", d.path("odd.img"))
	d.refused("new.img.redo", "volume", "create", "c", "1MiB", "--path", d.path("new.img"))
	d.refused("", "volume", "create", "d", "1MiB", "--path", "/proc/nothing.img")
	d.refused("", "volume", "create", "e", "--clone", "v", "--path", mine)
	same(mine, 'm')
	same(beside, 'r')
	for _, f := range []string{"odd.img", "new.img"} {
		if _, err := os.Stat(d.path(f)); err == nil {
			t.Errorf("%s was made", f)
		}
	}
	if n := len(d.volumes()); n != 1 {
		t.Errorf("%d volumes", n)
	}
}

// "volume delete --data" deletes the file that the volume has open, and no other.
func TestDeleteTakesTheVolumesOwnFileOnly(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	for _, n := range []string{"a", "b", "c"} {
		d.must("volume", "create", n, "1MiB", "--path", d.path(n+".img"))
	}
	// Another file has come to the place of b's.
	if err := os.Rename(d.path("b.img"), d.path("moved.img")); err != nil {
		t.Fatal(err)
	}
	d.file("b.img", 4096, 'b')
	d.refused("not the file any more", "volume", "delete", "b", "--data", "--yes")
	if d.size(d.path("b.img")) != 4096 || len(d.volumes()) != 4 {
		t.Error("b has gone")
	}
	d.must("volume", "delete", "b")
	d.must("volume", "delete", "c")
	out := d.must("volume", "delete", "a", "--data", "--yes")
	if !strings.Contains(out, d.path("a.img")+" deleted") {
		t.Errorf("the answer is %q", out)
	}
	left, err := filepath.Glob(d.path("*.img"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.ReplaceAll(strings.Join(left, " "), d.dir+"/", ""); got != "b.img c.img moved.img v.img" {
		t.Errorf("files left: %s", got)
	}
}

// Names that YAML would not give back as they are, or at all, are refused; a daemon starts with whatever was taken.
func TestWhatIsWrittenDownIsReadBackTheSame(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	taken := map[string]bool{}
	for _, n := range []string{"a\rb", "?", "? a", "a\x01b", "a\x7fb", "a\u0085b", "a\u2028b", "-", "~", "null", "true", "0x10", "1e3", "a: b", "#a", "a#b", "'", `"`, "&a", "*a", "!a", "%a", "@a", "`a", "{a}", "[a]", "a,b", "|", ">", "\ufeff", "<<", ".", "..", "a\xffb"} {
		if _, code := d.sluice("volume", "create", "--path", d.path("x.img"), "--", n, "1MiB"); code == 0 {
			taken[n] = true
			if _, there := d.volumes()[n]; !there {
				t.Errorf("%q was taken and is not listed", n)
			}
			if err := os.Rename(d.path("x.img"), d.path("was-x.img")); err != nil {
				t.Fatal(err)
			}
			d.must("volume", "delete", "--", n)
		}
		if _, code := d.sluice("target", "create", "--", target+":"+n); code == 0 {
			taken[target+":"+n] = true
		}
	}
	if taken["a\rb"] || taken["a\x01b"] || taken["a\x7fb"] || taken["a\xffb"] {
		t.Errorf("names with control characters were taken: %v", taken)
	}
	before := d.must("target", "list")
	d.stop()
	d.start()
	if after := d.must("target", "list"); after != before {
		t.Errorf("after a restart\n%s\nbefore\n%s", after, before)
	}
}
