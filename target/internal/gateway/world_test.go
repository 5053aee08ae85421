package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The world of the model: gateways that are killed, stopped and cut off, and an initiator with a path to each.

const volume = "vol"

// node is a gateway's host: its processes come one after another.
type node struct {
	w    *world
	name string

	mu sync.Mutex
	p  *process
	g  *Gateway
	v  *Volume
	d  *disk
	// sessions of initiators, by name, in the process that runs
	sessions map[string]*session
	logins   int
}

// session is an I_T nexus of a node's process.
type session struct {
	number int
	lost   bool // its pings were not answered
	tasks  sync.WaitGroup
}

type world struct {
	t       *testing.T
	c       *cluster
	mutant  mutant
	nodes   []*node
	ctx     context.Context
	stop    context.CancelFunc
	workers sync.WaitGroup
	over    sync.WaitGroup // processes that are taken apart

	mu       sync.Mutex
	rules    map[string]uint64 // number that each serving has, by its instance
	answered uint64            // number of the last change of the reservations that was answered
	changes  int
	progress map[int]uint64
	pause    time.Duration // the longest that a block was not written for
}

func newWorld(t *testing.T, seed uint64, m mutant, names ...string) *world {
	w := &world{t: t, c: newCluster(seed), mutant: m, rules: map[string]uint64{}, progress: map[int]uint64{}}
	w.ctx, w.stop = context.WithCancel(t.Context())
	for _, name := range names {
		n := &node{w: w, name: name}
		w.nodes = append(w.nodes, n)
		n.start(nil)
	}
	return w
}

// start begins a process.
func (n *node) start(fail func(string) error) {
	p := newProcess()
	s := &modelStore{client: n.w.c.client(p), mutant: n.w.mutant, fail: fail}
	var g *Gateway
	var err error
	for range 20 { // the cluster may be away, or another start of it be under way
		if g, err = Join(n.w.ctx, s, Options{Name: n.name, Machine: n.name, Alone: true}); err == nil || n.w.ctx.Err() != nil {
			break
		}
		time.Sleep(time.Second)
	}
	if err != nil {
		n.w.t.Errorf("%s cannot join: %v", n.name, err)
		return
	}
	d := &disk{w: n.w}
	v, err := g.Add(volume, d)
	if err != nil {
		n.w.t.Errorf("%s: %v", n.name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.p, n.g, n.v, n.d, n.sessions = p, g, v, d, map[string]*session{}
}

// kill is SIGKILL: nothing that the process would do happens any more. What it has sent may arrive.
func (n *node) kill() {
	n.mu.Lock()
	p, g := n.p, n.g
	n.p, n.g, n.v, n.d = nil, nil, nil, nil
	n.mu.Unlock()
	if p == nil {
		return
	}
	close(p.dead)
	n.w.over.Go(g.Close)
}

// cutLAN cuts the process from clients. It gives their sessions up when they have not answered for a while.
func (n *node) cutLAN(p *process) {
	p.lan.shut()
	n.w.over.Go(func() {
		time.Sleep(3 * time.Second)
		n.mu.Lock()
		defer n.mu.Unlock()
		select {
		case <-p.lan.way():
			return
		default:
		}
		if n.p != p {
			return
		}
		for _, s := range n.sessions {
			s.lost = true
		}
		n.tellSessionsLocked()
	})
}

func (n *node) tellSessionsLocked() {
	var pairs []uint64
	for name, s := range n.sessions {
		if !s.lost {
			pairs = append(pairs, Pair(volume, name))
		}
	}
	n.g.SetSessions(pairs)
}

func (n *node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.p
}

func (n *node) gateway() *Gateway {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.g
}

func (n *node) volume() *Volume {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.v
}

// end takes the world apart and returns what was wrong.
func (w *world) end() []string {
	w.stop()
	for _, n := range w.nodes {
		if p := n.process(); p != nil {
			p.running.open()
		}
	}
	close(w.c.done)
	w.workers.Wait()
	for _, n := range w.nodes {
		if g := n.gateway(); g != nil {
			g.Close()
		}
	}
	w.over.Wait()
	time.Sleep(10 * BlockFor) // timers of the blocklist end
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.c.opened != 0 {
		w.c.complain("%d instances were not closed", w.c.opened)
	}
	return w.c.wrong
}

// owner is the node that serves, as far as it knows itself.
func (w *world) owner() *node {
	for _, n := range w.nodes {
		if v := n.volume(); v != nil && v.State() == Owner {
			return n
		}
	}
	return nil
}

// await waits until a gateway of which it is not said that it is stopped owns the volume.
func (w *world) await(limit time.Duration, is func(*node) bool) *node {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, n := range w.nodes {
			if v := n.volume(); v != nil && v.State() == Owner && is(n) {
				return n
			}
		}
	}
	w.t.Fatalf("no such owner within %v", limit)
	return nil
}

func anyNode(*node) bool { return true }

// disk is the Medium: blocks of numbers.
type disk struct{ w *world }

func (d *disk) Open(_ context.Context, inst Instance, term uint64) (Serving, error) {
	i := inst.(*modelInstance)
	if err := i.s.met("OpenData"); err != nil {
		return nil, err
	}
	return &serving{w: d.w, k: i.client, term: term, over: make(chan struct{})}, nil
}

type serving struct {
	w    *world
	k    *client
	term uint64
	over chan struct{}

	mu       sync.Mutex
	draining bool
	under    int
	none     chan struct{}
	unsure   bool
}

func (s *serving) Apply(_ context.Context, number uint64, _ []byte) error {
	if err := s.k.p.enter(); err != nil {
		return err
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.rules[s.k.addr] = number
	return nil
}

func (s *serving) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	none := make(chan struct{})
	s.none = none
	if s.under == 0 {
		close(none)
		s.none = nil
	}
	s.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsure {
		return errors.New("the end of a write is not known")
	}
	return s.k.p.enter()
}

func (s *serving) Abort() {
	s.k.p.enter()
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	close(s.over)
}

func (s *serving) write(ctx context.Context, block int, value uint64) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return errStandby
	}
	s.under++
	s.mu.Unlock()
	s.w.mu.Lock()
	has, answered := s.w.rules[s.k.addr], s.w.answered
	s.w.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {})
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.k.write(ctx, block, value, has, answered) }()
	var err error
	select {
	case err = <-done:
	case <-s.over:
		cancel()
		err = <-done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsure = s.unsure || errors.Is(err, ErrUnsure)
	if s.under--; s.under == 0 && s.none != nil {
		close(s.none)
		s.none = nil
	}
	return err
}

