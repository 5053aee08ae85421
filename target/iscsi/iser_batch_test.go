package iscsi

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/transport"
)

// countingQP counts what is posted.
type countingQP struct {
	transport.QP
	posts atomic.Int32
}

func (q *countingQP) Post(wrs []transport.WR) (int, error) {
	q.posts.Add(1)
	return q.QP.Post(wrs)
}

// countPosts counts from now on what the one connection of f posts. Its owner waits.
func countPosts(t *testing.T, f *fixture) *countingQP {
	t.Helper()
	f.srv.mu.Lock()
	defer f.srv.mu.Unlock()
	for c := range f.srv.conns {
		c.mu.Lock()
		x := c.datamover.(*iserDatamover)
		q := &countingQP{QP: x.owner.QP}
		x.owner.QP = q
		c.mu.Unlock()
		return q
	}
	t.Fatal("there is no connection")
	return nil
}

// collector holds reads until it is told to end them.
type collector struct {
	blockdev.Device
	mu   sync.Mutex
	held []*blockdev.Request
	job  blockdev.Request
	jobs atomic.Int32
	lend bool // it offers what it holds, as one request of its own
}

func (k *collector) Submit(r *blockdev.Request) {
	if r.Op != blockdev.Read {
		k.Device.Submit(r)
		return
	}
	k.mu.Lock()
	k.held = append(k.held, r)
	k.mu.Unlock()
	if k.lend && !r.Deferrer.Defer(k, &k.job) {
		k.Perform(&k.job)
	}
}

func (k *collector) take() []*blockdev.Request {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.held
	k.held = nil
	return l
}

func (k *collector) Perform(*blockdev.Request) {
	k.jobs.Add(1)
	var e blockdev.Ending
	for _, r := range k.take() {
		e.Finish(r, nil)
	}
	e.Flush()
}

// reads sends n READs of a block each and does not wait.
func (p *peer) reads(n int) {
	for i := range n {
		_, rem, _ := p.expose(512, transport.RemoteWrite)
		c := p.command(read10(i, 1))
		c.Read, c.EDTL = true, 512
		p.sendISER(&iscsi.ISERHeader{ReadValid: true, ReadSTag: rem.STag, ReadBase: rem.Off}, c, nil, nil)
	}
}

// What ends together leaves with one Post; what ends by itself leaves at once.
func TestReadsThatEndTogetherLeaveTogether(t *testing.T) {
	for _, together := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newTwinFixture(t)
			k := &collector{Device: f.dev.Device}
			f.dev.Device = k
			p := f.dialISER(iscsi.CMPrivate(true))
			p.loginISER()
			p.ready()
			p.reads(4)
			synctest.Wait()
			q, l := countPosts(t, f), k.take()
			if len(l) != 4 {
				t.Fatalf("%d reads have arrived", len(l))
			}
			var e blockdev.Ending
			for _, r := range l {
				if together {
					e.Finish(r, nil)
				} else {
					r.Finish(nil)
				}
			}
			if n := q.posts.Load(); together && n != 0 {
				t.Errorf("%d Posts before all have ended", n)
			}
			e.Flush()
			if n := q.posts.Load(); together != (n == 1) || !together && n != 4 {
				t.Errorf("%d Posts for four reads that ended together: %v", n, together)
			}
			for range 4 {
				if r := p.want(iscsi.OpSCSIResponse); r.b[3] != 0 {
					t.Errorf("% x", []byte(r.b))
				}
			}
		})
	}
}

// A device's own request is performed once for all that it is offered with, behind the commands of a batch, and again for the next.
func TestTheOwnerPerformsADevicesRequestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTwinFixture(t)
		k := &collector{Device: f.dev.Device, lend: true}
		f.dev.Device = k
		p := f.dialISER(iscsi.CMPrivate(true))
		p.loginISER()
		p.ready()
		l := lend(f) // the owner blocks in a write while reads arrive, so that they are one batch
		l.Device = k
		for round := range int32(2) {
			p.blocking(l, 0, true)
			p.reads(3)
			l.valve <- struct{}{}
			for range 4 {
				if r := p.want(iscsi.OpSCSIResponse); r.b[3] != 0 {
					t.Errorf("% x", []byte(r.b))
				}
			}
			if n := k.jobs.Load(); n != round+1 {
				t.Errorf("performed %d times after %d batches", n, round+1)
			}
		}
	})
}
