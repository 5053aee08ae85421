package owner

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/race"
	"github.com/sluice-storage/sluice/transport"
)

// Everything that is asked for is answered, and the end leaves nothing behind.
func TestEachRequestIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, setup{peak: 16})
		p.ask("awr")
		p.ask("rrrrrrrrrr") // more Reads than the depth
		p.ask("aawwrraawwrr")
		if p.got != 25 {
			t.Errorf("%d answers, want 25", p.got)
		}
		if err := p.end(); !errors.Is(err, transport.ErrClosed) {
			t.Error(err)
		}
	})
}

// An error of the handler's ends the connection, and Drain accounts for all that was under way.
func TestAHandlersErrorEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, setup{peak: 16})
		p.ask("awrrrrrrx")
		if err := p.end(); err == nil || errors.Is(err, transport.ErrClosed) {
			t.Error(err)
		}
	})
}

// The owner that blocks in its work is replaced after BlockTime, while completions go on; work that it kept is performed by the
// next one, each piece once.
func TestAHandoffWhileCompletionsArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		blocked := 0
		p := connect(t, setup{peak: 16, work: func(w work) {
			if w.asked == 'w' {
				blocked++
				<-gate
			}
		}})
		for i := range 3 {
			p.ask("w")
			p.ask("arr") // come while the owner is in its work
			if n, _ := p.handed(); p.got != i*3 || n != i {
				t.Fatalf("%d answers at once, %d handoffs; want %d, %d", p.got, n, i*3, i)
			}
			time.Sleep(2 * BlockTime)
			p.settle()
			if n, _ := p.handed(); p.got != i*3+3 || n != i+1 {
				t.Fatalf("%d answers after %v, %d handoffs; want %d, %d", p.got, 2*BlockTime, n, i*3+3, i+1)
			}
		}
		close(gate)
		p.settle()
		if _, late := p.handed(); p.got != 12 || late != 3 || blocked != 3 {
			t.Errorf("%d answers, %d owners came late, %d blocked", p.got, late, blocked)
		}
		p.end()
	})
}

// The connection ends while one owner blocks, the first or a later one, and work is kept. Drain ends all the same: work may hang for as long
// as a medium does. What the blocked ones queue in the end is accounted for too.
func TestDrainWithWorkKept(t *testing.T) {
	for name, c := range map[string]struct {
		wait    time.Duration
		blocked int
	}{"before a handoff": {0, 1}, "after one": {BlockTime + BlockTime/2, 2}, "after more": {10 * BlockTime, 4}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				var blocked atomic.Int32
				p := connect(t, setup{peak: 16, work: func(work) {
					blocked.Add(1)
					<-gate
				}})
				p.ask("w")
				p.ask("wwwrra")
				time.Sleep(c.wait)
				if n := int(blocked.Load()); n != c.blocked {
					t.Errorf("%d owners block, want %d", n, c.blocked)
				}
				p.qp.Close(transport.Reason{})
				p.drained(time.Second)
				if g := p.a.Gauges(); g.Sends != 0 || g.Receives != 0 || g.ReadSinks != 0 || g.Connections != 0 {
					t.Errorf("left on the device while work hangs: %+v", g)
				}
				close(gate)
				p.end()
				if p.performed+p.dropped != p.kept || p.kept != 4 {
					t.Errorf("%d kept, %d performed, %d dropped", p.kept, p.performed, p.dropped)
				}
			})
		})
	}
}

// Replies leave when half of what the peer had here at once, or MaxTogether, wait; Reads while more than a quarter as many are
// under way do not.
func TestRepliesAndReadsWaitForCompany(t *testing.T) {
	for _, c := range []struct{ sends, reads, out, peak int }{{1, 0, 0, 1}, {1, 0, 0, 2}, {1, 0, 0, 3}, {2, 0, 0, 3}, {2, 0, 0, 4}, {2, 0, 0, 5}, {7, 0, 0, 100},
		{8, 0, 0, 100}, {0, 1, 0, 0}, {0, 1, 1, 3}, {0, 1, 1, 4}, {0, 1, 2, 4}, {0, 3, 4, 16}, {0, 3, 5, 16}, {0, 0, 0, 4}, {0, 0, 0, 1}} {
		u := &upper{peak: c.peak}
		u.e.Init(u, &u.mu, nil)
		u.e.sends, u.e.reads, u.e.out = make([]transport.WR, c.sends), make([]read, c.reads), c.out
		want := c.sends >= min(8, (c.peak+1)/2) || c.reads > 0 && c.out <= c.peak/4
		if got := u.e.dueLocked(); got != want {
			t.Errorf("%+v: due %v", c, got)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		p := connect(t, setup{peak: 5, work: func(work) { <-gate }})
		p.ask("w") // while it lasts the others come in, for one Poll
		p.ask("wwww")
		var seen []int
		for range 5 {
			gate <- struct{}{}
			p.settle()
			seen = append(seen, p.got)
		}
		if want := []int{0, 0, 3, 3, 5}; !slices.Equal(seen, want) {
			t.Errorf("answers after each piece of work: %v, want %v", seen, want)
		}
		p.end()
	})
}

