package iscsi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sort"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/iscsi/isns"
	"github.com/sluice-storage/sluice/transport"
)

// Server serves targets on any number of portals. All methods may be called by any goroutine.
type Server struct {
	opt  Options
	logs *peerLogs

	mu       sync.Mutex
	closed   bool
	targets  map[string]*targetEntry
	conns    map[*conn]struct{}
	open     int            // connections that count: one that makes room does not any more
	hosts    map[string]int // of them, by host
	logins   []*conn        // unfinished, oldest first
	sessions map[uint16]*session
	past     []Trace // of sessions that ended last
	counts   Counts
	byName   map[sessionKey]*session
	lastTSIH uint16
	portals  []*portalEntry
	isns     []*isns.Client
	wg       sync.WaitGroup
	changed  chan struct{} // closed and replaced when a connection or session has gone

	knownMu sync.Mutex
	known   map[transport.Device]bool // that the memory is registered with
}

type targetEntry struct{ Target }

type portalEntry struct {
	Portal
	addr net.Addr
	stop func()
}

// sessionKey is the I_T nexus of RFC 7143 section 4.4.3.1.
type sessionKey struct {
	initiator string
	isid      iscsi.ISID
	target    string
	group     uint16
}

// NewServer returns a server without targets and portals.
func NewServer(o Options) (*Server, error) {
	if o.Memory == nil {
		return nil, errors.New("iscsi: a server needs a memory pool")
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Audit == nil {
		o.Audit = o.Log
	}
	o.Limits.fill()
	o.Timeouts.fill()
	s := &Server{opt: o, logs: newPeerLogs(o.Log, o.Audit), counts: Counts{Refused: map[string]uint64{}, Ended: map[string]uint64{}}, targets: map[string]*targetEntry{}, conns: map[*conn]struct{}{}, hosts: map[string]int{}, known: map[transport.Device]bool{},
		sessions: map[uint16]*session{}, byName: map[sessionKey]*session{}, changed: make(chan struct{})}
	if o.Device != nil {
		if err := s.register(o.Device); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// register makes the pool's memory known to a device, once. Whoever comes meanwhile waits: what is served before would name memory
// that the device does not know.
func (s *Server) register(d transport.Device) error {
	s.knownMu.Lock()
	defer s.knownMu.Unlock()
	if s.known[d] {
		return nil
	}
	if err := s.opt.Memory.OnSlab(d); err != nil {
		return fmt.Errorf("iscsi: register memory with %s: %w", d.Name(), err)
	}
	s.known[d] = true
	return nil
}

// AddTarget makes a target known to discovery and logins.
func (s *Server) AddTarget(t Target) error {
	if err := t.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.targets[t.Name] != nil {
		return ErrTargetKnown
	}
	s.targets[t.Name] = &targetEntry{t}
	s.tellISNSLocked()
	return nil
}

// UpdateTarget replaces authentication, access list, alias and redirection of a target. Sessions of initiators that may no
// longer log in end; what others see follows their new entry.
func (s *Server) UpdateTarget(t Target) error {
	if err := t.check(); err != nil {
		return err
	}
	s.mu.Lock()
	old := s.targets[t.Name]
	if old == nil {
		s.mu.Unlock()
		return ErrNoTarget
	}
	// Sessions keep the entry they logged in with; visibility asks the server.
	s.targets[t.Name] = &targetEntry{t}
	s.tellISNSLocked()
	var drop []*conn
	for _, ss := range s.sessions {
		if ss.target != nil && ss.target.Name == t.Name {
			if _, ok := t.allow(ss.initiator); !ok || t.SCSI != old.SCSI {
				drop = append(drop, ss.conn)
			}
		}
	}
	s.mu.Unlock()
	for _, c := range drop {
		c.kill(errRemoved)
	}
	if t.SCSI != nil {
		t.SCSI.RefreshVisible()
	}
	return nil
}

// RemoveTarget takes a target away and ends its sessions; it returns when their last command has ended.
func (s *Server) RemoveTarget(ctx context.Context, name string) error {
	s.mu.Lock()
	t := s.targets[name]
	if t == nil {
		s.mu.Unlock()
		return ErrNoTarget
	}
	delete(s.targets, name)
	s.tellISNSLocked()
	s.mu.Unlock()
	s.dropTarget(t, func(*session) bool { return true }, errRemoved)
	return s.wait(ctx, func() bool {
		for _, ss := range s.sessions {
			if ss.target != nil && ss.target.Name == name {
				return false
			}
		}
		return true
	})
}

// dropTarget ends the sessions of a target that which accepts.
func (s *Server) dropTarget(t *targetEntry, which func(*session) bool, why error) {
	s.mu.Lock()
	var drop []*conn
	for _, ss := range s.sessions {
		if ss.target != nil && t != nil && ss.target.Name == t.Name && which(ss) {
			drop = append(drop, ss.conn)
		}
	}
	s.mu.Unlock()
	for _, c := range drop {
		c.kill(why)
	}
}

// coldReset ends the other sessions of a target after a TARGET COLD RESET by c (RFC 7143 section 11.5.1): those of initiators that
// are shown a logical unit that c's is shown. A host does nothing to units that are hidden from it.
func (s *Server) coldReset(c *conn) {
	if c.target.SCSI == nil {
		return
	}
	luns := c.target.SCSI.LUNs()
	s.dropTarget(c.target, func(ss *session) bool {
		t := s.targets[ss.target.Name]
		return ss.conn != c && t != nil && slices.ContainsFunc(luns, func(l uint16) bool { return t.shows(c.initiator, l) && t.shows(ss.initiator, l) })
	}, errReset)
}

func (s *Server) wait(ctx context.Context, done func() bool) error {
	for {
		s.mu.Lock()
		if done() {
			s.mu.Unlock()
			return nil
		}
		ch := s.changed
		s.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Server) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// visible says whether an initiator sees a LUN, by the access list as it is now.
func (s *Server) visible(target, initiator string, lun uint16) bool {
	s.mu.Lock()
	t := s.targets[target]
	s.mu.Unlock()
	return t != nil && t.shows(initiator, lun)
}

func (s *Server) target(name string) *targetEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.targets[name]
}

// Targets lists the names of the targets, sorted.
func (s *Server) Targets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l []string
	for n := range s.targets {
		l = append(l, n)
	}
	sort.Strings(l)
	return l
}

// Serve accepts connections of both transports from l until the context ends or Close; it closes l. It returns nil then
// and the listener's error otherwise.
func (s *Server) Serve(ctx context.Context, l net.Listener, p Portal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := &portalEntry{Portal: p, addr: l.Addr(), stop: cancel}
	if err := s.addPortal(e); err != nil {
		_ = l.Close()
		return err
	}
	defer s.removePortal(e)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		nc, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() || isTooManyFiles(err) {
				s.opt.Log.Warn("accept failed; is the limit on open files too low?", zap.Error(err))
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
				continue
			}
			return err
		}
		s.accept(ctx, nc, s.portal(e))
	}
}

