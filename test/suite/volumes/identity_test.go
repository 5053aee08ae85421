package volumes

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
)

// A volume's identity is its own: it stays over a restart, a move of its file with what lies beside it and a resize, and two
// daemons with the same configuration have different disks.
func TestAVolumeIsOneDiskAndStaysIt(t *testing.T) {
	conf := "  - {name: v, path: v.img}\n  - {name: ram, engine: mem, size: 1MiB}"
	d, other := prepare(t, conf, "v", "ram"), prepare(t, conf, "v", "ram")
	for _, x := range []*daemon{d, other} {
		x.sparse("v.img", 1<<20)
		x.start()
	}
	id, ram := d.identity(0), d.identity(1)
	if id == ram || id == other.identity(0) || ram == other.identity(1) {
		t.Errorf("two disks are one:\n%s\n%s\n%s\n%s", id, ram, other.identity(0), other.identity(1))
	}
	d.must("volume", "resize", "v", "2MiB")
	d.stop()
	d.start()
	if d.identity(0) != id || d.identity(1) != ram {
		t.Errorf("after a restart\n%s\nbefore\n%s", d.identity(0), id)
	}
	d.stop()
	for _, f := range []string{"v.img", "v.img.identity"} {
		if err := os.Rename(d.path(f), d.path(strings.Replace(f, "v.img", "moved.img", 1))); err != nil {
			t.Fatal(err)
		}
	}
	d.configure("  - {name: renamed, path: moved.img}\n  - {name: ram, engine: mem, size: 1MiB}", "renamed", "ram")
	d.start()
	if d.identity(0) != id {
		t.Errorf("after a move\n%s\nbefore\n%s", d.identity(0), id)
	}
}

// What the first versions made of these names and this serial number: the first bytes of SHA-256 of "sluice volume" or "sluice
// serial", NUL and the name or number.
const (
	earlierDisk   = "naa.36a266f7787b987c"
	earlierAway   = "naa.378a5710330a1a97"
	earlierSerial = "naa.3fe7ba55310facf4"
)

// earlier makes the state directory one that a version has served from which made identities of names.
func (d *daemon) earlier() {
	d.t.Helper()
	if err := os.MkdirAll(filepath.Join(d.state, "scsi"), 0o700); err != nil {
		d.t.Fatal(err)
	}
}

