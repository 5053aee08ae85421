package srp

import (
	"context"
	"maps"
	"slices"
	"sort"
	"time"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport"
)

// sessionKey is an I_T nexus: an initiator port, and the target's port of a group.
type sessionKey struct {
	initiator scsi.SRPPort
	target    string
	group     uint16
}

// session is an I_T nexus that has channels, or commands of channels that have ended. A login that takes its place is answered when it is gone.
type session struct {
	id    uint32
	key   sessionKey
	since time.Time

	// Guarded by Server.mu until the session is live, and not changed after.
	nexus *scsi.Nexus
	quota *mem.Quota

	// Guarded by Server.mu.
	state    sessionState
	channels map[*channel]struct{}
	number   uint32   // channels so far
	before   counters // of channels that have ended
}

// counters of a channel; guarded by its mu.
type counters struct {
	commands, bytesIn, bytesOut, copied uint64
}

func (a *counters) add(b counters) {
	a.commands, a.bytesIn, a.bytesOut, a.copied = a.commands+b.commands, a.bytesIn+b.bytesIn, a.bytesOut+b.bytesOut, a.copied+b.copied
}

// enter makes c a channel of its session and returns what became of other channels of the I_T nexus. A login that wants to be the only channel ends
// the others, and waits until nothing of them can reach the medium or the initiator's memory any more.
func (s *Server) enter(ctx context.Context, c *channel, t *Target) (result uint8, err error) {
	key := sessionKey{c.initiator(), t.Name, c.group}
	for {
		s.mu.Lock()
		old := s.sessions[key]
		switch {
		case s.closed:
			s.mu.Unlock()
			return 0, ErrClosed
		case s.targets[t.Name] != t:
			s.mu.Unlock()
			return 0, refusal(wire.RejUnable, "the target has changed meanwhile")
		case old == nil:
			ss := s.newSessionLocked(key, c)
			s.mu.Unlock()
			s.start(ss, t)
			return result, nil
		case !c.login.Multi():
			result = wire.ResultEnded
		case old.state == sessionLive:
			if len(old.channels) >= s.opt.Limits.Channels {
				s.mu.Unlock()
				return 0, refusal(wire.RejTooManyChannels, "the session has %d channels", s.opt.Limits.Channels)
			}
			old.joinLocked(c)
			s.mu.Unlock()
			return wire.ResultKept, nil
		}
		var end []*channel
		if !c.login.Multi() {
			end = slices.Collect(maps.Keys(old.channels))
		}
		changed := s.changed
		s.mu.Unlock()
		for _, o := range end {
			o.kill(errReplaced)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, refusal(wire.RejResources, "commands of an earlier session are still with the medium")
		}
	}
}

func (s *Server) newSessionLocked(key sessionKey, c *channel) *session {
	s.lastID = s.lastID%sessionsNamed + 1
	ss := &session{id: s.lastID, key: key, since: time.Now(), channels: map[*channel]struct{}{}}
	s.sessions[key] = ss
	ss.joinLocked(c)
	return ss
}

func (ss *session) joinLocked(c *channel) {
	ss.channels[c] = struct{}{}
	ss.number++
	c.sess, c.number = ss, ss.number
}

// start makes the nexus.
func (s *Server) start(ss *session, t *Target) {
	quota := s.opt.Memory.Quota(s.opt.Limits.SessionMemory)
	k := ss.key
	nexus := t.SCSI.NewNexus(scsi.NexusOptions{
		InitiatorName: k.initiator.Name(), SRP: &scsi.SRPPorts{Initiator: k.initiator, Target: TargetPort(k.target, k.group)}, TargetPortGroup: k.group,
		Transport: "SRP", Memory: quota, Visible: func(lun uint16) bool { return s.visible(k.target, k.initiator, lun) },
	})
	s.mu.Lock()
	ss.nexus, ss.quota = nexus, quota
	sessionLife.Move(&ss.state, sessionLive) // c, whose goroutine this is, keeps it from ending before
	s.changedLocked()
	s.mu.Unlock()
}

// leaveSession takes out a channel that has ended, whose commands are not over yet. The last one closes the nexus; what others leave is aborted. It does
// not wait.
func (s *Server) leaveSession(c *channel, why error, sum counters, left []taskName) {
	ss := c.sess
	s.mu.Lock()
	delete(ss.channels, c)
	ss.before.add(sum)
	last := len(ss.channels) == 0
	if last {
		sessionLife.Move(&ss.state, sessionEnding)
	}
	s.mu.Unlock()
	if !last {
		for _, t := range left {
			ss.nexus.Manage(scsi.AbortTask, t.lun, t.tag, func(scsi.TMFResponse) {})
		}
		return
	}
	s.ended(why)
	ss.nexus.Close(func() {
		ss.quota.Close()
		s.mu.Lock()
		delete(s.sessions, ss.key)
		s.changedLocked()
		s.mu.Unlock()
	})
}

// SessionInfo describes one session.
type SessionInfo struct {
	ID        uint32
	Initiator string // the name of its port
	Target    string
	Group     uint16
	Remote    string
	Since     time.Time
	Channels  int
	Active    int // commands in progress
	Window    int // requests that may be
	Commands  uint64
	BytesIn   uint64 // from the initiator
	BytesOut  uint64
	Copied    uint64 // of them, immediate data
	Memory    int64  // registered bytes held
	Path      *transport.Path
}

// Sessions lists the sessions, by handle.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l []SessionInfo
	for _, ss := range s.sessions {
		if i, ok := ss.infoLocked(); ok {
			l = append(l, i)
		}
	}
	sort.Slice(l, func(i, j int) bool { return l[i].ID < l[j].ID })
	return l
}

// channelsOf lists the channels of a session that have not ended.
func (s *Server) channelsOf(ss *session) []*channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(ss.channels))
}

// infoLocked describes a session and reports whether a channel of it is live; Server.mu is held.
func (ss *session) infoLocked() (SessionInfo, bool) {
	i := SessionInfo{ID: ss.id, Initiator: ss.key.initiator.Name(), Target: ss.key.target, Group: ss.key.group, Since: ss.since}
	sum := ss.before
	for c := range ss.channels {
		c.mu.Lock()
		if c.state != channelLogin && c.state != channelDead {
			i.Channels++
			i.Active, i.Window = i.Active+c.live, i.Window+c.credits
			i.Remote, i.Path = c.peer.Remote.String(), pathOf(c.dev, c.owner.QP)
			i.Memory += c.quota.Held()
			sum.add(c.stats)
		}
		c.mu.Unlock()
	}
	i.Commands, i.BytesIn, i.BytesOut, i.Copied = sum.commands, sum.bytesIn, sum.bytesOut, sum.copied
	if ss.quota != nil {
		i.Memory += ss.quota.Held()
	}
	return i, i.Channels > 0
}

// pathOf is what a connection says of its way, or else its device's name.
func pathOf(d transport.Device, q transport.QP) *transport.Path {
	p := transport.Path{Provider: d.Name()}
	if x, can := q.(transport.Pather); can {
		p = x.Path()
	}
	return &p
}

// CloseSession ends one session by its handle.
func (s *Server) CloseSession(id uint32) error {
	s.mu.Lock()
	end := s.channelsLocked(func(c *channel) bool { return c.sess != nil && c.sess.id == id })
	s.mu.Unlock()
	if len(end) == 0 {
		return ErrNoSession
	}
	for _, c := range end {
		c.leave(errDropped)
	}
	return nil
}
