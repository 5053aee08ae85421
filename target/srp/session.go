package srp

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/flight"
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
	scsi  *scsi.Target
	nexus *scsi.Nexus
	quota *mem.Quota

	// Guarded by Server.mu.
	state    sessionState
	channels map[*channel]struct{}
	number   uint32   // channels so far
	before   counters // of channels that have ended
}

// counters of a channel; guarded by its mu.
type counters struct{ commands, bytesIn, bytesOut, copied uint64 }

func (a *counters) add(b counters) {
	a.commands, a.bytesIn, a.bytesOut, a.copied = a.commands+b.commands, a.bytesIn+b.bytesIn, a.bytesOut+b.bytesOut, a.copied+b.copied
}

// enter makes c a channel of its session and returns what became of other channels of the I_T nexus. A login that wants to be the only channel ends
// the others, and waits until nothing of them can reach the medium or the initiator's memory any more. It is judged again each time that it has waited: what
// it gets may have changed meanwhile.
func (s *Server) enter(ctx context.Context, c *channel) (result uint8, err error) {
	initiator := scsi.SRPPort(c.login.Initiator)
	for {
		s.mu.Lock()
		judged := s.judged
		s.mu.Unlock()
		g, err := s.opt.Find(c.group, scsi.SRPPort(c.login.Target), initiator)
		if err != nil {
			return 0, refusal(wire.RejNoNexus, "%v", err)
		}
		key := sessionKey{initiator, g.Target, c.group}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return 0, ErrClosed
		}
		if s.judged != judged {
			s.mu.Unlock() // EndSessions has not seen this login: Find is asked again
			continue
		}
		old := s.sessions[key]
		if old == nil {
			s.lastID = s.lastID%(1<<31-1) + 1
			old = &session{id: s.lastID, key: key, since: time.Now(), scsi: g.SCSI, channels: map[*channel]struct{}{}}
			s.sessions[key] = old
			old.joinLocked(c)
			s.mu.Unlock()
			s.start(old, &g)
			return result, nil
		}
		var end []*channel
		switch {
		case !c.login.Multi():
			result, end = wire.ResultEnded, slices.Collect(maps.Keys(old.channels))
		case old.state == sessionLive && len(old.channels) >= s.opt.Channels:
			s.mu.Unlock()
			return 0, refusal(wire.RejTooManyChannels, "the session has %d channels", s.opt.Channels)
		case old.state == sessionLive && old.scsi != g.SCSI:
			s.mu.Unlock()
			return 0, refusal(wire.RejNoNexus, "the session is one of a target that was removed, and is ending")
		case old.state == sessionLive:
			old.joinLocked(c)
			s.mu.Unlock()
			return wire.ResultKept, nil
		}
		next := s.changed.NextLocked()
		s.mu.Unlock()
		for _, o := range end {
			o.leave(errReplaced, false)
		}
		select {
		case <-next:
		case <-ctx.Done():
			return 0, refusal(wire.RejResources, "commands of an earlier session are still with the medium")
		}
	}
}

func (ss *session) joinLocked(c *channel) {
	ss.channels[c] = struct{}{}
	ss.number++
	c.sess, c.number = ss, ss.number
}

// start makes the nexus.
func (s *Server) start(ss *session, g *Grant) {
	quota, k := s.opt.Memory.Quota(s.opt.SessionMemory), ss.key
	nexus := g.SCSI.NewNexus(scsi.NexusOptions{InitiatorName: k.initiator.Name(), SRP: &scsi.SRPPorts{Initiator: k.initiator, Target: TargetPort(k.target, k.group)},
		TargetPortGroup: k.group, Transport: "SRP", Memory: quota, Visible: g.Sees})
	s.mu.Lock()
	ss.nexus, ss.quota = nexus, quota
	sessionLife.Move(&ss.state, sessionLive) // its first channel, whose goroutine this is, keeps it from ending before
	s.changed.RingLocked()
	s.mu.Unlock()
}

// leaveSession takes out a channel that has ended, whose commands are not over yet. The last one closes the nexus; what others leave is aborted. It does
// not wait.
func (s *Server) leaveSession(c *channel, why error, accepted bool, left []taskName) {
	ss := c.sess
	s.mu.Lock()
	info, _ := ss.infoLocked()
	c.mu.Lock()
	ss.before.add(c.stats)
	c.mu.Unlock()
	delete(ss.channels, c)
	last := len(ss.channels) == 0
	if last {
		sessionLife.Move(&ss.state, sessionEnding)
	}
	s.changed.RingLocked()
	s.mu.Unlock()
	if accepted {
		s.over(c, last, info, why)
	}
	if !last {
		for _, t := range left {
			ss.nexus.Manage(scsi.AbortTask, t.lun, t.tag, func(scsi.TMFResponse) {})
		}
		return
	}
	ss.nexus.Close(func() {
		ss.quota.Close()
		s.mu.Lock()
		delete(s.sessions, ss.key)
		s.changed.RingLocked()
		s.mu.Unlock()
	})
}

