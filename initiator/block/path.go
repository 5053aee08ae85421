package block

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// path is one way to the logical unit: a portal, and the session there while it is up.
type path struct {
	v    *Volume
	u    *URL
	isid iscsi.ISID
	port port
	kept kept
	sess atomic.Pointer[session]
	tpgt atomic.Value  // string: of the last session
	look chan struct{} // asks watch to look at the unit
	// powerOn: the target has reported POWER ON here, and judge has not seen it. It outlives the session that was told.
	powerOn atomic.Bool

	// login is held while a session of this path's ISID begins, be it the path's own or a fence: the later one would
	// end the earlier.
	login chan struct{}
	err   error // why the path is down; the volume's lock
	gen   int   // counts sessions that came up; the volume's lock
	other bool  // another unit was seen there last; the volume's lock
	// since is when the session came up or was lost, losses and commands count for Paths; the volume's lock
	since    time.Time
	losses   int
	commands uint64
	fences   int      // counts what ended the commands of lost sessions; the volume's lock
	left     []string // the portal groups of sessions that were lost since; the volume's lock
	loose    bool     // a command of a lost session may still run, and nothing waits for its end any more; the volume's lock
}

// begin waits for the turn to begin a session of the path's ISID; begun ends it.
func (p *path) begin(ctx context.Context) error {
	select {
	case p.login <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *path) begun() { <-p.login }

// connect logs in, asks who is there and starts the session's owner.
func (p *path) connect(ctx context.Context) (*session, *Unit, error) {
	if err := p.begin(ctx); err != nil {
		return nil, nil, err
	}
	defer p.begun()
	s, err := p.v.ini.connect(ctx, p.u, p.isid, &p.kept)
	if err != nil {
		return nil, nil, err
	}
	p.tpgt.Store(s.tpgt)
	s.path = p
	s.start(p.lost)
	ctx, cancel := context.WithTimeoutCause(ctx, loginTimeout, fmt.Errorf("%w: %s, INQUIRY in %v", ErrTimeout, p.u.at(), loginTimeout))
	defer cancel()
	g, seen, err := p.identify(ctx, s)
	s.settled = seen
	if err != nil {
		s.leave()
		var lost *SessionError
		if errors.As(err, &lost) {
			err = fmt.Errorf("%w: %w", ErrNoPath, err)
		}
		return nil, nil, err
	}
	return s, g, nil
}

// identify asks what the unit is and in what state its path; the number tells which doubts that settles.
func (p *path) identify(ctx context.Context, s *session) (*Unit, int, error) {
	pr, err := p.v.ini.probe(ctx, s)
	if err != nil {
		return nil, 0, err
	}
	defer pr.close()
	g, seen, err := pr.identify(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("block: %s: %w", p.u, err)
	}
	state := uint8(0)
	if g.ALUA && g.HasPortGroup {
		if state, err = pr.alua(ctx, g.PortGroup); err != nil {
			return nil, 0, err
		}
	}
	p.v.mu.Lock()
	s.setStateLocked(state, g.PortGroup)
	p.v.mu.Unlock()
	return g, seen, nil
}

// keep is the goroutine of a path: it waits for the end of a session and begins the next.
func (p *path) keep(first *session) {
	v := p.v
	if first != nil && !p.live(first) {
		return
	}
	for {
		s, g := p.reconnect()
		if s == nil {
			return
		}
		if err := v.up(p, s, g); err != nil {
			v.tell(p, "path is refused", err)
			s.leave()
			v.note(p, err)
			v.mu.Lock()
			unknown := v.cameLocked(p, s) // the login was the end of the last session's commands all the same
			v.mu.Unlock()
			unknown.complete()
			v.dispatch()
			v.refuse()
			if !p.pause(v.ini.o.MaxBackoff, nil) {
				return
			}
		} else if !p.live(s) {
			return
		}
	}
}

// live waits for the end of a session. One that ends as soon as it has begun is followed by a pause: a command that
// makes the target break the rules would otherwise be repeated, session after session, as fast as both ends can.
func (p *path) live(s *session) bool {
	began := time.Now()
	<-s.ended
	least := p.v.ini.o.MinBackoff
	return time.Since(began) >= least || p.pause(least, nil)
}

// reconnect logs in again until it succeeds or the volume is closed.
func (p *path) reconnect() (*session, *Unit) {
	o := &p.v.ini.o
	var woken <-chan struct{}
	for wait := time.Duration(0); ; {
		if !p.pause(wait, woken) {
			return nil, nil
		}
		if fired(woken) {
			wait = 0
		}
		woken = p.v.ini.woken(p.u) // before the attempt: what comes while it is made counts
		s, g, err := p.connect(p.v.ctx)
		if err == nil {
			return s, g
		}
		if p.v.ctx.Err() != nil {
			return nil, nil
		}
		p.v.note(p, err)
		o.Log.Debug("path is down", "path", p.u.String(), "error", err)
		wait = min(max(2*wait, o.MinBackoff), o.MaxBackoff)
		// Spread, so that the initiators of a target that comes back do not all arrive at once.
		wait += rand.N(wait/4 + 1)
	}
}

// pause ends early when woken is closed; false means that the volume is.
func (p *path) pause(d time.Duration, woken <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return p.v.ctx.Err() == nil
	case <-woken:
		return p.v.ctx.Err() == nil
	case <-p.v.ctx.Done():
		return false
	}
}

