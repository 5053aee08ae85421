package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/defect"
	"github.com/sluice-storage/sluice/internal/oncrpc"
)

// ErrServerClosed is what the Serve methods return after Close.
var ErrServerClosed = errors.New("rpc: the server is closed")

// Options configure a Server. The zero value works.
type Options struct {
	Log     *zap.Logger
	Workers int // goroutines that may block in programs, 0 for a default
	// NoInline makes every call go through a worker: the slow twin of the fast path.
	NoInline bool
	// NoLoan has results read into memory, whatever their size: the slow twin of sending pages.
	NoLoan bool
	// KeepPacing leaves connections within this host the congestion control that the host has, even one that paces.
	KeepPacing bool
	RDMA       RDMAOptions
}

// Server serves programs on any number of listeners. Its methods may be called by any goroutine.
type Server struct {
	opt   Options
	log   *zap.Logger
	progs map[uint32]Program
	pool  pool
	cache replyCache

	calls, streamCalls sync.Pool // *Call of RDMA connections, *streamCall

	mu      sync.Mutex
	closed  bool
	closers map[io.Closer]struct{}
	conns   int
	born    uint64 // of the newest connection
	hosts   map[netip.Addr]*host
	trusted map[client]time.Time // who had a connection that was trusted, and until when that counts
	watched bool
	wg      sync.WaitGroup
	watch   sync.WaitGroup
	ending  chan struct{} // closed by Close
	bulk    bulk
	stats   counters

	room, strangers room  // of requests: of all streams, and of those whose peers have shown no right
	results         room  // of all streams
	hostFabric      int64 // registered memory for one host, bytes

	splice func(from int, to uintptr, n int, more bool) (int, syscall.Errno) // spliceOut, but in tests
}

// NewServer returns a server of programs.
func NewServer(opt Options, programs ...Program) *Server {
	s := &Server{opt: opt, log: opt.Log, progs: make(map[uint32]Program), closers: make(map[io.Closer]struct{}),
		hosts: make(map[netip.Addr]*host), trusted: make(map[client]time.Time), ending: make(chan struct{}), splice: spliceOut}
	s.room.max, s.strangers.max, s.results.max = maxRequests, maxRequests/2, maxResults
	s.hostFabric = max(opt.RDMA.withDefaults().Memory/2, minHostFabric)
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if opt.Workers <= 0 {
		s.opt.Workers = maxWorkers
	}
	for _, p := range programs {
		s.progs[p.ID()] = p
	}
	s.pool.init(s, s.opt.Workers)
	s.cache.init()
	return s
}

// Programs are the programs served.
func (s *Server) Programs() []Program {
	l := make([]Program, 0, len(s.progs))
	for _, p := range s.progs {
		l = append(l, p)
	}
	return l
}

// Close ends all listeners and connections and waits for the calls in progress, or for the context.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.ending)
	}
	for c := range s.closers {
		_ = c.Close() // what a listener or socket says to being closed changes nothing
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		s.watch.Wait()
		s.pool.close()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("rpc: calls are still in progress: %w", ctx.Err())
	}
}

// track makes Close close a listener and wait for the matching untrack. It reports false when the server is closed.
func (s *Server) track(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.closers[c] = struct{}{}
	s.wg.Add(1)
	return true
}

