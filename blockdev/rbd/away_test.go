//go:build ceph && cgo && linux

package rbd_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/rbd"
	"github.com/sluice-storage/sluice/mem"
)

// A second opening is refused while the first one lives, and the first one goes on.
func TestASecondOpeningIsRefused(t *testing.T) {
	defer rbd.SetLockPatience(3 * time.Second)()
	o := made(t, options(t, shared.Get(t)), 8<<20)
	d := open(t, o)
	defer blockdevtest.Close(t, d)
	if again, err := rbd.Open(o); !errors.Is(err, blockdev.ErrBusy) {
		t.Errorf("opened twice: %v", err)
		if err == nil {
			blockdevtest.Close(t, again)
		}
	}
	m := blockdevtest.NewMemory(t, 4096)
	blockdevtest.Write(t, d, m, 0, bytes.Repeat([]byte{7}, 4096), true)
	o.ReadOnly = true
	r := open(t, o) // readers need no lock
	defer blockdevtest.Close(t, r)
	if got := blockdevtest.Read(t, r, m, 0, 4096); got[0] != 7 {
		t.Errorf("read %d", got[0])
	}
}

// A cluster that is away costs a request its time-out and no more. What was submitted meanwhile is never done behind what comes later.
func TestAClusterThatIsAwayEndsRequestsInTime(t *testing.T) {
	c := shared.Get(t)
	o := made(t, options(t, c), 8<<20)
	o.Timeout = 3 * time.Second
	d := open(t, o)
	defer blockdevtest.Close(t, d)
	m := blockdevtest.NewMemory(t, 8192)
	blockdevtest.Write(t, d, m, 0, bytes.Repeat([]byte{1}, 4096), false)
	if err := c.Signal("osd.0", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b := m.All().Cut(4096, 4096)
	for i := range b.Bytes() {
		b.Bytes()[i] = 2
	}
	begin := time.Now()
	err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Write, Length: 4096, Data: []mem.Span{b}})
	if took := time.Since(begin); !errors.Is(err, blockdev.ErrAway) || took < 2*time.Second || took > 20*time.Second {
		t.Errorf("a write ended after %v: %v", took, err)
	}
	rerr := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Read, Length: 4096, Data: []mem.Span{m.All().Cut(0, 4096)}})
	if !errors.Is(rerr, blockdev.ErrAway) {
		t.Errorf("a read: %v", rerr)
	}
	if err := c.Signal("osd.0", syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	three := bytes.Repeat([]byte{3}, 4096)
	again := &blockdev.Request{Op: blockdev.Write, Length: 4096, Data: []mem.Span{m.All().Cut(0, 4096)}}
	copy(m.All().Bytes(), three)
	for begin = time.Now(); ; {
		if err = blockdevtest.Do(t, d, again); !errors.Is(err, blockdev.ErrAway) {
			break
		}
		if time.Since(begin) > 2*time.Minute {
			t.Fatal("the OSD goes on, and is not heard of again")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if got := blockdevtest.Read(t, d, m, 0, 4096); !bytes.Equal(got, three) {
			t.Fatalf("a write that was given up is done behind a later one: %d", got[0])
		}
	}
}
