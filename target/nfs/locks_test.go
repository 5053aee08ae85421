package nfs_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/internal/logging"
	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/nfs/lock"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// slowAnswers keeps the answers of one procedure until the gate opens. The call itself has been executed then.
type slowAnswers struct {
	rpcserver.Program
	proc    atomic.Uint32
	entered chan struct{}
	gate    chan struct{}
}

func (p *slowAnswers) Serve(c *rpcserver.Call) rpcserver.Verdict {
	v := p.Program.Serve(c)
	if c.Worker && c.Proc == p.proc.Load() && v != rpcserver.Again {
		select {
		case <-p.gate:
		default:
			p.entered <- struct{}{}
			<-p.gate
		}
	}
	return v
}

// life is the lock manager of the server's life at hand.
type life struct {
	now atomic.Pointer[rpcserver.Program]
}

func (l *life) ID() uint32                                 { return (*l.now.Load()).ID() }
func (l *life) Versions() (low, high uint32)               { return (*l.now.Load()).Versions() }
func (l *life) Serve(c *rpcserver.Call) rpcserver.Verdict  { return (*l.now.Load()).Serve(c) }
func (l *life) Classify(c *rpcserver.Call) rpcserver.Class { return (*l.now.Load()).Classify(c) }
func (l *life) Keeps(vers, proc uint32) bool               { return (*l.now.Load()).Keeps(vers, proc) }

// lockStand is a file with two clients of its lock manager, which answers one procedure late.
type lockStand struct {
	m           *lock.Manager
	files       *nfs.Server
	state       string
	life        life
	slow        *slowAnswers
	first, next *infs.Locks
	fh          []byte
}

func newLockStand(t *testing.T, proc uint32) *lockStand {
	t.Helper()
	s := &lockStand{slow: &slowAnswers{entered: make(chan struct{}, 100), gate: make(chan struct{})}}
	s.slow.proc.Store(proc)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
	var err error
	s.files, err = nfs.NewServer(nfs.Options{}, nfs.Export{Path: "/data", Dir: dir, Rights: open, Async: true})
	must(t, err)
	s.state = t.TempDir()
	s.begin(t, time.Nanosecond)
	s.slow.Program = &s.life
	programs := append(s.files.Programs(), s.slow)
	for _, p := range s.m.Programs() {
		if p.ID() != nlm4.Prog {
			programs = append(programs, p)
		}
	}
	srv := rpcserver.NewServer(rpcserver.Options{}, programs...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	go func() { _ = srv.ServeTCP(l) }()
	port := itoa(netip.MustParseAddrPort(l.Addr().String()).Port())
	t.Cleanup(func() {
		must(t, srv.Close(ctxOf(t)))
		must(t, s.m.Close())
		must(t, s.files.Close())
	})
	for i, name := range []string{"first", "next"} {
		v, _, err := infs.Mount(ctxOf(t), "nfs://127.0.0.1:"+port+"/data?mountport="+port, infs.Options{})
		must(t, err)
		c, err := v.Locks(ctxOf(t), name, logging.FromZap(zaptest.NewLogger(t)))
		must(t, err)
		t.Cleanup(func() {
			must(t, c.Close())
			must(t, v.Close())
		})
		if i == 0 {
			s.first = c
			o, err := v.Self().Lookup(ctxOf(t), v.Root(), "f")
			must(t, err)
			s.fh = o.FH
		} else {
			s.next = c
		}
	}
	return s
}

// begin is the beginning of a life of the lock manager.
func (s *lockStand) begin(t *testing.T, grace time.Duration) {
	t.Helper()
	var err error
	s.m, err = lock.NewManager(lock.Options{StateDir: s.state, Grace: grace,
		Call: func(context.Context, netip.Addr, netip.Addr, uint32, uint32, uint32, []byte) ([]byte, error) {
			return nil, net.ErrClosed
		}}, s.files)
	must(t, err)
	for _, p := range s.m.Programs() {
		if p.ID() == nlm4.Prog {
			s.life.now.Store(&p)
		}
	}
}

// free waits until another client can have the range.
func (s *lockStand) free(t *testing.T, r infs.LockRange) {
	t.Helper()
	must(t, s.next.Lock(ctxOf(t), s.fh, infs.LockOwner{ID: 9}, r, true))
	must(t, s.next.Unlock(ctxOf(t), s.fh, infs.LockOwner{ID: 9}, r))
}

// A caller that goes away before the server has answered leaves no lock that nobody knows of, and what it held before
// stays its own.
func TestALockThatIsGivenUpIsNobodys(t *testing.T) {
	s := newLockStand(t, nlm4.ProcLock)
	me, all := infs.LockOwner{ID: 1}, infs.LockRange{Start: 0, End: 99, Exclusive: true}
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- s.first.Lock(ctx, s.fh, me, all, true) }()
	<-s.slow.entered // granted, and not answered
	if s.m.Locks() != 1 {
		t.Errorf("%d locks: the test does not try what it means to", s.m.Locks())
	}
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(s.slow.gate)
	s.free(t, all)
}

