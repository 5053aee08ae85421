package block

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// wantLook asks for a look at the unit. It does not block.
func (p *path) wantLook() {
	select {
	case p.look <- struct{}{}:
	default:
	}
}

// attention asks for a look over every path: what one of them has heard of, the others hear of with their next command,
// which may never come.
func (v *Volume) attention(from *path) {
	for _, p := range v.paths {
		if p != from {
			p.wantLook()
		}
	}
}

// watch looks at the unit over this path when a unit attention, a refusal or the user asked for that.
func (p *path) watch() {
	v := p.v
	for {
		select {
		case <-v.ctx.Done():
			return
		case <-p.look:
		}
		s := p.sess.Load()
		if s == nil {
			continue
		}
		if err := p.inspect(s); err != nil {
			s.kill(err) // another login asks again
			continue
		}
		v.dispatch()
		// Every path is in standby or in transition, or this one has just been: look again.
		if v.needsLook(p) {
			if !v.sleep(min(v.ini.o.MinBackoff, retryDelay*2)) {
				return
			}
			p.wantLook()
		}
	}
}

func (v *Volume) needsLook(p *path) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := p.sess.Load()
	return s != nil && !s.usable && (len(*v.active.Load()) == 0 || s.rank == aluaTransition)
}

// inspect asks the unit what it is and takes what has changed. Nothing of the volume is under way meanwhile, and nothing is
// sent after it if the unit is another: a target that shows another unit refuses commands until it is asked INQUIRY, and
// would execute what is on its way behind the question.
func (p *path) inspect(s *session) error {
	v := p.v
	if err := s.quiesce(v.ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(v.ctx, loginTimeout, fmt.Errorf("%w: %s, INQUIRY in %v", ErrTimeout, p.u.at(), loginTimeout))
	defer cancel()
	g, seen, err := p.identify(ctx, s)
	if err == nil {
		err = v.same(p, g)
	}
	if err != nil {
		return err
	}
	v.judge(ctx, p, s)
	v.mu.Lock()
	v.setUnitLocked(g)
	v.electLocked()
	v.mu.Unlock()
	s.mu.Lock()
	s.limits = g.limits(int64(v.ini.o.Piece))
	if s.userAsks.head == nil && s.doubts == seen {
		s.ungateLocked()
	} else {
		p.wantLook() // something has come meanwhile
	}
	s.pumpLocked()
	done := s.done.take()
	s.mu.Unlock()
	done.complete()
	return nil
}

// quiesce stops the volume's requests, waits for the end of those under way, and lets the user's own questions go.
func (s *session) quiesce(ctx context.Context) error {
	s.mu.Lock()
	s.gateLocked()
	s.mu.Unlock()
	if err := s.drain(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	for r := s.userAsks.pop(); r != nil; r = s.userAsks.pop() {
		s.asks.push(r)
	}
	s.pumpLocked()
	done := s.done.take()
	s.mu.Unlock()
	done.complete()
	return s.drain(ctx)
}

// drain waits until no command is under way.
func (s *session) drain(ctx context.Context) error {
	for {
		s.mu.Lock()
		if s.out == 0 && s.asks.head == nil || s.dead {
			s.mu.Unlock()
			return s.reason()
		}
		if s.drained == nil {
			s.drained = make(chan struct{})
		}
		c := s.drained
		s.mu.Unlock()
		select {
		case <-c:
		case <-s.ended:
			return s.reason()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// errUnsaid is an answer that does not name the unit where an earlier one did: no proof of anything.
var errUnsaid = errors.New("block: the unit does not say its name")

// same compares what answers over p with the volume's unit.
func (v *Volume) same(p *path, g *Unit) error {
	old := v.unit.Load()
	if old == nil {
		return nil
	}
	if g.ID == "" && old.ID != "" || g.Serial == "" && old.Serial != "" {
		return fmt.Errorf("%w: %s answers as %q, and the volume is %q", errUnsaid, p.u, g.name(), old.name())
	}
	if old.ID != g.ID && old.ID != "" || old.Serial != g.Serial && old.Serial != "" || old.Logical != g.Logical {
		return fmt.Errorf("%w: %s shows %q, and the volume is %q; nothing is sent to it. Map the volume there again, or open it again",
			ErrOtherUnit, p.u, g.name(), old.name())
	}
	return nil
}

func (u *Unit) name() string {
	if u.Serial == "" {
		return u.ID
	}
	if u.ID == "" {
		return u.Serial
	}
	return u.ID + " " + u.Serial
}

// bounced takes a request back that a path does not serve in its state, and asks for that state after a moment.
func (v *Volume) bounced(p *path, s *session, r *request) {
	v.mu.Lock()
	s.usable = false
	v.electLocked()
	v.mu.Unlock()
	v.park(r, nil)
	time.AfterFunc(retryDelay, func() {
		p.wantLook()
		v.attention(p)
	})
}

// elsewhere gives a request to any path, when the one it was on does not answer it.
func (v *Volume) elsewhere(r *request) {
	r.sent = false // the target has ended it
	v.route(r)
}
