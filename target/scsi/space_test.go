package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
)

// room is a thin disk with a file system below it that may be nearly full.
type room struct {
	*disk
	space blockdev.Space
	err   error
}

func (d *room) Space() (blockdev.Space, error) { return d.space, d.err }

// SBC-3 section 4.7.3.7: initiators are told once when the room left falls below the threshold, and again when it does so
// after there was room in between; mode pages say how, the log page how much there is.
func TestThinThreshold(t *testing.T) {
	d := &room{disk: newDisk(8<<30>>10, 512)} // an 8 MiB disk
	d.geo.Size = 8 << 30
	d.space = blockdev.Space{Used: 1 << 30, Available: 100 << 30}
	r := rigOn(t, d.disk, func(o *LUOptions) { o.Device, o.ThinThreshold = d, 2<<30 })
	other := r.nexus(2)
	attention := func(n *Nexus) ASC {
		res := r.run(n, nil, 0, "00 00 00 00 00 00")
		if res.Status == StatusGood {
			return ASCNone
		}
		return res.asc()
	}
	expect := func(what string, want ASC) {
		t.Helper()
		r.lu.CheckSpace()
		for _, n := range []*Nexus{r.n, other} {
			if got := attention(n); got != want {
				t.Errorf("%s: %04X, want %04X", what, got, want)
			}
		}
	}
	expect("room enough", ASCNone)
	d.space.Available = 2<<30 - 1
	expect("below", ASCThinThreshold)
	expect("still below", ASCNone)
	d.space.Available = 3 << 30
	expect("room again", ASCNone)
	d.space = blockdev.Space{Used: 7 << 30, Available: 3 << 29}
	expect("what is unwritten fits", ASCNone)
	d.space = blockdev.Space{Used: 6 << 30, Available: 3 << 29}
	expect("below again", ASCThinThreshold)
	d.err = errors.New("statfs")
	expect("nobody knows", ASCNone)

	// Parameters: available, shared with others, and used, this unit's own; in MiB.
	d.err = nil
	b := r.good(nil, 64, "4d 00 4c 00 00 00 00 00 40 00")
	if be16(b[4:]) != 1 || be32(b[8:]) != 3<<29>>20 || b[12] != 2 || be16(b[16:]) != 2 || be32(b[20:]) != 6<<10 || b[24] != 1 {
		t.Errorf("log page % X", b[:28])
	}
	if p := r.vpd(0xB2); p[0] != 20-9 {
		t.Errorf("threshold exponent %d", p[0])
	}
	// Mode page 1Ch/02h: enabled, soft, available, 2048 MiB; 01h: LBPERE.
	b = r.good(nil, 64, "1a 08 1c 02 40 00")
	if b[4]&0x7F != 0x5C || b[5] != 2 || b[20] != 0x80 || b[21] != 1 || be32(b[24:]) != 2048 {
		t.Errorf("provisioning page % X", b[:28])
	}
	b = r.good(nil, 64, "1a 08 01 00 40 00")
	if b[4+7] != 0x80 {
		t.Errorf("error recovery page % X", b[:16])
	}

	// SITUA: one initiator is enough. LBPERE off: nobody is told.
	cross := func() (told int) {
		d.space.Available = 3 << 30
		r.lu.CheckSpace()
		d.space.Available = 1 << 30
		r.lu.CheckSpace()
		for _, n := range []*Nexus{r.n, other} {
			for asc := attention(n); asc != ASCNone; asc = attention(n) {
				if asc == ASCThinThreshold {
					told++
				}
			}
		}
		return told
	}
	sel := append([]byte{0, 0, 0, 0, 0x5C, 2, 0, 20, 1}, make([]byte, 19)...)
	sel[4+16], sel[4+17] = 0x80, 1
	binary.BigEndian.PutUint32(sel[4+20:], 2048)
	r.good(sel, 0, "15 10 00 00 1c 00")
	if n := cross(); n != 1 {
		t.Errorf("SITUA: %d were told", n)
	}
	r.good(append([]byte{0, 0, 0, 0, 0x01, 10, 0xC0}, make([]byte, 9)...), 0, "15 10 00 00 10 00")
	if n := cross(); n != 0 {
		t.Errorf("without LBPERE %d were told", n)
	}
}

// SBC-3 section 4.7.3.6: what a thin unit has no room for fails with DATA PROTECT, and what is there stays readable.
func TestOutOfSpace(t *testing.T) {
	r := newRig(t)
	data := pattern(512, 1)
	r.good(data, 0, "2a 00 00000000 00 0001 00")
	r.disk.fail = func(q *blockdev.Request) error {
		if q.Op != blockdev.Read {
			return blockdev.ErrNoSpace
		}
		return nil
	}
	for _, c := range []string{"2a 00 00000001 00 0001 00", "2e 00 00000001 00 0001 00", "41 00 00000001 00 0001 00", "8b 00 0000000000000001 00000001 00 00"} {
		r.sense(DataProtect, ASCSpaceAllocationFailed, data, 0, c)
	}
	sameBytes(t, "what was there", r.good(nil, 512, "28 00 00000000 00 0001 00"), data)
}

// copier is a disk that copies by itself, as far as it is told to.
type copier struct {
	*disk
	able  int64 // bytes of one call, at most
	err   error
	calls int
}