// SessionInfo describes one session.
type SessionInfo struct {
	ID                uint32
	Initiator, Target string // the name of the initiator's port, and the target's
	Group             uint16
	Remote            string
	Since             time.Time
	Channels          int
	Active, Window    int // commands in progress, and requests that may be
	Commands          uint64
	BytesIn, BytesOut uint64 // from the initiator, and to it
	Copied            uint64 // of them, immediate data
	Memory            int64  // registered bytes held
	Path              *transport.Path
}

// infoLocked describes a session and reports whether a channel of it is live; Server.mu is held.
func (ss *session) infoLocked() (SessionInfo, bool) {
	i := SessionInfo{ID: ss.id, Initiator: ss.key.initiator.Name(), Target: ss.key.target, Group: ss.key.group, Since: ss.since}
	sum := ss.before
	for c := range ss.channels {
		c.mu.Lock()
		if c.state != channelLogin {
			i.Remote, i.Path = c.peer.Remote.String(), transport.PathOf(c.dev, c.owner.QP)
			sum.add(c.stats)
		}
		if c.state != channelLogin && c.state != channelDead {
			i.Channels++
			i.Active, i.Window, i.Memory = i.Active+c.live, i.Window+c.credits, i.Memory+c.quota.Held()
		}
		c.mu.Unlock()
	}
	i.Commands, i.BytesIn, i.BytesOut, i.Copied = sum.commands, sum.bytesIn, sum.bytesOut, sum.copied
	if ss.quota != nil {
		i.Memory += ss.quota.Held()
	}
	return i, i.Channels > 0
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
	slices.SortFunc(l, func(a, b SessionInfo) int { return cmp.Compare(a.ID, b.ID) })
	return l
}

// of accepts the channels of a session.
func of(id uint32) func(*channel) bool {
	return func(c *channel) bool { return c.sess != nil && c.sess.id == id }
}

// CloseSession ends one session by its handle.
func (s *Server) CloseSession(id uint32) error {
	if !s.each(of(id), func(c *channel) { c.leave(errDropped, false) }) {
		return ErrNoSession
	}
	return nil
}

// EndSessions ends the sessions of a target that may not go on: what a login gets has changed, and Find says so already. Logins that are not answered yet
// are judged again.
func (s *Server) EndSessions(target string, may func(initiator scsi.SRPPort) bool) {
	s.mu.Lock()
	s.judged++
	s.changed.RingLocked()
	s.mu.Unlock()
	s.each(func(c *channel) bool {
		return c.sess != nil && c.sess.key.target == target && !may(c.sess.key.initiator)
	}, func(c *channel) { c.leave(errRemoved, false) })
}

// Await returns when no session of a target is left, nor a command of one.
func (s *Server) Await(ctx context.Context, target string) error {
	return s.changed.Wait(ctx, func() bool {
		for k := range s.sessions {
			if k.target == target {
				return false
			}
		}
		return true
	})
}

// past is what is kept of a channel that has ended.
type past struct {
	info  SessionInfo
	ended string
	trace flight.Trace
}

// Trace reads the flight recorders of a session: of its channels, those that ended not long ago too. ended says why it is over, and is empty while it lives.
func (s *Server) Trace(id uint32) (info SessionInfo, ended string, t flight.Trace, err error) {
	err = ErrNoSession
	s.mu.Lock()
	for _, p := range s.past {
		if p.info.ID == id {
			info, ended, err = p.info, p.ended, nil
			t.Add(p.trace)
		}
	}
	s.mu.Unlock()
	for _, i := range s.Sessions() {
		if i.ID == id {
			info, ended, err = i, "", nil
		}
	}
	s.each(of(id), func(c *channel) { c.addTo(&t) })
	t.Sort()
	return info, ended, t, err
}

// addTo adds what the recorder of a channel holds. One that is dead is among the past.
func (c *channel) addTo(t *flight.Trace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == channelDead {
		return
	}
	t.AddLocked(&c.rec)
	for _, k := range c.tasks {
		if k.CDB != nil && k.state != taskFree {
			t.Inflight = append(t.Inflight, flight.Running(&k.Command, k.tag, k.began))
		}
	}
}
