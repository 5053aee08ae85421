package block

import "slices"

// fenced reports whether the commands that path p had left behind at fence number gen are known to be over.
func (v *Volume) fenced(p *path, gen int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return p.fences != gen
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

// unfence lets go what waited for the end of a lost session's commands, unless that was another loss than fence number gen.
func (v *Volume) unfence(p *path, gen int) {
	v.mu.Lock()
	if p.fences != gen {
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
			unknown.push(r)
		default:
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