// faulty is a queue pair of which one step fails, once.
type faulty struct {
	transport.QP
	at, n   int
	failed  string
	posted  []int
	inPost  func()
	partial bool // Post takes a part of what it is given and is full
}

var errStep = errors.New("a step that fails")

func (q *faulty) fails(step string) bool {
	q.n++
	if q.n != q.at {
		return false
	}
	q.failed = step
	return true
}

func (q *faulty) Post(wrs []transport.WR) (int, error) {
	if q.inPost != nil {
		q.inPost()
	}
	q.posted = append(q.posted, len(wrs))
	if !q.fails(fmt.Sprintf("Post of %d", len(wrs))) {
		return q.QP.Post(wrs)
	}
	if !q.partial {
		return 0, errStep
	}
	n, err := q.QP.Post(wrs[:len(wrs)/2])
	if err == nil {
		err = transport.ErrQueueFull
	}
	return n, err
}

func (q *faulty) PostRecv(rs []transport.Recv) (int, error) {
	if q.fails("PostRecv") {
		return 0, errStep
	}
	return q.QP.PostRecv(rs)
}

// Each step that can fail does, once, at each place: nothing is lost or done twice, and what was queued is answered or ended.
func TestEveryStepFailsOnce(t *testing.T) {
	for _, partial := range []bool{false, true} {
		kinds := make(map[string]bool)
		for at := 1; ; at++ {
			q := &faulty{at: at, partial: partial}
			synctest.Test(t, func(t *testing.T) {
				p := connect(t, setup{peak: 4, wrap: func(qp transport.QP) transport.QP { q.QP = qp; return q }})
				p.ask("awr")
				p.ask("wwrrrrrra")
				p.ask("aaa")
				post, _, _ := strings.Cut(q.failed, " ")
				if partial && post != "PostRecv" && p.got != 15 {
					t.Errorf("step %d, %s took only part: %d answers, want 15", at, q.failed, p.got)
				}
				if q.failed != "" && (!partial || post == "PostRecv") && !errors.Is(p.failed, errStep) {
					t.Errorf("step %d, %s failed: the handler was told %v", at, q.failed, p.failed)
				}
				p.end()
				kinds[post] = true
			})
			if q.failed == "" {
				break
			}
		}
		if !kinds["Post"] || !kinds["PostRecv"] {
			t.Errorf("failed: %v", kinds)
		}
	}
}

// A queue that is full takes the rest when completions have made room, in order, and everything is answered.
func TestASmallQueueTakesEverythingInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, setup{peak: 32, sends: 3})
		p.ask(strings.Repeat("awr", 10))
		p.settle()
		if p.got != 30 {
			t.Errorf("%d answers, want 30", p.got)
		}
		p.end()
	})
}

// A flush that finds another goroutine in Post is not lost where that Post finds the queue full: room may have come since.
func TestAFlushDuringAPostThatFindsTheQueueFullIsRepeated(t *testing.T) {
	u := &upper{t: t, queued: make(map[uint64]int), completed: make(map[uint64]int)}
	q := &stub{}
	u.e.Init(u, &u.mu, q)
	q.post = func(wrs []transport.WR) (int, error) {
		if q.calls > 1 {
			return len(wrs), nil
		}
		u.mu.Lock() // another goroutine, behind a completion that makes room
		u.e.FlushLocked()
		u.mu.Unlock()
		return 0, transport.ErrQueueFull
	}
	u.mu.Lock()
	u.answerLocked()
	u.e.FlushLocked()
	u.mu.Unlock()
	if q.calls != 2 || !u.e.EmptyLocked() {
		t.Errorf("%d Posts, empty %v", q.calls, u.e.EmptyLocked())
	}
	q.calls = 0
	q.post = func(wrs []transport.WR) (int, error) { return 0, transport.ErrQueueFull }
	u.mu.Lock()
	u.answerLocked()
	u.e.FlushLocked()
	u.mu.Unlock()
	if q.calls != 1 || u.e.EmptyLocked() {
		t.Errorf("%d Posts to a queue that stays full, empty %v", q.calls, u.e.EmptyLocked())
	}
}

