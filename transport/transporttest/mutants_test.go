package transporttest

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// mutant is a device that breaks one rule.
type mutant struct {
	transport.Device
	rule *rule
	stag atomic.Uint32
}

// rule is a rule, the case that must notice when it is broken, and how to break it. Nil functions break nothing.
type rule struct {
	caught string
	post   func(q *mutantQP, wrs []transport.WR) (int, error)
	poll   func(q *mutantQP, wc []transport.WC) (int, error)
	recv   func(q *mutantQP, r []transport.Recv) (int, error)
	wait   func(q *mutantQP, ctx context.Context) error
	end    func(q *mutantQP, r transport.Reason) error
	depth  func(q *mutantQP) transport.Depth
	window func(q *mutantQP, w transport.Window) transport.Window
	dial   func(p *transport.ConnParams)
}

type mutantQP struct {
	transport.QP
	dev   *mutant
	held  []transport.WC
	ended atomic.Bool
	spans map[uint64]mem.Span
}

func (d *mutant) NewQP(o transport.QPOptions) (transport.QP, error) {
	q, err := d.Device.NewQP(o)
	if err != nil {
		return nil, err
	}
	return &mutantQP{QP: q, dev: d, spans: make(map[uint64]mem.Span)}, nil
}

func (d *mutant) Dial(ctx context.Context, addr string, q transport.QP, p transport.ConnParams) (transport.Peer, error) {
	if d.rule.dial != nil {
		d.rule.dial(&p)
	}
	return d.Device.Dial(ctx, addr, q.(*mutantQP).QP, p)
}

func (d *mutant) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := d.Device.Listen(ctx, addr)
	return &mutantListener{l}, err
}

type mutantListener struct{ transport.Listener }

func (l *mutantListener) Accept(ctx context.Context) (transport.Request, error) {
	r, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &mutantRequest{r}, nil
}

type mutantRequest struct{ transport.Request }

func (r *mutantRequest) Accept(ctx context.Context, q transport.QP, p transport.ConnParams) error {
	return r.Request.Accept(ctx, q.(*mutantQP).QP, p)
}

func (q *mutantQP) Post(wrs []transport.WR) (int, error) {
	mine := make([]transport.WR, len(wrs))
	for i, w := range wrs {
		if m, ok := w.Window.(*mutantWindow); ok {
			w.Window = m.Window
		}
		mine[i] = w
	}
	if f := q.dev.rule.post; f != nil {
		return f(q, mine)
	}
	return q.QP.Post(mine)
}

func (q *mutantQP) Poll(wc []transport.WC) (int, error) {
	if f := q.dev.rule.poll; f != nil {
		return f(q, wc)
	}
	return q.QP.Poll(wc)
}

func (q *mutantQP) PostRecv(r []transport.Recv) (int, error) {
	if f := q.dev.rule.recv; f != nil {
		return f(q, r)
	}
	return q.QP.PostRecv(r)
}

func (q *mutantQP) Wait(ctx context.Context) error {
	if f := q.dev.rule.wait; f != nil {
		return f(q, ctx)
	}
	return q.QP.Wait(ctx)
}

func (q *mutantQP) Close(r transport.Reason) error {
	if f := q.dev.rule.end; f != nil {
		return f(q, r)
	}
	return q.QP.Close(r)
}

func (q *mutantQP) Depth() transport.Depth {
	if f := q.dev.rule.depth; f != nil {
		return f(q)
	}
	return q.QP.Depth()
}

type mutantWindow struct {
	transport.Window
	remote func(transport.Remote) transport.Remote
	valid  func() bool
}

func (w *mutantWindow) Remote() transport.Remote {
	if w.remote == nil {
		return w.Window.Remote()
	}
	return w.remote(w.Window.Remote())
}

func (w *mutantWindow) Valid() bool {
	if w.valid == nil {
		return w.Window.Valid()
	}
	return w.valid()
}

func (q *mutantQP) NewWindow() (transport.Window, error) {
	w, err := q.QP.NewWindow()
	if err == nil && q.dev.rule.window != nil {
		return q.dev.rule.window(q, w), nil
	}
	return w, err
}

// each changes every work request before it is posted.
func each(change func(q *mutantQP, w *transport.WR)) func(*mutantQP, []transport.WR) (int, error) {
	return func(q *mutantQP, wrs []transport.WR) (int, error) {
		for i := range wrs {
			change(q, &wrs[i])
		}
		return q.QP.Post(wrs)
	}
}

// grown is a span with room on both sides taken in, where the slab has it.
func grown(s mem.Span) mem.Span {
	s.Off, s.Len = max(0, s.Off-16), s.Len+32
	return s
}

