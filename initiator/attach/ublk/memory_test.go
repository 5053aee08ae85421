package ublk

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// taker is a volume that takes requests and leaves them to the test.
type taker struct {
	pool *mem.Pool
	got  []*blockdev.Request
}

func (v *taker) Submit(r *blockdev.Request)  { v.got = append(v.got, r) }
func (v *taker) Geometry() blockdev.Geometry { return blockdev.Geometry{Size: 1 << 30, Logical: 512} }
func (v *taker) Memory() *mem.Pool           { return v.pool }

// Requests beyond the memory wait in the order of their arrival, and none fails for want of it.
func TestRequestsOfTheKernelWaitForMemory(t *testing.T) {
	v := &taker{pool: mem.NewPool(1)}
	q := &queue{d: &Device{v: v}, tags: make([]tag, 64), quota: quotaOf(v.pool, 64, 1)}
	var err error
	if q.efd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(q.efd)
	for i := range q.tags {
		tg := &q.tags[i]
		tg.q, tg.n, tg.needs = q, i, maxIO
		tg.req = blockdev.Request{Op: blockdev.Read, Offset: int64(i) * maxIO, Length: maxIO, Done: tg.done}
		q.starve(tg)
	}
	if len(v.got) == 0 || len(v.got) == len(q.tags) {
		t.Fatalf("%d of %d requests have memory", len(v.got), len(q.tags))
	}
	for i := 0; i < len(q.tags); i++ {
		for i >= len(v.got) { // as the queue's thread does
			q.mu.Lock()
			fed := q.memory
			q.memory, q.asleep = false, !fed
			q.mu.Unlock()
			if fed {
				q.feed()
			} else if _, err := unix.Read(q.efd, make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
		}
		r := v.got[i]
		if r.Offset != int64(i)*maxIO {
			t.Errorf("request %d overtakes", r.Offset/maxIO)
		}
		r.Done(r)
		q.mu.Lock()
		l := q.ready
		q.ready = nil
		q.mu.Unlock()
		if l == nil || l.res != maxIO || l.next != nil {
			t.Fatalf("the answer is %+v", l)
		}
		l.release()
	}
	q.quota.Close()
	if err := v.pool.Close(); err != nil {
		t.Error(err)
	}
}
