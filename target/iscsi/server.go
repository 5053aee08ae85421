package iscsi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/changes"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/iscsi/isns"
	"github.com/sluice-storage/sluice/target/peerlog"
	"github.com/sluice-storage/sluice/transport"
)

// Server serves targets on any number of portals. All methods may be called by any goroutine.
type Server struct {
	opt  Options
	logs *peerlog.Logs

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
	changed  *changes.Bell // rings when a connection or session has gone
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
	s := &Server{opt: o, logs: peerlog.New(o.Log, o.Audit), counts: Counts{Refused: map[string]uint64{}, Ended: map[string]uint64{}}, targets: map[string]*targetEntry{}, conns: map[*conn]struct{}{}, hosts: map[string]int{},
		sessions: map[uint16]*session{}, byName: map[sessionKey]*session{}}
	s.changed = changes.NewBell(&s.mu)
	if o.Device != nil {
		if err := s.register(o.Device); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// register makes the pool's memory known to a device, once. Other callers wait meanwhile, because what is served before
// would name memory that the device does not know.
func (s *Server) register(d transport.Device) error {
	if err := s.opt.Memory.OnSlab(d); err != nil {
		return fmt.Errorf("iscsi: register memory with %s: %w", d.Name(), err)
	}
	return nil
}

// Close stops accepting and asks every initiator to leave (RFC 7143 section 11.9.1, event 1). It waits for
// Timeouts.Drain, or until the context ends, until their tasks have ended and they are gone, and then cuts. It returns
// when nothing of the server runs any more. It fails only if commands are still with a medium that does not answer.
func (s *Server) Close(ctx context.Context) error {
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
	err := s.changed.Drain(ctx, s.opt.Timeouts.Drain, gone, func() {
		s.mu.Lock()
		rest := slices.Collect(maps.Keys(s.conns))
		s.mu.Unlock()
		for _, c := range rest {
			c.kill(errDown)
		}
	})
	if err != nil {
		err = fmt.Errorf("iscsi: commands are still with the medium: %w", err)
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
