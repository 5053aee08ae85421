package scsi

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

func TestEveryRowIsCoherent(t *testing.T) {
	if _, err := buildTable(rows()); err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := range table {
		if table[i].row != nil {
			n++
		}
		n += len(table[i].sas)
	}
	if n != len(rows()) {
		t.Errorf("%d commands in the table, %d rows", n, len(rows()))
	}
}

func TestIncoherentRowsAreRefused(t *testing.T) {
	ok := func() row {
		return row{op: OpRead10, sa: noSA, name: "READ(10)", length: 10, usage: "28 18 ff ff ff ff 1f ff ff 00",
			class: conflictReads, recommended: 30, begin: beginTUR}
	}
	for what, change := range map[string]func(*row){
		"usage has 9 bytes": func(r *row) { r.usage = r.usage[:26] },
		"group code":        func(r *row) { r.length, r.usage = 12, r.usage+"0000" },
		"operation code":    func(r *row) { r.usage = "2a" + r.usage[2:] },
		"incomplete":        func(r *row) { r.class = 0 },
		"writes the medium": func(r *row) { r.traits = mutates },
		"not in standby":    func(r *row) { r.traits = inUnavail },
		"usage: ":           func(r *row) { r.usage = "zz" },
	} {
		r := ok()
		change(&r)
		if _, err := buildTable([]*row{&r}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("want %q, got %v", what, err)
		}
	}
	a, b := ok(), ok()
	if _, err := buildTable([]*row{&a, &b}); err == nil {
		t.Error("two rows for one opcode were taken")
	}
}

// SPC-4 section 6.35: every command that is reported has usage data of its length, and timeouts when asked for.
func TestReportSupportedOperationCodes(t *testing.T) {
	r := newRig(t, func(o *LUOptions) { o.Removable, o.AllowFormat, o.AllowSanitize = true, true, true })
	all := r.good(nil, 16<<10, "a3 0c 80 00 0000 00004000 00 00")
	n := int(be32(all))
	seen := 0
	for off := 4; off < 4+n; off += 20 {
		d := all[off : off+20]
		if d[5]&2 == 0 || be16(d[8:]) != 10 || be32(d[16:]) == 0 {
			t.Fatalf("%X: no timeouts", d[0])
		}
		opt := byte(0x81)
		if d[5]&1 != 0 {
			opt = 0x82
		}
		one := r.good(nil, 256, "a3 0c 00 00 0000 00000100 00 00", func(b []byte) {
			b[2], b[3] = opt, d[0]
			binary.BigEndian.PutUint16(b[4:], be16(d[2:]))
		})
		if one[1]&7 != 3 || be16(one[2:]) != be16(d[6:]) || one[4] != d[0] {
			t.Errorf("%X/%X: support %X, length %d", d[0], be16(d[2:]), one[1], be16(one[2:]))
		}
		seen++
	}
	if want := len(rows()) - 2; seen != want { // WRITE ATOMIC is not for this device, WRITE SAME(32) not in the list
		t.Errorf("%d commands reported, want %d", seen, want)
	}
	if got := r.good(nil, 256, "a3 0c 01 c1 0000 00000100 00 00"); got[1]&7 != 1 {
		t.Error("an unknown opcode is reported as supported")
	}
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 256, "a3 0c 01 a3 0000 00000100 00 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 256, "a3 0c 02 28 0000 00000100 00 00")
}

func TestReservedBitsAreRefusedWithAFieldPointer(t *testing.T) {
	r := newRig(t)
	res := r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 0, "00 00 00 40 00 00")
	if ks := res.Sense[15:18]; ks[0] != 0x80|0x40|0x08|6 || be16(ks[1:]) != 3 {
		t.Errorf("sense key specific % X", ks)
	}
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 0, "00 00 00 00 00 04") // NACA
}

// everything is a device that can do all that a logical unit knows to ask for.
type everything struct{ *disk }

func (everything) Space() (blockdev.Space, error) {
	return blockdev.Space{Used: 32 << 10, Available: 32 << 10}, nil
}

func (everything) CopyRange(blockdev.Device, int64, int64, int64) (int64, error) {
	return 0, blockdev.ErrUnsupported
}

// FuzzCommand executes any CDB with any data-buffer shape: it must end, with a status, and move no more than expected.
func FuzzCommand(f *testing.F) {
	for i := range table {
		seed := []byte{byte(i)}
		f.Add(append(seed, make([]byte, 15)...), []byte{1, 2, 3}, uint16(256), uint8(0))
		for _, r := range append(table[i].sas, table[i].row) {
			if r != nil {
				f.Add(append([]byte(nil), r.mask...), make([]byte, 64), uint16(512), uint8(1))
				zero := make([]byte, r.length)
				zero[0] = byte(r.op)
				if r.sa != noSA {
					zero[1] = byte(r.sa)
				}
				f.Add(zero, make([]byte, 512), uint16(4096), uint8(2))
			}
		}
	}
	pool := mem.NewPool(256 << 20)
	f.Fuzz(func(t *testing.T, cdb, out []byte, in uint16, shape uint8) {
		if len(cdb) == 0 || len(cdb) > MaxCDB {
			return
		}
		d := newDisk(64<<10, 512)
		d.geo.AtomicUnit, d.geo.AtomicMax = 1024, 16<<10
		r := rigIn(t, pool, d, func(o *LUOptions) {
			o.Device = everything{d}
			o.Removable, o.AllowFormat, o.AllowSanitize = shape&8 != 0, true, true
		})
		switch shape & 3 {
		case 1:
			out = nil
		case 2:
			in = 0
		}
		c, h := r.start(r.n, cdb, out, int(in), func(c *Command, h *host) {
			c.Attr = Attr(shape >> 4 % 5)
			h.async = shape&4 != 0
		})
		h.wait(t)
		switch c.Status {
		case StatusGood, StatusConditionMet, StatusReservationConflict:
		case StatusCheckCondition:
			if len(c.Sense) < 8 || len(c.Sense) > senseLen {
				t.Errorf("sense data of %d bytes", len(c.Sense))
			}
		default:
			t.Errorf("status %v", c.Status)
		}
		done := make(chan struct{})
		r.n.Close(func() { close(done) })
		<-done
		r.lu.Close()
		r.n.opt.Memory.Close()
		if n := pool.Used(); n != 0 {
			t.Errorf("%d bytes of memory are still out", n)
		}
	})
}