func (s *Server) untrack(c io.Closer) {
	s.mu.Lock()
	delete(s.closers, c)
	s.mu.Unlock()
	s.wg.Done()
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// newCall returns a call that arrives at an RDMA connection's slot.
func (s *Server) newCall(from carrier, peer *Peer) *Call {
	c, ok := s.calls.Get().(*Call)
	if !ok {
		c = &Call{server: s}
		c.recycle = func() { s.calls.Put(c) }
	}
	c.begin(from, peer)
	return c
}

// header parses the header of the message and prepares the reply. It reports true when the call can be executed, and
// otherwise has built a refusal, or an error that means that this is no call at all.
func (s *Server) header(c *Call) (bool, error) {
	args := c.Args.reader()
	args.Reset(c.msg)
	var h oncrpc.Call
	err := h.Parse(args)
	if c.take(&h); err != nil {
		return false, s.noCall(c, err)
	}
	c.start = args.Offset()
	c.Out = oncrpc.AppendReply(c.Out[:0], c.XID, oncrpc.Success)
	p := s.progs[c.Prog]
	if p == nil {
		c.Fail(ProgUnavail)
		return false, nil
	}
	if low, high := p.Versions(); c.Vers < low || c.Vers > high {
		s.refuse(refProgramVersion)
		c.Out = oncrpc.AppendMismatch(c.Out[:0], c.XID, low, high)
		return false, nil
	}
	switch c.Cred.Flavor {
	case oncrpc.AuthNone:
	case oncrpc.AuthSys:
		if (*oncrpc.Sys)(&c.Sys).Parse(c.Cred.Body) != nil {
			s.refuse(refCredentials)
			c.Out = oncrpc.AppendAuthError(c.Out[:0], c.XID, oncrpc.AuthBadCred)
			return false, nil
		}
		if !c.Peer.mayBe(&c.Sys) {
			s.refuse(refCredentials)
			c.Out = oncrpc.AppendAuthError(c.Out[:0], c.XID, oncrpc.AuthTooWeak)
			return false, nil
		}
	default:
		// RFC 5531 section 9: a flavor that is not served is refused, so that the client can try another.
		s.refuse(refCredentials)
		c.Out = oncrpc.AppendAuthError(c.Out[:0], c.XID, oncrpc.AuthTooWeak)
		return false, nil
	}
	c.prog = p
	// RFC 5531 section 12.1: procedure 0 takes and gives nothing, and is never authenticated further.
	return c.Proc != 0, nil
}

// noCall builds the refusal of a call of another version of RPC; what is no call at all stays an error.
func (s *Server) noCall(c *Call, err error) error {
	var ve *oncrpc.VersionError
	if errors.As(err, &ve) {
		s.refuse(refVersion)
		c.Out = oncrpc.AppendVersionMismatch(c.Out[:0], c.XID)
		return nil
	}
	s.refuse(refNoCall)
	return fmt.Errorf("rpc: a peer sends what is no RPC call: %w", err)
}

// run executes a call that parse has classed, in the place that its life names.
//
// A panic in a program ends the call's connection: what is the connection's own goes with it, and its client repeats the
// call on another. A panic with defect.Spoiled ends the process.
func (s *Server) run(c *Call) (v Verdict, err error) {
	c.Worker = c.life != lifeInline
	if s.claimed(c) {
		s.refuse(refRepeated)
		return Drop, errRepeated
	}
	if c.cached == nil && c.prog.Keeps(c.Vers, c.Proc) {
		switch e, state := s.cache.begin(c); state {
		case cacheBusy:
			return Drop, nil // the first one is about to be answered
		case cacheHit:
			lives.Move(&c.life, lifeAnswered)
			s.stats.replays.Add(1)
			return Done, nil
		case cacheNew:
			c.cached = e
		}
	}
	defer func() {
		if p := recover(); p != nil {
			err = s.defect(c, p)
			v = Drop
			c.dropSink()
		}
		switch v {
		case Done:
			lives.Move(&c.life, lifeAnswered)
		case Again, Later:
			c.Args.reader().Reset(c.msg)
			c.Args.Fixed(c.parsed)
			c.Restart()
			if v == Later {
				lives.Move(&c.life, lifeWaiting)
			}
		}
		if c.cached != nil && v != Again && v != Later {
			s.cache.end(c.cached, c.Out, v == Done && c.payload < 0 && c.Peer.trusted() && c.succeeded())
			c.cached = nil
		}
	}()
	s.stats.calls.Add(1)
	if v = c.prog.Serve(c); v == Drop && c.life == lifeOvertaken {
		s.refuse(refRepeated)
		err = errRepeated
	}
	return v, err
}

// errDefect is why a connection ends in whose call this program has a defect.
var errDefect = errors.New("rpc: a call of this connection met a defect of this program; the log has the place")

// defect is told what a call or its parsing has panicked with.
func (s *Server) defect(c *Call, p any) error {
	if _, is := p.(defect.Spoiled); is {
		panic(p)
	}
	s.refuse(refSystem)
	s.log.Error("a defect of this program ends a connection", zap.Any("panic", p), zap.Stringer("peer", c.Peer.Addr), zap.Uint32("prog", c.Prog),
		zap.Uint32("proc", c.Proc), zap.Stack("stack"))
	return errDefect
}

// parse takes the header and the arguments of a call, and classes it; a panic is an error. It reports false for a call whose reply is there
// already.
func (s *Server) parse(c *Call) (ok bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			ok, err = false, s.defect(c, p)
		}
	}()
	if ok, err = s.header(c); ok {
		c.class = c.prog.Classify(c)
		c.parsed = c.Args.reader().Offset()
		ok = c.class != Answered
	}
	if !ok && err == nil {
		lives.Move(&c.life, lifeAnswered)
	}
	return ok, err
}

// screen asks a program about a call whose argument is not here yet.
func (s *Server) screen(c *Call, p Screener) (v Verdict, err error) {
	defer func() {
		if p := recover(); p != nil {
			v, err = Drop, s.defect(c, p)
		}
	}()
	c.Worker = true
	if v = p.Screen(c); v == Done {
		lives.Move(&c.life, lifeAnswered)
	}
	return v, nil
}

// handle takes a call whose message is complete through to its reply, or to those who execute it. It reports whether a reply
// was queued without a flush. An error means that the connection carries something else than calls.
func (s *Server) handle(c *Call, at turn, flush bool) (queued bool, err error) {
	if c.class == unclassed { // or else it was screened
		ok, err := s.parse(c)
		if err != nil {
			c.from.drop()
			return false, err
		}
		if !ok {
			c.from.reply(flush)
			return true, nil
		}
	}
	s.claim(c)
	class := c.class
	if s.opt.NoInline {
		class = Worker
	}
	v := Again
	switch {
	case class == Inline:
		lives.Move(&c.life, lifeInline)
		v, err = s.run(c)
	case class == Brief && at == turnOwner:
		lives.Move(&c.life, lifeOwner)
		v, err = s.run(c)
	case class == Brief && c.from.brief(at):
		return false, nil
	}
	if v == Again {
		s.giveWorker(c)
		return false, nil
	}
	c.from.finish(v, err, flush)
	return v == Done, err
}

// giveWorker queues a call for a worker.
func (s *Server) giveWorker(c *Call) {
	lives.Move(&c.life, lifeWorker)
	s.pool.submit(c)
}
