package nbd

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
)

// An unmapped range is zeroes only where the target says that it reads so (LBPRZ): a copy that skips it would be wrong otherwise.
func TestAHoleIsZeroOnlyWhereTheTargetSaysSo(t *testing.T) {
	for zero, want := range map[bool]uint32{false: stateHole, true: stateHole | stateZero} {
		v := newRAM(t, 1<<20)
		v.hole, v.zero = true, zero
		c := serve(t, v, Options{})()
		hello(t, c)
		request(t, c, cmdBlockStatus, 0, 1, 0, 4096, nil)
		if _, _, b := answer(t, c); be.Uint32(b[8:]) != want {
			t.Errorf("LBPRZ %v: state %d, want %d", zero, be.Uint32(b[8:]), want)
		}
	}
}

// vast is a Volume that is too large for memory, of which only the status can be asked.
type vast struct {
	*ram
	extents []blockdev.Extent // with the lock
}

func (v *vast) Geometry() blockdev.Geometry {
	return blockdev.Geometry{Size: 1 << 40, Logical: 512, Physical: 4096}
}

func (v *vast) SubmitAll(qs []*blockdev.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, q := range qs {
		q.Extents = append(q.Extents, v.extents...)
		after := q.After
		go func() {
			defer after.Flush()
			q.Done(q)
		}()
	}
}

// A descriptor begins where the one before it ends: behind one that had to be cut there is none.
func TestNothingFollowsAnExtentThatIsCut(t *testing.T) {
	const most = 1<<32 - 1<<20
	v := &vast{ram: newRAM(t, 512)}
	c := serve(t, v, Options{})()
	hello(t, c)
	for _, x := range []struct {
		lengths []int64
		want    []uint32
	}{
		{[]int64{most + 4096, 4096, 8192}, []uint32{most}},
		{[]int64{4096, most + 4096, 8192}, []uint32{4096, most}},
		{[]int64{most, 4096, 8192}, []uint32{most, 4096, 8192}},
	} {
		at := int64(0)
		v.mu.Lock()
		v.extents = nil
		for k, n := range x.lengths {
			v.extents = append(v.extents, blockdev.Extent{Offset: at, Length: n, Mapped: k%2 == 0})
			at += n
		}
		v.mu.Unlock()
		request(t, c, cmdBlockStatus, 0, 1, 0, uint32(at), nil)
		_, _, b := answer(t, c)
		var got []uint32
		for d := b[4:]; len(d) > 0; d = d[8:] {
			got = append(got, be.Uint32(d))
			if hole := be.Uint32(d[4:])&stateHole != 0; hole != (len(got)%2 == 0) {
				t.Errorf("%v: extent %d is a hole: %v", x.lengths, len(got), hole)
			}
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%v is told as %v", x.lengths, got)
		}
	}
}

// A TRIM with FUA is durable when it is answered; one without costs no flush.
func TestFUAOfTrimReachesTheVolume(t *testing.T) {
	v := newRAM(t, 1<<20)
	c := serve(t, v, Options{})()
	hello(t, c)
	for _, flags := range []uint16{0, flagFUA} {
		request(t, c, cmdTrim, flags, 1, 0, 4096, nil)
		if e := errorOf(t, c); e != 0 {
			t.Fatal(e)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if want := []blockdev.Op{blockdev.Discard, blockdev.Discard, blockdev.Flush}; !slices.Equal(v.ops, want) {
		t.Errorf("the volume is asked for %v, want %v", v.ops, want)
	}
}

// DF is about structured replies: who has not chosen them is not offered it, and may not use it.
func TestDFIsOfferedWithStructuredRepliesOnly(t *testing.T) {
	v := newRAM(t, 1<<20)
	dial := serve(t, v, Options{})
	for _, structured := range []bool{false, true} {
		c := dial()
		read(t, c, 18)
		send(t, c, uint32(flagFixedNewstyle|flagNoZeroes))
		if structured {
			option(t, c, optStructuredReply, nil)
		}
		send(t, c, uint64(magicOption), uint32(optExportName), uint32(0))
		if flags := be.Uint16(read(t, c, 10)[8:]); (flags&sendDF != 0) != structured {
			t.Errorf("structured %v: flags 0x%x", structured, flags)
		}
		if structured {
			continue
		}
		request(t, c, cmdRead, flagDF, 1, 0, 512, nil)
		if h := read(t, c, simpleLen); unix.Errno(be.Uint32(h[4:])) != unix.EINVAL {
			t.Errorf("a read with DF: %v", unix.Errno(be.Uint32(h[4:])))
		}
	}
	if New(v, Options{}).Flags()&sendDF != 0 {
		t.Error("the kernel, which has simple replies, is offered DF")
	}
}

// What the target refuses has its own number, as far as the protocol has one.
func TestTheTargetsRefusalsHaveTheirNumbers(t *testing.T) {
	v := newRAM(t, 1<<20)
	c := serve(t, v, Options{})()
	hello(t, c)
	for err, want := range map[error]unix.Errno{blockdev.ErrNoSpace: unix.ENOSPC, blockdev.ErrReadOnly: unix.EPERM, blockdev.ErrUnsupported: unix.EOPNOTSUPP, block.ErrReserved: unix.EIO, blockdev.ErrMedium: unix.EIO} {
		v.mu.Lock()
		v.fail = err
		v.mu.Unlock()
		request(t, c, cmdWrite, 0, 1, 0, 512, make([]byte, 512))
		if e := errorOf(t, c); e != want {
			t.Errorf("%v is %v, want %v", err, e, want)
		}
	}
}
