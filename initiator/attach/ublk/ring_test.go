package ublk

import (
	"os"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/test/lib/need"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ringOf(t *testing.T, entries int) *ring {
	t.Helper()
	need.Ring(t)
	r, err := newRing(entries)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// The structures have the sizes and places that the kernel's headers give them.
func TestLayout(t *testing.T) {
	var e sqe
	var p params
	for what, got := range map[string][2]uintptr{
		"io_uring_sqe": {unsafe.Sizeof(e), 128}, "its command": {unsafe.Offsetof(e.cmd), 48}, "its user data": {unsafe.Offsetof(e.user), 32},
		"io_uring_params": {unsafe.Sizeof(p), 120}, "its sq_off": {unsafe.Offsetof(p.sq), 40}, "its cq_off": {unsafe.Offsetof(p.cq), 80},
		"io_uring_cqe": {unsafe.Sizeof(cqe{}), 16},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d, want %d", what, got[0], got[1])
		}
	}
}

// Entries complete with their user data, many times around the ring, and a full ring says so.
func TestRingNop(t *testing.T) {
	r := ringOf(t, 8)
	next, want := uint64(0), uint64(0)
	for round := range 100 {
		n := 0
		for ; ; n++ {
			e := r.next()
			if e == nil {
				break
			}
			e.opcode, e.user = opNop, next
			next++
		}
		if n != 8 {
			t.Fatalf("round %d: %d entries, want 8", round, n)
		}
		if err := r.enter(n); err != nil {
			t.Fatal(err)
		}
		for range n {
			c, ok := r.reap()
			if !ok || c.user != want || c.res != 0 {
				t.Fatalf("completion %+v, %v; want %d", c, ok, want)
			}
			want++
		}
		if _, ok := r.reap(); ok {
			t.Fatal("a completion too many")
		}
	}
}

// A thread that sleeps in the ring is woken by an eventfd, which is how a queue hears of answers.
func TestRingWake(t *testing.T) {
	r := ringOf(t, 4)
	efd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(efd)
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(page); err != nil {
			t.Error(err)
		}
	}()
	for range 50 {
		e := r.next()
		e.opcode, e.fd, e.addr, e.len, e.user = opRead, int32(efd), uint64(uintptr(unsafe.Pointer(&page[0]))), 8, 7
		if err := r.enter(0); err != nil {
			t.Fatal(err)
		}
		if c, ok := r.reap(); ok {
			t.Fatalf("%+v before anybody wrote", c)
		}
		go func() {
			one := [8]byte{}
			ne.PutUint64(one[:], 1)
			_, _ = unix.Write(efd, one[:])
		}()
		for {
			if err := r.enter(1); err != nil {
				t.Fatal(err)
			}
			if c, ok := r.reap(); ok {
				if c.user != 7 || c.res != 8 {
					t.Fatalf("%+v", c)
				}
				break
			}
		}
	}
}

// A command that no file understands is answered with an error, at the place where a driver's answer would be.
func TestRingCommand(t *testing.T) {
	r := ringOf(t, 4)
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e := r.next()
	e.opcode, e.fd, e.user = opURingCmd, int32(f.Fd()), 3
	if err := r.enter(1); err != nil {
		t.Fatal(err)
	}
	if c, ok := r.reap(); !ok || c.user != 3 {
		t.Fatalf("%+v, %v", c, ok)
	}
}

func TestParams(t *testing.T) {
	g := blockdev.Geometry{Size: 1 << 30, Logical: 512, Physical: 4096, OptimalIO: 1 << 20, DiscardUnit: 4096, ReadOnly: true}
	b := make([]byte, paramsSize)
	putParams(b, &g, false)
	for what, got := range map[string][2]uint64{
		"length": {uint64(ne.Uint32(b)), paramsSize}, "types": {uint64(ne.Uint32(b[4:])), 3}, "attributes": {uint64(ne.Uint32(b[8:])), 0xd},
		"shifts":   {uint64(b[12])<<24 | uint64(b[13])<<16 | uint64(b[14])<<8 | uint64(b[15]), 9<<24 | 12<<16 | 20<<8 | 12},
		"transfer": {uint64(ne.Uint32(b[16:])), maxIO >> 9}, "sectors": {ne.Uint64(b[24:]), 1 << 21},
		"discard granularity": {uint64(ne.Uint32(b[44:])), 4096}, "discard segments": {uint64(ne.Uint16(b[56:])), 1},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %#x, want %#x", what, got[0], got[1])
		}
	}
	g.DiscardUnit = 0
	putParams(b, &g, false)
	if ne.Uint32(b[4:]) != 1 {
		t.Error("discard is announced to a volume without it")
	}
}

func TestInfo(t *testing.T) {
	in := info{queues: 4, depth: 64, maxIO: maxIO, dev: 3, flags: flagNeedGetData, tag: ownTag(77)}
	b := make([]byte, infoSize)
	in.put(b)
	ne.PutUint32(b[16:], 77) // the driver's to fill in
	var out info
	out.parse(b)
	if in.pid = 77; out != in {
		t.Errorf("%+v became %+v", in, out)
	}
	if got := ioctl(cmdAdd, ctrlCmdSize); got != 0xc0207504 {
		t.Errorf("ADD_DEV is %#x", got)
	}
	if got := ioctl(cmdGetFeatures, ctrlCmdSize); got != 0x80207513 {
		t.Errorf("GET_FEATURES is %#x", got)
	}
}

func FuzzDescriptor(f *testing.F) {
	f.Add([]byte{1, 0x20, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(make([]byte, descSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < descSize {
			return
		}
		var d desc
		d.parse(b)
		r := blockdev.Request{}
		if !d.request(&r) {
			return
		}
		if r.Op == blockdev.Flush && (r.Offset != 0 || r.Length != 0) || r.Op != blockdev.Flush && r.Length != int64(d.sectors)<<9 {
			t.Fatalf("%+v became %+v", d, &r)
		}
		if r.FUA != (d.flags&flagFUA != 0) {
			t.Fatalf("FUA of %+v: %v", d, r.FUA)
		}
	})
}