// Volumes that an earlier version served keep the identity that it made of their names and serial numbers; it is written
// down at the first start, and later volumes have none such.
func TestEarlierVolumesKeepTheirIdentity(t *testing.T) {
	d := prepare(t, "  - {name: disk, path: v.img}\n  - {name: away, path: nowhere/w.img}\n  - {name: s, path: s.img, serial: ABC}", "disk", "away", "s")
	d.sparse("v.img", 1<<20)
	d.sparse("s.img", 1<<20)
	d.earlier()
	d.start()
	id := d.identity(0)
	if !strings.Contains(id, earlierDisk) {
		t.Errorf("the identity is\n%s\nwant %s", id, earlierDisk)
	}
	s := d.identity(2)
	if !strings.Contains(s, "ABC") || !strings.Contains(s, earlierSerial) {
		t.Errorf("with a serial number the identity is\n%s", s)
	}
	// The name says nothing any more, and the one whose file was away has its own when it comes back.
	d.stop()
	if err := os.Mkdir(d.path("nowhere"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.sparse("nowhere/w.img", 1<<20)
	d.configure("  - {name: other, path: v.img}\n  - {name: away, path: nowhere/w.img}\n  - {name: disk, path: new.img}", "other", "away", "disk")
	d.sparse("new.img", 1<<20)
	d.start()
	if d.identity(0) != id {
		t.Errorf("under another name it is\n%s\nbefore\n%s", d.identity(0), id)
	}
	if got := d.identity(1); !strings.Contains(got, earlierAway) {
		t.Errorf("the one that was away is\n%s", got)
	}
	if got := d.identity(2); got == id || strings.Contains(got, earlierDisk) {
		t.Errorf("a new file of an old name is the old disk:\n%s", got)
	}
}

// A first start that failed has served nothing: where an earlier version served after it, volumes keep the identity that they had
// there.
func TestEarlierVolumesKeepTheirIdentityAfterAStartThatFailed(t *testing.T) {
	d := prepare(t, "  - {name: disk, path: v.img}", "disk")
	d.sparse("v.img", 1<<20)
	if err := os.MkdirAll(filepath.Join(d.state, "identity"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.state, "identity", ".first"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.earlier()
	d.start()
	if id := d.identity(0); !strings.Contains(id, earlierDisk) {
		t.Errorf("the identity is\n%s\nwant %s", id, earlierDisk)
	}
}

// Two volumes of one identity are not served, whether a copy of a file brings it or the configuration.
func TestTwoVolumesOfOneIdentityAreNotServed(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	id := d.identity(0)
	for _, f := range []string{"v.img", "v.img.identity"} {
		b, err := os.ReadFile(d.path(f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.path("copy"+f[1:]), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	both := "  - {name: v, path: v.img}\n  - {name: copy, path: copy.img}"
	d.configure(both, "v", "copy")
	d.refused("identity of volume v", "reload")
	d.stop()
	d.start()
	if d.identity(0) != id {
		t.Errorf("the first is\n%s\nbefore\n%s", d.identity(0), id)
	}
	if p := d.volumes()["copy"].Problem; !strings.Contains(p, "copy.img.identity") {
		t.Errorf("the copy's problem is %q", p)
	}
	d.notReady(1, 0x0403)
	// As the answer says.
	if err := os.Remove(d.path("copy.img.identity")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(d.state, "identity", "copy.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	d.must("reload")
	if c := d.capacity(1); c != 1<<20 || d.identity(1) == id {
		t.Errorf("the copy has %d bytes and is\n%s", c, d.identity(1))
	}
	for key, values := range map[string][2]string{"serial": {"S1", "S1"}, "naa": {`"naa.6001405aaaabbbbccccddddeeeeffff0"`, "6001405aaaabbbbccccddddeeeeffff0"}} {
		d.configure("  - {name: v, path: v.img, "+key+": "+values[0]+"}\n  - {name: copy, path: copy.img, "+key+": "+values[1]+"}", "v", "copy")
		d.refused("the same "+key, "reload")
	}
}

// Vendor, product, serial number and NAA can be those of another target's disk.
func TestAConfiguredIdentityIsShown(t *testing.T) {
	d := prepare(t, `  - {name: a, path: a.img, vendor: LIO-ORG, product: block0, serial: 5f3a-77, naa: "naa.60014055f3a77000aaaabbbbccccdddd"}
  - {name: b, path: b.img, naa: "0x5001405aaaabbbbc"}`, "a", "b")
	d.sparse("a.img", 1<<20)
	d.sparse("b.img", 1<<20)
	d.start()
	out, err := tool(t, "iscsi-inq", d.url(0))
	if err != nil || !strings.Contains(out, "LIO-ORG") || !strings.Contains(out, "block0") {
		t.Errorf("INQUIRY: %v\n%s", err, out)
	}
	if id := d.identity(0); !strings.Contains(id, "5f3a-77") || !strings.Contains(id, "naa.60014055f3a77000aaaabbbbccccdddd") {
		t.Errorf("identity\n%s", id)
	}
	if id := d.identity(1); !strings.Contains(id, "naa.5001405aaaabbbbc") {
		t.Errorf("identity\n%s", id)
	}
	for _, wrong := range []string{"naa: 123", "naa: 1001405aaaabbbbc", "naa: 5001405aaaabbbbcccccddddeeeeffff", "vendor: NINELONGS", "product: seventeen-letters", "serial: \"a\\tb\""} {
		d.configure("  - {name: a, path: a.img, "+wrong+"}", "a")
		d.refused(strings.SplitN(wrong, ":", 2)[0], "reload")
	}
}

// A later volume of a name has nothing of the one before it: neither its identity nor its reservations.
func TestALaterVolumeOfANameInheritsNothing(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}\n  - {name: ram, engine: mem, size: 1MiB}", "v", "ram")
	d.sparse("v.img", 1<<20)
	d.start()
	states := func() int {
		t.Helper()
		l, err := filepath.Glob(filepath.Join(d.state, "scsi", "lu-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(l)
	}
	before := states()
	make1 := func() string {
		d.must("volume", "create", "x", "1MiB")
		d.must("target", "map", target, "7", "x")
		return d.identity(7)
	}
	id := make1()
	v, end := d.open(7)
	reserve(t, v)
	end()
	d.must("target", "unmap", target, "7")
	d.must("volume", "delete", "x", "--data", "--yes")
	if n := states(); n != before {
		t.Errorf("%d state files, %d before", n, before)
	}
	if got := make1(); got == id {
		t.Errorf("the later volume is the earlier disk:\n%s", got)
	}
	if n := d.registrations(7); n != 0 {
		t.Errorf("%d registrations of the earlier volume", n)
	}
	// The same for one of memory, and over a restart.
	ram := d.identity(1)
	d.configure("  - {name: v, path: v.img}", "v")
	d.must("reload")
	d.configure("  - {name: v, path: v.img}\n  - {name: ram, engine: mem, size: 1MiB}", "v", "ram")
	d.must("reload")
	again := d.identity(1)
	if again == ram {
		t.Error("a volume of memory came back")
	}
	d.stop()
	d.configure("  - {name: v, path: v.img}", "v")
	d.start()
	d.stop()
	d.configure("  - {name: v, path: v.img}\n  - {name: ram, engine: mem, size: 1MiB}", "v", "ram")
	d.start()
	if d.identity(1) == again {
		t.Error("a volume of memory came back")
	}
}

// A configured identity that a later volume takes over brings no reservations along.
func TestAConfiguredIdentityBringsNoState(t *testing.T) {
	const naa = `, serial: S1, naa: "5001405aaaabbbbc"}`
	d := prepare(t, "  - {name: v, path: v.img"+naa, "v")
	d.sparse("v.img", 1<<20)
	d.start()
	v, end := d.open(0)
	reserve(t, v)
	end()
	d.stop()
	d.start()
	if n := d.registrations(0); n != 1 {
		t.Fatalf("%d registrations after a restart", n)
	}
	d.stop()
	for _, f := range []string{"v.img", "v.img.identity"} {
		if err := os.Remove(d.path(f)); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	d.must("volume", "create", "v", "1MiB")
	if n := d.registrations(0); n != 0 {
		t.Errorf("%d registrations of the earlier volume", n)
	}
}

// raw runs a command until it gets through: unit attentions lie before it.
func raw(t *testing.T, v *block.Volume, cdb, data []byte, in bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		_, err := v.Raw(ctx, cdb, data, in)
		var s *block.SenseError
		if errors.As(err, &s) && s.Key == 6 {
			continue
		}
		return err
	}
}

// reserve registers a key with APTPL and reserves the unit (SPC-4 section 5.13).
func reserve(t *testing.T, v *block.Volume) {
	t.Helper()
	register, hold := make([]byte, 24), make([]byte, 24)
	register[15], register[20], hold[7], hold[20] = 1, 1, 1, 1
	for _, c := range []struct{ cdb, list []byte }{{[]byte{0x5F, 6, 0, 0, 0, 0, 0, 0, 24, 0}, register}, {[]byte{0x5F, 1, 3, 0, 0, 0, 0, 0, 24, 0}, hold}} {
		if err := raw(t, v, c.cdb, c.list, false); err != nil {
			t.Fatalf("% x: %v", c.cdb, err)
		}
	}
}

// registrations is how many keys the unit has (PERSISTENT RESERVE IN, READ KEYS).
func (d *daemon) registrations(lun int) int {
	d.t.Helper()
	v, end := d.open(lun)
	defer end()
	keys := make([]byte, 256)
	if err := raw(d.t, v, []byte{0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0}, keys, true); err != nil {
		d.t.Fatal(err)
	}
	return int(binary.BigEndian.Uint32(keys[4:]) / 8)
}