// Work that is kept while the owner posts before it waits is performed before it waits.
func TestWorkThatIsKeptWhileTheOwnerPostsIsPerformed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &faulty{}
		p := connect(t, setup{peak: 1, wrap: func(qp transport.QP) transport.QP { q.QP = qp; return q }})
		q.inPost = func() {
			q.inPost = nil
			p.mu.Lock()
			p.kept++
			p.e.KeepLocked(work{'w'})
			p.mu.Unlock()
		}
		p.ask("a")
		if p.got != 2 {
			t.Errorf("%d answers, want 2", p.got)
		}
		p.end()
	})
}

// What is not taken goes out before what was queued meanwhile, Reads behind Sends, and counts no more as under way.
func TestWhatPostDidNotTakeKeepsItsPlace(t *testing.T) {
	u := &upper{t: t, queued: make(map[uint64]int), completed: make(map[uint64]int), slab: nil}
	q := &stub{}
	u.e.Init(u, &u.mu, q)
	u.e.depth = 2
	var order [][]uint64
	q.post = func(wrs []transport.WR) (int, error) {
		var l []uint64
		for _, wr := range wrs {
			l = append(l, wr.Token)
		}
		order = append(order, l)
		if q.calls == 1 {
			u.mu.Lock()
			u.e.SendLocked(0, transport.WR{Op: transport.OpSend, Token: 3})
			u.e.ReadLocked(13, transport.Remote{}, mem.Span{})
			u.mu.Unlock()
			return 1, transport.ErrQueueFull
		}
		return len(wrs), nil
	}
	u.mu.Lock()
	u.e.SendLocked(0, transport.WR{Op: transport.OpSend, Token: 1})
	u.e.SendLocked(0, transport.WR{Op: transport.OpSend, Token: 2})
	u.e.ReadLocked(11, transport.Remote{}, mem.Span{})
	u.e.ReadLocked(12, transport.Remote{}, mem.Span{})
	u.e.FlushLocked()
	if out, _ := u.e.ReadsLocked(); out != 0 {
		t.Errorf("%d Reads under way that were not taken", out)
	}
	u.e.FlushLocked()
	u.e.ReadEndedLocked()
	u.e.FlushLocked()
	u.mu.Unlock()
	want := [][]uint64{{1, 2, 11, 12}, {2, 3, 11, 12}, {13}}
	if fmt.Sprint(order) != fmt.Sprint(want) {
		t.Errorf("posted %v, want %v", order, want)
	}
}

// Receives that a full queue did not take stay, in order, and with them the Sends that grant their use: a message that the peer sends
// then would find no receive. An error of another kind ends the connection, and nothing more is posted.
func TestSendsWaitForTheReceivesThatTheyGrant(t *testing.T) {
	for _, failed := range []error{nil, errStep} {
		u := &upper{t: t, queued: make(map[uint64]int), completed: make(map[uint64]int)}
		q := &stub{QP: closes{}, post: func(wrs []transport.WR) (int, error) { return len(wrs), nil }}
		var taken []uint64
		room := 1
		q.recv = func(rs []transport.Recv) (int, error) {
			if failed != nil {
				return 0, failed
			}
			n := min(room, len(rs))
			for _, r := range rs[:n] {
				taken = append(taken, r.Token)
			}
			if n < len(rs) {
				return n, transport.ErrQueueFull
			}
			return n, nil
		}
		u.e.Init(u, &u.mu, q)
		u.mu.Lock()
		for i := range uint64(3) {
			u.e.RecvLocked(transport.Recv{Token: i})
		}
		u.answerLocked()
		u.e.FlushLocked()
		if q.calls != 0 || len(taken) != 1 && failed == nil {
			t.Errorf("%v: %d Posts, receives %v", failed, q.calls, taken)
		}
		room = 3
		u.e.FlushLocked()
		u.mu.Unlock()
		if failed != nil {
			if q.calls != 0 || !errors.Is(u.failed, failed) {
				t.Errorf("%d Posts, the handler was told %v", q.calls, u.failed)
			}
		} else if q.calls != 1 || !slices.Equal(taken, []uint64{0, 1, 2}) {
			t.Errorf("%d Posts, receives %v", q.calls, taken)
		}
	}
}

