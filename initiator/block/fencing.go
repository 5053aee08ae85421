package block

import (
	"slices"
	"time"
)

// waits: a write that has been given up and may still land must not land on a newer one.
func (v *Volume) waits(r *request) bool { return v.held.Load() && !r.harmless() }

// giveUp notes that nothing waits any more for the end of what a lost session of p left at the target.
func (v *Volume) giveUp(p *path) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.giveUpLocked(p)
}

func (v *Volume) giveUpLocked(p *path) {
	if !v.closed {
		p.loose = true
		v.held.Store(true)
	}
}

// fenced reports whether the commands that path p had left behind at fence number gen are known to be over.
func (v *Volume) fenced(p *path, gen int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return p.fences != gen
}

// lossesOf counts the sessions of p that were lost.
func (v *Volume) lossesOf(p *path) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return p.losses
}

// unfencedLocked reports whether a lost session of p may still run commands that matter.
func (v *Volume) unfencedLocked(p *path) bool {
	waits := p.loose
	for r := v.parked.head; r != nil; r = r.next {
		waits = waits || r.fence == p
	}
	return waits
}

// cameLocked takes a login of path p for what it is: the end of the commands that a session of p in the same portal group left. A
// session with the same ISID in another group is another one (RFC 7143 section 4.4.3) and goes on there: after a redirection, or where
// the portal has been given to another group, the unit has to be reset first. What it returns is to be completed, and then dispatch called.
func (v *Volume) cameLocked(p *path, s *session) reqList {
	p.left = slices.DeleteFunc(p.left, func(group string) bool { return group == s.tpgt })
	if len(p.left) > 0 && v.unfencedLocked(p) {
		return reqList{}
	}
	return v.unfenceLocked(p)
}

// unfence lets go what waited for the end of a lost session's commands. It does nothing where that is known already, or where a session
// was lost after the fence had begun, loss number lost being the last before: what it had sent may have come behind the fence.
func (v *Volume) unfence(p *path, gen, lost int) {
	v.mu.Lock()
	if p.fences != gen || p.losses != lost {
		v.mu.Unlock()
		return
	}
	unknown := v.unfenceLocked(p)
	v.mu.Unlock()
	unknown.complete()
	v.dispatch()
}

func (v *Volume) unfenceLocked(p *path) reqList {
	var unknown reqList
	p.loose, p.left = false, nil
	p.fences++
	loose := false
	for _, q := range v.paths {
		loose = loose || q.loose
	}
	v.held.Store(loose)
	all := v.parked.take()
	for r := all.pop(); r != nil; r = all.pop() {
		if r.fence != p {
			v.parked.push(r)
			continue
		}
		r.fence = nil
		switch {
		case !r.repeatable():
			r.Err = ErrOutcomeUnknown
			r.to(ended)
			unknown.push(r)
		default:
			r.to(parked)
			v.parked.push(r)
		}
	}
	return unknown
}

// leftIn is the portal group of the lost sessions of p, empty where there is more than one or none.
func (v *Volume) leftIn(p *path) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(p.left) != 1 {
		return ""
	}
	return p.left[0]
}

// fencing begins to fence a lost path over another one, if requests wait for that.
func (v *Volume) fencing(p *path) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed || v.fencers[p] || !v.unfencedLocked(p) || len(v.paths) < 2 && p.sess.Load() == nil {
		return
	}
	v.fencers[p] = true
	gen := p.fences
	v.wg.Go(func() {
		begun := time.Now()
		for wait := v.ini.o.MinBackoff; !v.fenced(p, gen); wait = min(2*wait, v.ini.o.MaxBackoff) {
			err, lost := ErrNoPath, v.lossesOf(p)
			for _, q := range p.fencePaths(*v.active.Load()) {
				if err = p.fence(v.ctx, q, gen, time.Since(begun) >= fenceGrace); err == nil {
					break
				}
			}
			if err == nil {
				v.unfence(p, gen, lost)
				break // for another loss it begins again
			}
			v.ini.o.Log.Debug("fence", "path", p.u.String(), "error", err)
			if !v.sleep(wait) {
				break
			}
		}
		v.mu.Lock()
		delete(v.fencers, p)
		v.mu.Unlock()
		v.fencing(p) // it may have come and been lost again meanwhile
	})
}