func (d *copier) CopyRange(to blockdev.Device, from, at, n int64) (int64, error) {
	d.calls++
	o := to.(*copier)
	k := min(n, d.able)
	copy(o.data[at:at+k], d.data[from:from+k])
	if k < n {
		return k, d.err
	}
	return k, nil
}

// EXTENDED COPY goes by the devices where they can; what they leave goes through memory.
func TestExtendedCopyByTheDevices(t *testing.T) {
	for name, c := range map[string]struct {
		able int64
		err  error
		want ASC
	}{
		"all": {able: 64 << 20}, "a part": {able: 100 << 10, err: blockdev.ErrUnsupported}, "none": {err: blockdev.ErrUnsupported},
		"silence": {able: 1 << 20}, "no room": {able: 1 << 20, err: blockdev.ErrNoSpace, want: ASCSpaceAllocationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			d := &copier{disk: newDisk(8<<20, 512), able: c.able, err: c.err}
			r := rigOn(t, d.disk, func(o *LUOptions) { o.Device = d })
			want := pattern(3<<20, 7)
			copy(d.data, want)
			res := r.xcopy(0, 0x2000, 0x1800, r.lu.naa[:])
			if d.calls == 0 {
				t.Error("the device was not asked")
			}
			if c.want != 0 {
				if res.key() != CopyAborted || res.asc() != c.want {
					t.Errorf("%X/%04X", res.key(), res.asc())
				}
				return
			}
			if res.Status != StatusGood || !bytes.Equal(d.data[0x2000*512:0x2000*512+len(want)], want) {
				t.Errorf("%v %X/%04X, or the copy differs", res.Status, res.key(), res.asc())
			}
			// Overlapping ranges are nothing for the device.
			calls := d.calls
			if res := r.xcopy(0, 1, 0x1800, r.lu.naa[:]); res.Status != StatusGood || d.calls != calls {
				t.Errorf("%v, %d calls", res.Status, d.calls-calls)
			}
		})
	}
}

// With the cache off what a device copied is flushed before the status.
func TestExtendedCopyIsDurableWithoutACache(t *testing.T) {
	d := &copier{disk: newDisk(8<<20, 512), able: 64 << 20}
	r := rigOn(t, d.disk, func(o *LUOptions) { o.Device = d })
	r.good(append([]byte{0, 0, 0, 0, 0x08, 18, 0}, make([]byte, 17)...), 0, "15 10 00 00 18 00")
	d.log = nil
	if res := r.xcopy(0, 0x2000, 0x1800, r.lu.naa[:]); res.Status != StatusGood || len(d.log) != 1 || d.log[0] != blockdev.Flush {
		t.Errorf("%v, %v", res.Status, d.log)
	}
}

// WRITE ATOMIC(16) is offered where the device has it, with its limits, and is one request that says so.
func TestWriteAtomic(t *testing.T) {
	r := newRig(t)
	r.sense(IllegalRequest, ASCInvalidOpcode, make([]byte, 512), 0, "9c 00 0000000000000000 0000 0001 00 00")
	if b := r.vpd(0xB0); !bytes.Equal(b[40:60], make([]byte, 20)) {
		t.Errorf("limits % X", b[40:])
	}
	d := newDisk(8<<20, 512)
	d.geo.AtomicUnit, d.geo.AtomicMax = 1024, 16<<10
	r = rigOn(t, d)
	if b := r.vpd(0xB0); be32(b[40:]) != 32 || be32(b[44:]) != 2 || be32(b[48:]) != 2 {
		t.Errorf("limits % X", b[40:])
	}
	if b := r.good(nil, 64, "a3 0c 01 9c 0000 00000040 00 00"); b[1]&7 != 3 {
		t.Error("WRITE ATOMIC(16) is not reported")
	}
	var seen []blockdev.Request
	d.fail = func(q *blockdev.Request) error {
		seen = append(seen, *q)
		return nil
	}
	data := pattern(16<<10, 3)
	r.good(data, 0, "9c 08 0000000000000004 0000 0020 00 00")
	if len(seen) != 1 || seen[0].Op != blockdev.Write || !seen[0].Atomic || !seen[0].FUA || seen[0].Length != 16<<10 {
		t.Fatalf("%d requests, %+v", len(seen), seen[0])
	}
	sameBytes(t, "medium", d.data[4*512:4*512+len(data)], data)
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, data[:512], 0, "9c 00 0000000000000004 0000 0001 00 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, data[:1024], 0, "9c 00 0000000000000005 0000 0002 00 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, make([]byte, 17<<10), 0, "9c 00 0000000000000004 0000 0022 00 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, data[:512], 0, "9c 00 0000000000000004 0000 0002 00 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, data[:1024], 0, "9c 00 0000000000000004 0008 0002 00 00")
	r.good(nil, 0, "9c 00 0000000000000004 0000 0000 00 00")
	// A command of another kind that uses the same task says nothing of the sort.
	c, h := r.start(r.n, cdb("9c 00 0000000000000004 0000 0002 00 00"), data[:1024], 0)
	h.wait(t)
	c.Reset()
	c.CDB, c.ExpectOut, c.Mover, c.Attr = cdb("2a 00 00000000 00 0002 00"), 1024, &host{t: t, out: data[:1024], done: make(chan struct{})}, Simple
	r.n.Execute(c)
	if last := seen[len(seen)-1]; last.Atomic || last.Op != blockdev.Write {
		t.Errorf("%+v", last)
	}
}