// lost takes what a session left without an outcome. Nothing of it can be touched by the peer any more.
func (p *path) lost(s *session, reqs reqList, err error) {
	v := p.v
	v.down(p, s, err)
	for r := reqs.pop(); r != nil; r = reqs.pop() {
		switch {
		case r.pin != nil:
			r.Err = err
			if r.cancelled.Load() {
				r.Err = ErrCancelled
			}
			r.endAlone()
		case v.lostTooLong(r):
			// The path comes up and is lost again each time: the limit on waiting holds for the request too.
			r.Err = fmt.Errorf("%w: every session that ran the request was lost, for %v: %w", ErrNoPath, v.ini.o.ReconnectLimit, err)
			if r.sent && !r.harmless() {
				v.giveUp(p)
				r.Err = fmt.Errorf("%w; %w", ErrUnsettled, r.Err)
			}
			r.endAlone()
		default:
			if r.sent && !r.harmless() {
				r.fence = p
			}
			v.park(r, nil)
		}
	}
	v.refuse()
	v.dispatch()
	v.fencing(p)
}

// lostTooLong reports whether r has been lost with sessions for longer than the limit.
func (v *Volume) lostTooLong(r *request) bool {
	if r.lostAt.IsZero() {
		r.lostAt = time.Now()
	}
	limit := v.ini.o.ReconnectLimit
	return limit > 0 && time.Since(r.lostAt) > limit
}

// fence makes sure, over another path, that no command of a lost session runs any more. A reset clears other hosts' commands
// as well, without a word where the unit has no TAS: there it is only done when late says so.
func (p *path) fence(ctx context.Context, over *path, gen int, late bool) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	defer p.begun()
	if p.v.fenced(p, gen) {
		return nil
	}
	s := over.sess.Load()
	if s == nil {
		return ErrNoPath
	}
	if t := p.v.leftIn(p); t != "" && t == s.tpgt && p.u.Target == over.u.Target {
		err := p.reinstate(ctx, over, t)
		if err == nil || errors.Is(err, context.Canceled) {
			return err
		}
	}
	if !late && !p.v.unit.Load().TaskAborted {
		return errTooEarly
	}
	ctx, cancel := context.WithTimeout(ctx, abortTimeout)
	defer cancel()
	if err := s.reset(ctx); err != nil {
		return err
	}
	p.v.tell(p, "lost path is fenced by a reset of the logical unit", nil)
	p.v.endBusySessions()
	return nil
}

// sameGroup reports whether path over leads to a portal of the group that this one was lost in.
func (p *path) sameGroup(over *path) bool {
	t := p.v.leftIn(p)
	s := over.sess.Load()
	return t != "" && s != nil && t == s.tpgt && p.u.Target == over.u.Target
}

// fencePaths are the paths to fence p over, those of its group first: a login there also ends commands that have not arrived at the
// target yet, and a reset does not.
func (p *path) fencePaths(up []*path) []*path {
	up = slices.Clone(up)
	slices.SortStableFunc(up, func(a, b *path) int {
		switch x, y := p.sameGroup(a), p.sameGroup(b); {
		case x && !y:
			return -1
		case y && !x:
			return 1
		}
		return 0
	})
	return up
}

var errTooEarly = errors.New("block: the path may come back, and a reset would take other hosts' commands without a word")

// keptFor is the memory that a session of u may have of the path's: what another kind of connection needs does not fit, and would be given up.
func (p *path) keptFor(u *URL) *kept {
	if u.ISER != p.u.ISER {
		return nil
	}
	return &p.kept
}

// reinstate logs in with the name, secret and ISID of p at another portal of the same group. That is the reinstatement of
// its session, which the target does not answer before the old tasks are over (RFC 7143 section 6.3.5). A login that is
// sent on to another group is none.
func (p *path) reinstate(ctx context.Context, over *path, group string) error {
	u := *p.u
	u.ISER, u.Host, u.Port = over.u.ISER, over.u.Host, over.u.Port
	tmp, err := p.v.ini.connect(ctx, &u, p.isid, p.keptFor(&u))
	if err != nil {
		return err
	}
	tmp.path = p
	tmp.start(func(_ *session, reqs reqList, err error) {
		for r := reqs.head; r != nil; r = r.next {
			r.Err = err
			r.to(ended)
		}
		reqs.complete()
	})
	defer tmp.leave()
	if tmp.tpgt != group {
		return fmt.Errorf("block: %s leads to portal group %s and not %s", u.at(), tmp.tpgt, group)
	}
	// What the target has to report to this nexus it reports once: it is heard here or never.
	if pr, err := p.v.ini.probe(ctx, tmp); err == nil {
		ctx, cancel := context.WithTimeout(ctx, vouchTimeout)
		_, _ = pr.in(ctx, make([]byte, 6), 0)
		cancel()
		pr.close()
	}
	p.v.tell(p, "lost path is fenced by a login over "+over.u.String(), nil)
	return nil
}

// errOwnReset ends sessions whose commands went with our own reset.
var errOwnReset = errors.New("block: the logical unit was reset to fence a lost path")

// endBusySessions ends every session that has commands out after a LOGICAL UNIT RESET: the reset aborted them, of all I_T nexuses,
// and no answer to them will come (SAM-5 section 5.6). Which of them had been answered just before cannot be told from
// here; a new login can, and their requests are done again.
func (v *Volume) endBusySessions() {
	for _, q := range v.paths {
		s := q.sess.Load()
		if s == nil {
			continue
		}
		s.mu.Lock()
		for i := range s.tasks {
			if s.tasks[i].life != taskFree && !s.dead {
				s.failLocked(errOwnReset)
			}
		}
		s.mu.Unlock()
	}
}