var (
	errStandby = errors.New("NOT READY, standby")
	errTimeout = errors.New("no answer")
	errDropped = errors.New("the session is gone")
)

// changedError is the unit attention of a new term: what was sent before it was read is refused.
type changedError struct{ term uint64 }

func (*changedError) Error() string { return "ASYMMETRIC ACCESS STATE CHANGED" }

// request carries do to a node's process and back, over a network that holds it while it is cut: it may be done long after the
// initiator has given up.
func (n *node) request(ctx context.Context, limit time.Duration, do func(p *process) error) error {
	p := n.process()
	if p == nil {
		return errDropped
	}
	answer := make(chan error, 1)
	go func() {
		select {
		case <-p.lan.way():
		case <-n.w.c.done:
			return
		}
		if p.enter() != nil {
			return
		}
		err := do(p)
		if p.enter() != nil {
			return
		}
		select {
		case <-p.lan.way():
			answer <- err
		case <-n.w.c.done:
		}
	}()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case err := <-answer:
		return err
	case <-p.dead: // its kernel resets the connection
		return errDropped
	case <-t.C:
		return errTimeout
	case <-ctx.Done():
		return ctx.Err()
	}
}

// login ends the initiator's older session, and waits for its tasks.
func (n *node) login(ctx context.Context, initiator string) (number int, err error) {
	numbers := make(chan int, 1)
	err = n.request(ctx, 2*time.Second, func(p *process) error {
		n.mu.Lock()
		if n.p != p {
			n.mu.Unlock()
			return errDropped
		}
		old := n.sessions[initiator]
		n.logins++
		s := &session{number: n.logins}
		n.sessions[initiator] = s
		n.tellSessionsLocked()
		n.mu.Unlock()
		if old != nil {
			old.tasks.Wait()
		}
		numbers <- s.number
		return nil
	})
	if err != nil {
		return 0, err
	}
	return <-numbers, nil
}