var mutants = map[string]rule{
	"a fence is no fence": {caught: "fence waits for earlier reads",
		post: each(func(_ *mutantQP, w *transport.WR) { w.Flags &^= transport.Fence })},
	"every window has every right, for writes": {caught: "write without the right",
		post: each(func(_ *mutantQP, w *transport.WR) { w.Access = transport.RemoteRead | transport.RemoteWrite })},
	"every window has every right, for reads": {caught: "read without the right",
		post: each(func(_ *mutantQP, w *transport.WR) { w.Access = transport.RemoteRead | transport.RemoteWrite })},
	"a window is larger than asked for, for writes": {caught: "write out of bounds", post: each(func(_ *mutantQP, w *transport.WR) {
		if w.Op == transport.OpBind {
			w.Local = []mem.Span{grown(w.Local[0])}
		}
	})},
	"a window is larger than asked for, for reads": {caught: "read out of bounds", post: each(func(_ *mutantQP, w *transport.WR) {
		if w.Op == transport.OpBind {
			w.Local = []mem.Span{grown(w.Local[0])}
		}
	})},
	"a local invalidation does nothing": {caught: "local invalidate kills the STag", post: each(func(_ *mutantQP, w *transport.WR) {
		if w.Op == transport.OpInvalidate {
			w.Op, w.Window = transport.OpWrite, nil
		}
	})},
	"send with invalidate is a send": {caught: "send with invalidate kills the STag before it is seen", post: each(func(_ *mutantQP, w *transport.WR) {
		if w.Op == transport.OpSendInv {
			w.Op = transport.OpSend
		}
	})},
	"a write of one bit more": {caught: "random work", post: each(func(_ *mutantQP, w *transport.WR) {
		if w.Op == transport.OpWrite && len(w.Local) > 1 {
			w.Local = w.Local[:len(w.Local)-1] // the last piece is lost
		}
	})},
	"a batch goes out backwards": {caught: "sends arrive in order", post: func(q *mutantQP, wrs []transport.WR) (int, error) {
		for i := range len(wrs) / 2 {
			wrs[i], wrs[len(wrs)-1-i] = wrs[len(wrs)-1-i], wrs[i]
		}
		return q.QP.Post(wrs)
	}},
	"one Read too many is taken in silence": {caught: "reads complete in order and within the depth",
		post: func(q *mutantQP, wrs []transport.WR) (int, error) {
			_, _ = q.QP.Post(wrs)
			return len(wrs), nil
		}},
	"a full queue takes more": {caught: "the send queue has its bound", post: func(q *mutantQP, wrs []transport.WR) (int, error) {
		_, _ = q.QP.Post(wrs)
		return len(wrs), nil
	}},
	"a full receive queue takes more": {caught: "the receive queue has its bound", recv: func(q *mutantQP, r []transport.Recv) (int, error) {
		_, _ = q.QP.PostRecv(r)
		return len(r), nil
	}},
	"everything is signaled": {caught: "unsignaled work completes only in error",
		post: each(func(_ *mutantQP, w *transport.WR) { w.Flags |= transport.Signaled })},
	"reads need a depth of zero": {caught: "a depth of zero allows no Read", dial: func(p *transport.ConnParams) { p.ReadsOut = 8 }},
	"private data is lost":       {caught: "private data goes both ways", dial: func(p *transport.ConnParams) { p.Private = nil }},
	"a depth that nobody agreed on": {caught: "read depths are what both sides can",
		depth: func(q *mutantQP) transport.Depth { return transport.Depth{In: 1, Out: q.QP.Depth().Out + 1} }},
	"receives are lost at the end": {caught: "close returns all that is outstanding", poll: func(q *mutantQP, wc []transport.WC) (int, error) {
		n, err := q.QP.Poll(wc)
		k := 0
		for _, c := range wc[:n] {
			if c.Op != transport.OpRecv || c.Err == nil {
				wc[k] = c
				k++
			}
		}
		return k, err
	}},
	"completions at the end come twice": {caught: "the peer's close returns all that is outstanding", poll: func(q *mutantQP, wc []transport.WC) (int, error) {
		if len(q.held) > 0 {
			n := copy(wc, q.held)
			q.held = nil
			return n, nil
		}
		n, err := q.QP.Poll(wc)
		for _, c := range wc[:n] {
			if c.Err != nil {
				q.held = append(q.held, c)
			}
		}
		return n, err
	}},
	"an error completes as a success": {caught: "close returns all that is outstanding", poll: func(q *mutantQP, wc []transport.WC) (int, error) {
		n, err := q.QP.Poll(wc)
		for i := range wc[:n] {
			wc[i].Err = nil
		}
		return n, err
	}},
	"the reason is not told": {caught: "close tells its reason",
		end: func(q *mutantQP, _ transport.Reason) error { return q.QP.Close(transport.Reason{}) }},
	"an orderly close pulls the plug": {caught: "close loses nothing that completed before", end: func(q *mutantQP, _ transport.Reason) error {
		q.QP.(*qp).Abort()
		return nil
	}},
	"a second close fails": {caught: "close from many goroutines", end: func(q *mutantQP, r transport.Reason) error {
		if q.ended.Swap(true) {
			return transport.ErrClosed
		}
		return q.QP.Close(r)
	}},
	"bytes land after the end": {caught: "no byte lands after the last completion",
		end: func(q *mutantQP, r transport.Reason) error {
			if q.ended.Swap(true) {
				return q.QP.Close(r)
			}
			go func() {
				var wc [8]transport.WC
				for {
					if _, err := q.QP.Poll(wc[:]); err != nil {
						return
					}
					runtime.Gosched()
				}
			}()
			return nil
		},
		poll: func(q *mutantQP, wc []transport.WC) (int, error) {
			if q.ended.Load() {
				return 0, transport.ErrClosed
			}
			return q.QP.Poll(wc)
		},
		wait: func(q *mutantQP, ctx context.Context) error {
			for !q.ended.Load() {
				short, cancel := context.WithTimeout(ctx, time.Millisecond)
				err := q.QP.Wait(short)
				cancel()
				if err == nil || ctx.Err() != nil {
					return err
				}
			}
			return nil
		}},
	"an owner sleeps until it is told to go": {caught: "completions wake a parked owner", wait: func(_ *mutantQP, ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}},
	"wait eats its context": {caught: "wait ends with its context and harms nothing", wait: func(q *mutantQP, ctx context.Context) error {
		var wc [8]transport.WC
		if ctx.Err() != nil {
			_, _ = q.QP.Poll(wc[:])
			return ctx.Err()
		}
		return q.QP.Wait(ctx)
	}},
	"STags are counted": {caught: "STags cannot be foretold", window: func(q *mutantQP, w transport.Window) transport.Window {
		return &mutantWindow{Window: w, remote: func(r transport.Remote) transport.Remote {
			r.STag = q.dev.stag.Add(256)
			return r
		}}
	}},
	"STags are 0": {caught: "STags cannot be foretold", window: func(_ *mutantQP, w transport.Window) transport.Window {
		return &mutantWindow{Window: w, remote: func(r transport.Remote) transport.Remote { r.STag = 0; return r }}
	}},
	"a window is valid for ever": {caught: "a write that follows the invalidate|close returns all that is outstanding",
		window: func(_ *mutantQP, w transport.Window) transport.Window {
			return &mutantWindow{Window: w, valid: func() bool { return true }}
		}},
}