// accept runs one connection of a byte-stream listener.
func (s *Server) accept(ctx context.Context, nc net.Conn, p Portal) {
	c := s.newConn(ctx, nc.LocalAddr(), nc.RemoteAddr(), p)
	x := newTCPDatamover(c, nc)
	c.datamover = x
	if !s.admit(c) {
		_ = nc.Close()
		c.cancel()
		return
	}
	go func() {
		defer s.wg.Done()
		x.run()
	}()
}

// ServeRDMA accepts iSER connections from a fabric's listener until the context ends or Close; it closes l.
func (s *Server) ServeRDMA(ctx context.Context, d transport.Device, l transport.Listener, p Portal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.register(d); err != nil {
		_ = l.Close()
		return err
	}
	e := &portalEntry{Portal: p, addr: l.Addr(), stop: cancel}
	if err := s.addPortal(e); err != nil {
		_ = l.Close()
		return err
	}
	defer s.removePortal(e)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		peer := r.Peer()
		c := s.newConn(ctx, peer.Local, peer.Remote, s.portal(e))
		x := newISERDatamover(c, d)
		c.datamover = x
		if !s.admit(c) {
			_ = r.Reject(nil)
			c.cancel()
			continue
		}
		go func() {
			defer s.wg.Done()
			x.run(r)
		}()
	}
}

