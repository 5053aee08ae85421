package scsi

import (
	"errors"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

func TestReadAndWriteInEveryLength(t *testing.T) {
	for _, async := range []bool{false, true} {
		r := newRig(t)
		r.disk.async = async
		for _, blocks := range []int{1, 8, 511, 512, 513, 2048, 4096} {
			want := pattern(blocks*512, byte(blocks))
			run := func(hexes string, out []byte, in int) result {
				c, h := r.start(r.n, cdb(hexes), out, in, func(c *Command, h *host) {
					h.async = async
					put64(2, 3)(c.CDB)
					put32(10, uint32(blocks))(c.CDB)
				})
				h.wait(t)
				return result{c, h.in}
			}
			if res := run("8a 00 0000000000000000 00000000 00 00", want, 0); res.Status != StatusGood || res.TransferOut != int64(len(want)) {
				t.Fatalf("write: %v, %d", res.Status, res.TransferOut)
			}
			sameBytes(t, "medium", r.disk.data[3*512:3*512+len(want)], want)
			res := run("88 00 0000000000000000 00000000 00 00", nil, len(want))
			if res.Status != StatusGood || res.TransferIn != int64(len(want)) {
				t.Fatalf("read: %v, %d", res.Status, res.TransferIn)
			}
			sameBytes(t, "read", res.in, want)
		}
	}
}

func TestResiduals(t *testing.T) {
	r := newRig(t)
	r.good(pattern(1024, 1), 0, "2a 00 00000000 00 0002 00")
	// Two blocks, the initiator takes 700 bytes: it gets them, and the counts tell of 1024.
	res := r.run(r.n, nil, 700, "28 00 00000000 00 0002 00")
	if res.Status != StatusGood || res.TransferIn != 1024 {
		t.Fatalf("short read: %v, %d", res.Status, res.TransferIn)
	}
	sameBytes(t, "short read", res.in, pattern(1024, 1)[:700])
	// Two blocks, the initiator gives one: the first is written.
	res = r.run(r.n, pattern(512, 9), 0, "2a 00 00000000 00 0002 00")
	if res.Status != StatusGood || res.TransferOut != 1024 {
		t.Fatalf("short write: %v, %d", res.Status, res.TransferOut)
	}
	sameBytes(t, "first block", r.disk.data[:512], pattern(512, 9))
	sameBytes(t, "second block", r.disk.data[512:1024], pattern(1024, 1)[512:])
	// Nothing expected at all.
	if res = r.run(r.n, nil, 0, "28 00 00000000 00 0001 00"); res.Status != StatusGood || res.TransferIn != 512 {
		t.Fatalf("no buffer: %v, %d", res.Status, res.TransferIn)
	}
	if res = r.run(r.n, nil, 8192, "28 00 00000000 00 0001 00"); res.Status != StatusGood || res.TransferIn != 512 {
		t.Fatalf("long buffer: %v, %d", res.Status, res.TransferIn)
	}
}

func TestRangeIsChecked(t *testing.T) {
	r := newRig(t) // 16384 blocks
	r.sense(IllegalRequest, ASCLBAOutOfRange, nil, 512, "28 00 00004000 00 0001 00")
	r.sense(IllegalRequest, ASCLBAOutOfRange, nil, 1024, "28 00 00003fff 00 0002 00")
	r.sense(IllegalRequest, ASCLBAOutOfRange, nil, 512, "88 00 ffffffffffffffff 00000001 00 00")
	r.sense(IllegalRequest, ASCLBAOutOfRange, nil, 512, "88 00 7fffffffffffffff 00000002 00 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 512, "28 20 00000000 00 0001 00") // RDPROTECT
	r.sense(IllegalRequest, ASCInvalidOpcode, nil, 512, "ff 00 00000000 00 0001 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 512, "9e 1f 00000000 00 0001 00 00000000 0000")
	if n := r.lu.CheckConditions(); n[IllegalRequest] != 7 {
		t.Errorf("check conditions by sense key: %v", n)
	}
	if l := r.lu.Latency(); l.Read.Count()+l.Other.Count() < 7 || l.Write.Count() != 0 || r.lu.InProgress() != 0 {
		t.Errorf("latencies %+v", l)
	}
}

func TestDeviceErrorsBecomeSense(t *testing.T) {
	for _, tc := range []struct {
		err error
		key SenseKey
		asc ASC
	}{
		{syscall.EIO, MediumError, ASCWriteError},
		{blockdev.ErrMedium, MediumError, ASCWriteError},
		{syscall.ENOSPC, DataProtect, ASCSpaceAllocationFailed},
		{blockdev.ErrNoSpace, DataProtect, ASCSpaceAllocationFailed},
		{blockdev.ErrReadOnly, DataProtect, ASCWriteProtected},
		{blockdev.ErrClosed, NotReady, ASCNotReady},
	} {
		r := newRig(t)
		r.disk.fail = func(*blockdev.Request) error { return tc.err }
		r.sense(tc.key, tc.asc, pattern(512, 0), 0, "2a 00 00000000 00 0001 00")
	}
	r := newRig(t)
	r.disk.fail = func(q *blockdev.Request) error {
		if q.Offset >= 1<<20 {
			return syscall.EIO
		}
		return nil
	}
	res := r.sense(MediumError, ASCReadError, nil, 2<<20, "88 00 0000000000000000 00001000 00 00")
	if got := be32(res.Sense[3:]); res.Sense[0]&0x80 == 0 || got != 2048 {
		t.Errorf("information field %d", got)
	}
}

func TestMoveErrorEndsTheCommand(t *testing.T) {
	r := newRig(t)
	c, h := r.start(r.n, cdb("88 00 0000000000000000 00001000 00 00"), nil, 2<<20, func(_ *Command, h *host) { h.failIn = errors.New("gone") })
	h.wait(t)
	if got := (result{c, nil}); got.key() != AbortedCommand || got.asc() != ASCDataPhaseError {
		t.Errorf("%X/%04X", got.key(), got.asc())
	}
}

func TestTransferLivesOnLittleMemory(t *testing.T) {
	r := newRig(t)
	r.n = r.nexus(2, func(o *NexusOptions) { o.Memory = r.pool.Quota(8 << 10) })
	want := pattern(2<<20, 5)
	r.good(want, 0, "8a 00 0000000000000000 00001000 00 00")
	sameBytes(t, "read", r.good(nil, 2<<20, "88 00 0000000000000000 00001000 00 00"), want)
}

func TestTransferWaitsForMemory(t *testing.T) {
	r := newRig(t)
	quota := r.pool.Quota(4 << 10)
	r.n = r.nexus(2, func(o *NexusOptions) { o.Memory = quota })
	b, err := quota.Get(4096)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []*host
	for range 4 {
		_, h := r.start(r.n, cdb("28 00 00000000 00 0010 00"), nil, 8192)
		hosts = append(hosts, h)
	}
	for _, h := range hosts {
		select {
		case <-h.done:
			t.Fatal("ended without memory")
		default:
		}
	}
	b.Release()
	for _, h := range hosts {
		h.wait(t)
	}
}

func TestNoMemoryIsLeftBehind(t *testing.T) {
	r := newRig(t)
	var quota *mem.Quota
	r.n = r.nexus(2, func(o *NexusOptions) { quota = o.Memory })
	r.good(pattern(1<<20, 5), 0, "8a 00 0000000000000000 00000800 00 00")
	r.good(nil, 96, "12 00 00 00 60 00")
	if held := quota.Held(); held != 0 {
		t.Errorf("%d bytes held", held)
	}
}

// TestNoAllocationPerTransfer: READ and WRITE allocate nothing once a Command has been used.
func TestNoAllocationPerTransfer(t *testing.T) {
	r := newRig(t)
	m := &quiet{}
	c := &Command{}
	run := func(cdb []byte, in, out int64) {
		c.Reset()
		c.CDB, c.ExpectIn, c.ExpectOut, c.Mover = cdb, in, out, m
		r.n.Execute(c)
		if !m.done || c.Status != StatusGood {
			t.Fatal(c.Status)
		}
		m.done = false
	}
	r.disk.log = make([]blockdev.Op, 0, 1<<20)
	read, write := cdb("28 00 00000000 00 0008 00"), cdb("2a 00 00000000 00 0400 00")
	if n := testing.AllocsPerRun(200, func() { run(read, 4096, 0); run(write, 0, 512<<10) }); n > 0 {
		// The test's own disk keeps a map; it does not grow here.
		t.Errorf("%v allocations", n)
	}
}

type quiet struct{ done bool }

func (q *quiet) DataIn(c *Command, _ int, _ []mem.Span)  { c.Moved(nil) }
func (q *quiet) DataOut(c *Command, _ int, _ []mem.Span) { c.Moved(nil) }
func (q *quiet) Complete(*Command)                       { q.done = true }