const (
	mutantEnv = "TRANSPORTTEST_MUTANT"
	noMutant  = "none"
)

// A suite that nothing can fail proves nothing. Each mutant breaks one rule, and a case must notice. A mutant runs in a
// process of its own, for a failed case fails its test.
func TestSuiteNoticesBrokenRules(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most wait for what does not come
			noticed := false
			for c := range strings.SplitSeq(m.caught, "|") {
				pattern := "^TestMutant$/^" + regexp.QuoteMeta(strings.ReplaceAll(c, " ", "_")) + "$"
				cmd := exec.Command(exe, "-test.run", pattern, "-test.v")
				cmd.Env = append(os.Environ(), mutantEnv+"="+name)
				b, err := cmd.CombinedOutput()
				out := string(b)
				if !strings.Contains(out, "=== RUN   TestMutant/") {
					t.Fatalf("the case %q did not run: %v\n%s", c, err, out)
				}
				// The case itself has to fail: a crash, or a process that ends for another reason, notices nothing.
				failed := strings.Contains(out, "--- FAIL: TestMutant/"+strings.ReplaceAll(c, " ", "_")+" (")
				if err != nil && (!failed || strings.Contains(out, "panic: ") || strings.Contains(out, "fatal error: ")) {
					t.Fatalf("the case %q did not end by itself: %v\n%s", c, err, out)
				}
				if failed {
					control(t, exe, pattern)
				}
				noticed = noticed || failed
			}
			if !noticed {
				t.Errorf("nobody noticed")
			}
		})
	}
}

// control shows that the case passes where no rule is broken, in a process like a mutant's and with its patience: it was
// the broken rule that the case noticed, and not a slow machine.
func control(t *testing.T, exe, pattern string) {
	t.Helper()
	var b []byte
	var err error
	for range 5 {
		cmd := exec.Command(exe, "-test.run", pattern, "-test.v")
		cmd.Env = append(os.Environ(), mutantEnv+"="+noMutant)
		if b, err = cmd.CombinedOutput(); err == nil {
			return
		}
	}
	t.Errorf("the case fails without a broken rule too: %v\n%s", err, b)
}

// TestMutant is the other process of TestSuiteNoticesBrokenRules.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantEnv)
	m, ok := mutants[name]
	if !ok && name != noMutant {
		return
	}
	patience = 2 * time.Second // what does not come is what is tested
	Run(t, func(t testing.TB) Pair {
		a, b := Twin()
		return Pair{Dialer: &mutant{Device: a, rule: &m}, Listener: &mutant{Device: b, rule: &m}, Addr: "127.0.0.1:0"}
	})
}

// The wrapper itself breaks nothing.
func TestMutantWithoutMutationKeepsEveryRule(t *testing.T) {
	Run(t, func(t testing.TB) Pair {
		a, b := Twin()
		m := &rule{}
		return Pair{Dialer: &mutant{Device: a, rule: m}, Listener: &mutant{Device: b, rule: m}, Addr: "127.0.0.1:0"}
	})
}