func TestALockThatIsGivenUpTakesNoOtherWithIt(t *testing.T) {
	s := newLockStand(t, nlm4.ProcTest) // nothing is slow yet
	me, all := infs.LockOwner{ID: 1}, infs.LockRange{Start: 0, End: 99, Exclusive: true}
	must(t, s.first.Lock(ctxOf(t), s.fh, me, infs.LockRange{Start: 10, End: 19, Exclusive: true}, false))
	s.slow.proc.Store(nlm4.ProcLock)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- s.first.Lock(ctx, s.fh, me, all, true) }()
	<-s.slow.entered
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(s.slow.gate)
	s.free(t, infs.LockRange{Start: 20, End: 99, Exclusive: true})
	s.free(t, infs.LockRange{Start: 0, End: 9, Exclusive: true})
	// The next call of this owner comes after what was in doubt is settled.
	must(t, s.first.Lock(ctxOf(t), s.fh, me, infs.LockRange{Start: 200, End: 200}, false))
	if err := s.next.Lock(ctxOf(t), s.fh, infs.LockOwner{ID: 9}, infs.LockRange{Start: 10, End: 19}, false); !errors.Is(err, infs.ErrLocked) {
		t.Errorf("the lock that was held before: %v", err)
	}
}

func TestAnUnlockThatIsGivenUpIsDone(t *testing.T) {
	s := newLockStand(t, nlm4.ProcTest)
	me, all := infs.LockOwner{ID: 1}, infs.LockRange{Start: 0, End: 99, Exclusive: true}
	must(t, s.first.Lock(ctxOf(t), s.fh, me, all, false))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.first.Unlock(ctx, s.fh, me, all); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s.free(t, all)
}

// A call that is given up while another of its owner is under way, answered late, takes nothing of what that one gets.
func TestACallThatIsGivenUpTakesNothingOfOneBesideIt(t *testing.T) {
	s := newLockStand(t, nlm4.ProcLock)
	me, part, all := infs.LockOwner{ID: 1}, infs.LockRange{Start: 0, End: 9, Exclusive: true}, infs.LockRange{Start: 0, End: 99, Exclusive: true}
	got, other := make(chan error, 1), make(chan error, 1)
	go func() { got <- s.first.Lock(ctxOf(t), s.fh, me, part, false) }()
	<-s.slow.entered // granted, and not answered
	ctx, cancel := context.WithCancel(context.Background())
	go func() { other <- s.first.Lock(ctx, s.fh, me, all, false) }()
	meanwhile := func(done func() bool) { // time for what must not happen
		for end := time.Now().Add(100 * time.Millisecond); !done() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	meanwhile(func() bool { return len(s.slow.entered) > 0 })
	cancel()
	if err := <-other; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	meanwhile(func() bool { return s.m.Locks() == 0 })
	close(s.slow.gate)
	must(t, <-got)
	must(t, s.first.Lock(ctxOf(t), s.fh, me, infs.LockRange{Start: 200, End: 200}, false)) // after what is in doubt
	if err := s.next.Lock(ctxOf(t), s.fh, infs.LockOwner{ID: 9}, part, false); !errors.Is(err, infs.ErrLocked) {
		t.Errorf("a lock that was granted is not held: %v", err)
	}
	s.free(t, infs.LockRange{Start: 10, End: 99, Exclusive: true})
	must(t, s.first.Unlock(ctxOf(t), s.fh, me, all))
	s.free(t, all)
}

// What an owner held when a call of its own was given up it takes again in the server's grace period, not after it: another client
// would have it first, and what is reclaimed after it would wait too long.
func TestALockInDoubtIsReclaimedInGrace(t *testing.T) {
	s := newLockStand(t, nlm4.ProcTest) // nothing is slow yet
	me, all := infs.LockOwner{ID: 1}, infs.LockRange{Start: 0, End: 99, Exclusive: true}
	must(t, s.first.Lock(ctxOf(t), s.fh, me, infs.LockRange{Start: 10, End: 19, Exclusive: true}, false))
	must(t, s.m.Close())
	s.begin(t, time.Hour)
	if !s.m.InGrace() {
		t.Fatal("no grace: the test does not try what it means to")
	}
	s.slow.proc.Store(nlm4.ProcLock)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- s.first.Lock(ctx, s.fh, me, all, true) }()
	<-s.slow.entered
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(s.slow.gate)
	within, cancel := context.WithTimeout(ctxOf(t), 30*time.Second)
	defer cancel()
	if err := s.first.Unlock(within, s.fh, me, infs.LockRange{Start: 200, End: 200}); err != nil { // after what is in doubt
		t.Fatalf("the next call of the owner: %v", err)
	}
	if n := s.m.Locks(); n != 1 {
		t.Errorf("%d locks are held in grace", n)
	}
}