// Memory of queues is given back when nothing is in them, a receive neither.
func TestTrimLeavesWhatIsQueued(t *testing.T) {
	u := &upper{}
	q := &stub{}
	taken := 0
	q.post = func(wrs []transport.WR) (int, error) { return len(wrs), nil }
	q.recv = func(rs []transport.Recv) (int, error) {
		taken += len(rs)
		return len(rs), nil
	}
	u.e.Init(u, &u.mu, q)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.e.RecvLocked(transport.Recv{})
	u.e.TrimLocked()
	u.e.SendLocked(0, transport.WR{Op: transport.OpSend})
	u.e.TrimLocked()
	u.e.FlushLocked()
	if taken != 1 || q.calls != 1 {
		t.Errorf("%d receives and %d Posts after Trim, want 1 and 1", taken, q.calls)
	}
	u.e.TrimLocked()
	if cap(u.e.recvs)+cap(u.e.sends)+cap(u.e.spare) != 0 {
		t.Error("empty queues keep memory")
	}
}

// stub is a queue pair that is only posted to.
type stub struct {
	transport.QP
	post  func([]transport.WR) (int, error)
	recv  func([]transport.Recv) (int, error)
	calls int
}

func (q *stub) PostRecv(rs []transport.Recv) (int, error) { return q.recv(rs) }

// closes is a queue pair that can be closed.
type closes struct{ transport.QP }

func (closes) Close(transport.Reason) error { return nil }

func (q *stub) Post(wrs []transport.WR) (int, error) {
	q.calls++
	return q.post(wrs)
}

// Drain waits for a Post that another goroutine began before the end.
func TestDrainWaitsForAPostUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := make(chan struct{}), make(chan struct{})
		q := &faulty{}
		p := connect(t, setup{peak: 4, wrap: func(qp transport.QP) transport.QP { q.QP = qp; return q }})
		p.ask("a")
		q.inPost = func() {
			q.inPost = nil
			close(in)
			<-out
		}
		go func() {
			p.mu.Lock()
			p.answerLocked()
			p.e.FlushLocked()
			p.mu.Unlock()
		}()
		<-in
		p.qp.Close(transport.Reason{})
		synctest.Wait()
		select {
		case <-p.run:
			t.Error("Drain has returned, and a Post is under way")
		default:
		}
		close(out)
		p.end()
	})
}

// Nothing is allocated for a message, its work and its answer.
func TestTheEngineAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	h := &quiet{}
	q := &stub{post: func(wrs []transport.WR) (int, error) { return len(wrs), nil }}
	h.e.Init(h, &h.mu, q)
	h.e.depth = 8
	local := []mem.Span{{Len: 8}}
	round := func() {
		h.mu.Lock()
		for i := range uint64(4) {
			h.e.SendLocked(8, transport.WR{Op: transport.OpSend, Token: i, Local: local})
			h.e.ReadLocked(i, transport.Remote{}, mem.Span{})
			h.e.KeepLocked(work{'w'})
		}
		h.mu.Unlock()
		for {
			w, some := h.e.turn()
			if !some {
				break
			}
			h.Perform(w, false)
		}
		h.mu.Lock()
		for range 4 {
			h.e.ReadEndedLocked()
		}
		h.mu.Unlock()
	}
	round()
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// quiet is a handler that does nothing.
type quiet struct {
	upper
}

func (h *quiet) Perform(work, bool) {}

// A connection under load may have work kept at all times.
func TestWorkThatNeverEndsTakesBoundedMemory(t *testing.T) {
	var e Engine[int]
	for i := range 3 {
		e.KeepLocked(i)
	}
	for i := range 100_000 {
		if w := e.takeWorkLocked(); w != i {
			t.Fatalf("work %d came in place of %d", w, i)
		}
		e.KeepLocked(i + 3)
	}
	if c := cap(e.work); c > 64 {
		t.Errorf("memory for %d pieces where 3 are kept", c)
	}
}