func (s *Server) addPortal(e *portalEntry) error {
	if e.Group == 0 {
		return errors.New("iscsi: a portal needs a group tag from 1 to 65535")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.portals = append(s.portals, e)
	s.tellISNSLocked()
	s.changedLocked()
	s.wg.Add(1)
	return nil
}

// portal is what a new connection of a listener comes by.
func (s *Server) portal(e *portalEntry) Portal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.Portal
}

// UpdatePortal gives the portal that listens on addr another group or address to advertise, and waits for one whose Serve has only
// just been called. Sessions keep the group that they logged in by; discovery, new logins and the iSNS server learn of the new one.
func (s *Server) UpdatePortal(ctx context.Context, addr net.Addr, p Portal) error {
	if p.Group == 0 {
		return errors.New("iscsi: a portal needs a group tag from 1 to 65535")
	}
	found := false
	err := s.wait(ctx, func() bool {
		for _, e := range s.portals {
			if e.addr.String() == addr.String() || e.Beside != nil && e.Beside.String() == addr.String() {
				beside := e.Beside
				e.Portal, found = p, true
				e.Beside = beside
				s.tellISNSLocked()
			}
		}
		return found || s.closed
	})
	switch {
	case err != nil:
		return fmt.Errorf("iscsi: no portal listens on %s: %w", addr, err)
	case !found:
		return ErrClosed
	}
	return nil
}

func (s *Server) removePortal(e *portalEntry) {
	s.mu.Lock()
	for i, o := range s.portals {
		if o == e {
			s.portals = append(s.portals[:i], s.portals[i+1:]...)
			break
		}
	}
	s.tellISNSLocked()
	s.mu.Unlock()
	s.wg.Done()
}

func (s *Server) newConn(ctx context.Context, local, remote net.Addr, p Portal) *conn {
	c := &conn{srv: s, portal: p, local: local, remote: remote, plog: s.logs.of(remote), began: time.Now(), statSN: 1}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.rec.note("connection from %s to %s", remote, local)
	return c
}

// Close stops accepting, asks every initiator to leave (RFC 7143 section 11.9.1, event 1), waits until their tasks have
// ended and they are gone, for Timeouts.Drain or until the context ends, and then cuts. It returns when nothing of the
// server runs any more, with an error only if commands are still with a medium that does not answer.
func (s *Server) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opt.Timeouts.Drain)
	defer cancel()
	s.mu.Lock()
	s.closed = true
	for _, p := range s.portals {
		p.stop()
	}
	var logins, full []*conn
	logins = append(logins, s.logins...)
	for _, ss := range s.sessions {
		full = append(full, ss.conn)
	}
	s.mu.Unlock()
	for _, c := range logins {
		c.kill(errDown)
	}
	for _, c := range full {
		c.askToLeave(s.opt.Timeouts.Drain)
	}
	gone := func() bool { return len(s.sessions) == 0 && len(s.conns) == 0 }
	err := s.wait(ctx, gone)
	if err != nil {
		s.mu.Lock()
		var rest []*conn
		for c := range s.conns {
			rest = append(rest, c)
		}
		s.mu.Unlock()
		for _, c := range rest {
			c.kill(errDown)
		}
		// What is on its way to the medium comes back, unless the medium hangs: nobody can wait for that for ever.
		last, stop := context.WithTimeout(context.WithoutCancel(ctx), s.opt.Timeouts.Drain)
		defer stop()
		if err = s.wait(last, gone); err != nil {
			err = fmt.Errorf("iscsi: commands are still with the medium: %w", err)
		}
	}
	s.wg.Wait()
	return err
}

// askToLeave sends the request for logout and ends the connection some time after its last task.
func (c *conn) askToLeave(drain time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != stateFull {
		return
	}
	secs := uint16(max(1, min(drain/time.Second, 600)))
	c.asyncLocked(iscsi.Async{Event: iscsi.AsyncLogout, Param3: secs}, nil)
	c.kickLocked()
	// Initiators that know the event log out at once; the others get a moment after their last command.
	grace := func() {
		t := time.AfterFunc(min(drain/4, time.Second), func() { c.kill(errDown) })
		context.AfterFunc(c.ctx, func() { t.Stop() })
	}
	if c.live == 0 {
		grace()
	} else {
		c.drained = grace
	}
}

func (s *Server) background() context.Context { return context.Background() }