// write is a WRITE of an initiator that has heard of term.
func (n *node) write(ctx context.Context, initiator string, number int, term uint64, block int, value uint64) error {
	return n.request(ctx, time.Second, func(p *process) error {
		n.mu.Lock()
		s := n.sessions[initiator]
		if n.p != p || s == nil || s.number != number || s.lost {
			n.mu.Unlock()
			return errDropped
		}
		s.tasks.Add(1)
		v := n.v
		n.mu.Unlock()
		defer s.tasks.Done()
		now, is := v.Serving().(*serving)
		if !is {
			v.Asked(initiator)
			return errStandby
		}
		if now.term != term && n.w.mutant != noFence {
			return &changedError{now.term}
		}
		time.Sleep(time.Duration(n.w.c.rand(2000)) * time.Microsecond) // it may be stopped with the write in its hands
		if err := p.enter(); err != nil {
			return err
		}
		err := now.write(n.w.ctx, block, value)
		if errors.Is(err, ErrBlocklisted) {
			v.Lost(err)
		}
		return err
	})
}

// worker is an initiator that writes one block, each write after the last was acknowledged, by whatever path takes it.
func (w *world) worker(block int) {
	defer w.workers.Done()
	name := fmt.Sprintf("iqn.host,i,0x%d", block)
	at, value := 0, uint64(1)
	numbers := make([]int, len(w.nodes))
	terms := make([]uint64, len(w.nodes))
	last := time.Now()
	for w.ctx.Err() == nil {
		n := w.nodes[at]
		err := error(nil)
		if numbers[at] == 0 {
			numbers[at], err = n.login(w.ctx, name)
			terms[at] = 0
		}
		if err == nil {
			err = n.write(w.ctx, name, numbers[at], terms[at], block, value)
		}
		var changed *changedError
		switch {
		case err == nil:
			w.c.ack(block, value)
			w.mu.Lock()
			w.progress[block] = value
			w.pause = max(w.pause, time.Since(last))
			w.mu.Unlock()
			last = time.Now()
			value++
			time.Sleep(time.Duration(w.c.rand(30)) * time.Millisecond)
			continue
		case errors.As(err, &changed):
			terms[at] = changed.term
			continue
		case errors.Is(err, errStandby):
		default: // the session is in doubt
			numbers[at] = 0
		}
		at = (at + 1) % len(w.nodes)
		time.Sleep(time.Duration(20+w.c.rand(50)) * time.Millisecond)
	}
}

// judge demands that each owner that is not fenced has the change that was answered.
func (w *world) judge(number uint64) {
	listed := w.c.listed()
	for _, n := range w.nodes {
		v := n.volume()
		if v == nil {
			continue
		}
		s, is := v.Serving().(*serving)
		if !is || !listed[s.k.addr].IsZero() {
			continue
		}
		w.mu.Lock()
		has := w.rules[s.k.addr]
		w.mu.Unlock()
		if has < number {
			w.c.mu.Lock()
			w.c.complain("%v: reservations %d were answered, and %s serves by %d", time.Now(), number, n.name, has)
			w.c.mu.Unlock()
		}
	}
}

// changer changes the reservations at one gateway after another.
func (w *world) changer() {
	defer w.workers.Done()
	for w.ctx.Err() == nil {
		n := w.nodes[w.c.rand(len(w.nodes))]
		if v := n.volume(); v != nil {
			var number uint64
			ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
			err := v.ChangeReservations(ctx, func(old []byte) ([]byte, error) {
				number = uint64(len(old)) + 1
				return append(old, '.'), nil
			})
			cancel()
			if err == nil {
				w.mu.Lock()
				w.answered = max(w.answered, number)
				w.changes++
				w.mu.Unlock()
				w.judge(number)
			}
		}
		time.Sleep(time.Duration(w.c.rand(500)) * time.Millisecond)
	}
}

// work starts an initiator for each of so many blocks.
func (w *world) work(blocks int) {
	for b := range blocks {
		w.workers.Add(1)
		go w.worker(b)
	}
}

// written is how far each block is.
func (w *world) written() map[int]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := map[int]uint64{}
	for b, v := range w.progress {
		m[b] = v
	}
	return m
}
