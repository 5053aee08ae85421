package block

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
)

// PathState describes one path.
type PathState struct {
	URL   string // without secrets
	Up    bool
	InUse bool // commands go there
	Group uint16
	Err   error     // why it is down
	Since time.Time // it has been so
	// Logins and Losses count sessions that came up and those that were lost, Commands what was sent over them.
	Logins, Losses int
	Commands       uint64
}

// Paths says how the paths are.
func (v *Volume) Paths() []PathState {
	active := *v.active.Load()
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []PathState
	for _, p := range v.paths {
		st := PathState{URL: p.u.String(), Err: p.err, Since: p.since, Logins: p.gen, Losses: p.losses, Commands: p.commands}
		if s := p.sess.Load(); s != nil {
			st.Up, st.Group, st.Err = true, s.group, nil
			s.mu.Lock()
			st.Commands += s.sent
			s.mu.Unlock()
		}
		for _, a := range active {
			st.InUse = st.InUse || a == p
		}
		out = append(out, st)
	}
	return out
}

// up takes a path into use; its login to the same portal group was the end of all commands of its last session.
func (v *Volume) up(p *path, s *session, g *Unit) error {
	if err := v.same(p, g); err != nil {
		return err
	}
	v.judge(v.ctx, p, s)
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return blockdev.ErrClosed
	}
	v.setUnitLocked(g)
	// A path that comes for the first time while writes are unflushed knows nothing of their time, unless another does.
	s.witness = p.gen > 0 || !v.power.risk() || len(*v.active.Load()) > 0
	s.mu.Lock()
	s.limits = g.limits(int64(v.ini.o.Piece))
	if useLife.Move(&s.use, useOpen); s.doubts != s.settled {
		s.doubtLocked()
	}
	dead := s.dead
	s.mu.Unlock()
	p.err, p.other = nil, false
	p.gen++
	p.since = time.Now()
	if !dead {
		p.sess.Store(s)
	}
	v.electLocked()
	v.failed = nil
	// Under the same hold: a loss of this session already is no business of its login.
	unknown := v.cameLocked(p, s)
	v.tell(p, "path is up", nil) // before its loss, and before any state that shows it
	v.mu.Unlock()
	unknown.complete()
	v.dispatch()
	for _, q := range v.paths {
		v.fencing(q)
	}
	return nil
}

// down takes a path out of use.
func (v *Volume) down(p *path, s *session, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p.sess.CompareAndSwap(s, nil) {
		p.err, p.other = err, errors.Is(err, ErrOtherUnit)
		p.since = time.Now()
		p.losses++
		if !slices.Contains(p.left, s.tpgt) {
			p.left = append(p.left, s.tpgt)
		}
		s.mu.Lock()
		p.commands += s.sent
		s.mu.Unlock()
		if !v.closed {
			v.tell(p, "path is lost", err)
		}
	}
	v.electLocked()
}

func (v *Volume) note(p *path, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p.err = err
	if errors.Is(err, ErrOtherUnit) {
		p.other = true
	}
}

// refuse ends what waits, and what comes, when every path has shown another unit last.
func (v *Volume) refuse() {
	v.mu.Lock()
	for _, p := range v.paths {
		if p.sess.Load() != nil || !p.other {
			v.mu.Unlock()
			return
		}
	}
	v.failed = v.paths[0].err
	if !errors.Is(v.failed, ErrOtherUnit) {
		v.failed = fmt.Errorf("%w: %w", ErrOtherUnit, v.failed)
	}
	var ends reqList
	all := v.parked.take()
	for r := all.pop(); r != nil; r = all.pop() {
		if r.life == fenced {
			v.parked.push(r)
			continue
		}
		r.Err = v.failed
		r.to(ended)
		ends.push(r)
	}
	v.mu.Unlock()
	ends.complete()
}

// electLocked chooses the paths that commands go to: those of the best asymmetric access state that allows I/O.
func (v *Volume) electLocked() {
	best := []*path{}
	for rank := aluaOptimized; rank <= aluaNonOptimized && len(best) == 0; rank++ {
		for _, p := range v.paths {
			if s := p.sess.Load(); s != nil && s.usable && s.rank == rank {
				best = append(best, p)
			}
		}
	}
	v.active.Store(&best)
}

// setUnitLocked takes what the unit says of itself now. Its size may have changed.
func (v *Volume) setUnitLocked(u *Unit) {
	if old := v.unit.Load(); old != nil {
		u.Generation = old.Generation
		if old.Size != u.Size {
			u.Generation++
		}
	}
	v.unit.Store(u)
}
