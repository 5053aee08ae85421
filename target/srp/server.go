package srp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/sluice-storage/sluice/internal/changes"
	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/target/peerlog"
	"github.com/sluice-storage/sluice/transport"
)

// Errors of the administrative calls.
var (
	ErrClosed    = errors.New("srp: the server is closed")
	ErrNoSession = errors.New("srp: no session of that handle")
)

// Server serves targets on any number of portals. All methods may be called by any goroutine.
type Server struct {
	opt  Options
	logs *peerlog.Logs

	mu       sync.Mutex
	closed   bool
	portals  map[*context.CancelFunc]struct{}
	channels map[*channel]struct{}
	all      use
	hosts    map[string]use
	sessions map[sessionKey]*session
	lastID   uint32
	judged   uint64 // times that what logins get has changed, so that Find is to be asked again
	past     []past // of channels that ended last, oldest first
	counts   Counts
	changed  *changes.Bell // rings when a session or channel has changed
	wg       sync.WaitGroup
}

// use is what channels take.
type use struct {
	channels int
	bytes    int64 // of receives
}

// Counts are what happened since the server was made.
type Counts struct {
	Logins  uint64            // channels that were accepted
	Refused map[string]uint64 // logins refused, by reason code in hexadecimal
	Ended   map[string]uint64 // sessions ended, by reason
}

// NewServer returns a server without portals.
func NewServer(o Options) (*Server, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	s := &Server{opt: o, logs: peerlog.New(o.Log, o.Audit), portals: map[*context.CancelFunc]struct{}{}, channels: map[*channel]struct{}{}, hosts: map[string]use{},
		sessions: map[sessionKey]*session{}, counts: Counts{Refused: map[string]uint64{}, Ended: map[string]uint64{}}}
	s.changed = changes.NewBell(&s.mu)
	return s, nil
}

// Serve accepts channels from a fabric's listener until the context ends or Close; it closes l. group is the relative target port identifier of the ports
// that new channels come in by, 1 to 65535, and a part of their TargetPort. No portal of another protocol has it.
func (s *Server) Serve(ctx context.Context, d transport.Device, l transport.Listener, group func() uint16) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() {
		cancel()
		stop()
		_ = l.Close()
	}()
	if err := s.opt.Memory.OnSlab(d); err != nil {
		return fmt.Errorf("srp: register memory with %s: %w", d.Name(), err)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.portals[&cancel] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.portals, &cancel)
		s.mu.Unlock()
		s.wg.Done()
	}()
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		c := s.newChannel(ctx, d, r, group())
		if err := s.admit(c); err != nil {
			c.refuse(r, err)
			c.cancel()
			continue
		}
		go func() {
			defer s.wg.Done()
			c.run(r)
		}()
	}
}

// newChannel is a channel whose connection request is not answered yet. It outlives the portal's listener.
func (s *Server) newChannel(ctx context.Context, d transport.Device, r transport.Request, group uint16) *channel {
	p := r.Peer()
	c := &channel{srv: s, dev: d, caps: d.Caps(), group: group, peer: p, host: peerlog.Host(p.Remote), plog: s.logs.Of(p.Remote)}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.owner.Init(c, &c.mu, nil)
	c.rec.Note("connection from %s to %s", p.Remote, p.Local)
	return c
}

// admit counts a channel in.
func (s *Server) admit(c *channel) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.all.channels >= s.opt.Connections:
		return refusal(wire.RejResources, "too many channels are open; raise limits.connections, which is %d", s.opt.Connections)
	case s.hosts[c.host].channels >= s.opt.PerHost:
		return refusal(wire.RejResources, "its host has too many channels open; raise limits.per_host, which is %d", s.opt.PerHost)
	}
	s.channels[c] = struct{}{}
	s.useLocked(c.host, 1, 0)
	s.wg.Add(1)
	return nil
}

// reserve counts the receives of a channel in, before there is memory for them. Each host that
// reaches a portal may log in, so all channels together get a quarter of all memory for what they might be sent, and one host half of that.
func (s *Server) reserve(c *channel, n int64) error {
	most := s.opt.Memory.Stats().Max / 4
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.bytes+n > most || s.hosts[c.host].bytes+n > most/2 {
		return refusal(wire.RejResources, "the receives of its channels, or of all, would take too much of the memory; raise memory, or let the host open fewer channels (ch_count)")
	}
	c.reserved = n
	s.useLocked(c.host, 0, n)
	return nil
}

func (s *Server) useLocked(host string, channels int, bytes int64) {
	h := s.hosts[host]
	s.all.channels, s.all.bytes = s.all.channels+channels, s.all.bytes+bytes
	h.channels, h.bytes = h.channels+channels, h.bytes+bytes
	if s.hosts[host] = h; h.channels == 0 {
		delete(s.hosts, host)
	}
}

// channelGone takes out a channel of which nothing is left.
func (s *Server) channelGone(c *channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.channels, c)
	s.useLocked(c.host, -1, -c.reserved)
	s.changed.RingLocked()
}

// each does f for the channels that which accepts, without the lock.
func (s *Server) each(which func(*channel) bool, f func(*channel)) (some bool) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.channels))
	all = slices.DeleteFunc(all, func(c *channel) bool { return !which(c) })
	s.mu.Unlock()
	for _, c := range all {
		f(c)
	}
	return len(all) > 0
}

// Close stops accepting, takes no new requests, and waits for those that run as long as Options.Drain, or until the context ends. Initiators
// are sent SRP_T_LOGOUT. It returns when nothing of the server runs any more, and fails only if commands are still with a medium that does not answer.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for stop := range s.portals {
		(*stop)()
	}
	s.mu.Unlock()
	all := func(*channel) bool { return true }
	s.each(all, func(c *channel) { c.leave(errDown, true) })
	gone := func() bool { return len(s.sessions) == 0 && len(s.channels) == 0 }
	err := s.changed.Drain(ctx, s.opt.Drain, gone, func() { s.each(all, func(c *channel) { c.kill(errDown) }) })
	if err != nil {
		err = fmt.Errorf("srp: commands are still with the medium: %w", err)
	}
	s.wg.Wait()
	return err
}

// Counts reads the counters.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Counts{Logins: s.counts.Logins, Refused: maps.Clone(s.counts.Refused), Ended: maps.Clone(s.counts.Ended)}
}
