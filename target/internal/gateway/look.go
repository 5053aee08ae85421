package gateway

import (
	"context"
	"errors"
	"slices"
	"time"
)

// keepLooking looks at the records and the others' beats until the gateway ends.
func (g *Gateway) keepLooking() {
	t := time.NewTicker(LookEvery)
	defer t.Stop()
	for {
		if g.ctx.Err() != nil {
			return
		}
		g.look(g.ctx)
		select {
		case <-g.ctx.Done():
			return
		case <-t.C:
		case <-g.wake:
		}
	}
}

// readRecord reads the record of a volume. One that was never owned has none, and version 0.
func (g *Gateway) readRecord(ctx context.Context, id string) (Record, uint64, error) {
	r := Record{Volume: id}
	data, version, err := g.store.Read(ctx, recordObject(id), maxRecord)
	if errors.Is(err, ErrNotFound) {
		return r, 0, nil
	}
	if err == nil {
		r = Record{}
		err = decode(recordObject(id), data, &r)
	}
	if err == nil && r.Volume != id {
		err = &DamagedError{recordObject(id), "it is of the volume " + r.Volume}
	}
	return r, version, err
}

// look is one look. Records come before beats: the beat that follows a record is of the process that it names, or of a later one. What is new
// counts from when it was read, and what is not from when the look began: a call may have been under way for seconds.
func (g *Gateway) look(ctx context.Context) {
	begin := time.Now()
	if all, _, err := g.readGroup(ctx); err == nil {
		g.mu.Lock()
		g.numbers = all.Gateways
		g.mu.Unlock()
	} else {
		g.tell("read the group", "", err)
		return
	}
	g.mu.Lock()
	volumes := make([]*Volume, 0, len(g.volumes))
	for _, v := range g.volumes {
		volumes = append(volumes, v)
	}
	names := g.numbers
	g.mu.Unlock()
	var seen []*Volume
	for _, v := range volumes {
		r, version, err := g.readRecord(ctx, v.id)
		if err != nil {
			g.tell("read who owns a volume", v.id, err)
			continue
		}
		g.mu.Lock()
		v.sawLocked(r, version)
		g.mu.Unlock()
		seen = append(seen, v)
	}
	for name := range names {
		var m member
		data, version, err := g.store.Read(ctx, memberObject(name), maxRecord)
		if err == nil {
			err = decode(memberObject(name), data, &m)
		}
		if err != nil {
			if !errors.Is(err, ErrNotFound) {
				g.tell("read a heartbeat", "", err)
			}
			continue
		}
		g.mu.Lock()
		if p := g.peers[name]; p == nil || p.version != version {
			g.peers[name] = &peer{member: m, version: version, at: time.Now()}
			for _, v := range seen {
				if v.record.Owner == name && v.record.Process == m.Process && m.Owns[v.id] == v.record.Term {
					v.alive = time.Now()
				}
			}
		}
		g.peers[name].read = time.Now()
		g.mu.Unlock()
	}
	for _, v := range seen {
		g.act(ctx, v, begin)
	}
	g.lookAtDefinitions(ctx)
}

// sawLocked takes in a record that was read.
func (v *Volume) sawLocked(r Record, version uint64) {
	now := time.Now()
	if v.looked && version < v.version {
		return // read before this gateway's own change
	}
	if v.looked && version == v.version {
		return
	}
	if !v.looked || r.Term != v.record.Term {
		v.settled = now
	}
	if r.Owner == "" && (!v.looked || v.record.Owner != "") {
		v.freed = now
	}
	v.record, v.version, v.looked, v.alive = r, version, true, now
	if v.state != Owner {
		return
	}
	if !sameTerm(r, v.own.record) {
		v.loseLocked("gateway " + r.Owner + " has taken it over")
		return
	}
	v.own.record, v.own.version = r, version
}

// act does what the look that began then asks for.
func (g *Gateway) act(ctx context.Context, v *Volume, begin time.Time) {
	g.mu.Lock()
	if v.state == Owner {
		switch {
		case g.draining, v.record.Wanted != "" && v.record.Wanted != g.opt.Name:
			v.releaseLocked()
		default:
			v.lookAtRulesLocked()
		}
	}
	if v.state != Standby || g.draining || !g.leasedLocked() {
		g.mu.Unlock()
		return
	}
	now := time.Now()
	if v.want != nil && now.After(v.want.until) {
		v.want = nil
	}
	cause, ask := v.decideLocked(begin)
	if cause != "" && !ask {
		if !now.Before(v.next) {
			v.claimLocked(cause)
		}
		g.mu.Unlock()
		return
	}
	if ask && v.want == nil {
		v.wishLocked(cause)
	}
	r, version := v.record, v.version
	g.mu.Unlock()
	if ask {
		g.ask(ctx, v, r, version)
	}
}

// ask says in the record that the volume is wanted here. The owner has HandOver from then on.
func (g *Gateway) ask(ctx context.Context, v *Volume, r Record, version uint64) {
	if r.Wanted != g.opt.Name {
		r.Wanted = g.opt.Name
		var err error
		if version, err = g.writeSure(ctx, recordObject(v.id), encode(&r), version); err != nil {
			if !errors.Is(err, ErrChanged) {
				g.tell("ask for a volume", v.id, err)
			}
			return
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if v.state == Standby && version > v.version {
		v.record, v.version = r, version
	}
	if v.want != nil && v.want.force.IsZero() {
		v.want.force = time.Now().Add(HandOver)
	}
}

// decideLocked says why the volume is to be claimed, or, with ask, to be asked for, by a look that began now.
func (v *Volume) decideLocked(now time.Time) (cause Cause, ask bool) {
	g, r := v.g, &v.record
	late := time.Duration(v.rankLocked(now)) * Stagger
	if r.Owner == "" {
		switch {
		case r.Wanted == g.opt.Name && v.want != nil:
			return v.want.cause, false
		case r.Wanted != "" && r.Wanted != g.opt.Name:
			late += HandOver
		}
		if v.want != nil {
			return v.want.cause, false
		}
		if now.Sub(v.freed) >= late {
			return CauseFree, false
		}
		return "", false
	}
	p := g.peers[r.Owner]
	switch {
	case r.Owner == g.opt.Name && r.Process == g.process && (r.Wanted == "" || r.Wanted == g.opt.Name):
		return CauseSilent, false // a term of this process that it has lost, or a claim that was given up too late
	case p != nil && p.Process != r.Process:
		if now.Sub(v.settled) >= late {
			return CauseRestart, false
		}
	case now.Sub(v.alive) >= Lost+late:
		return CauseSilent, false
	}
	if v.want != nil {
		if !v.want.force.IsZero() && now.After(v.want.force) {
			return v.want.cause, false
		}
		if v.want.cause == CauseRules {
			return CauseRules, false // the owner had its time
		}
		return v.want.cause, true
	}
	if p != nil && v.askedLocked(now, p) && v.unsettledLocked(Settle, MostSettle) <= 0 {
		return CauseInitiators, true
	}
	return "", false
}

// rankLocked is how many gateways are to claim first.
func (v *Volume) rankLocked(now time.Time) int {
	n := 0
	for name, p := range v.g.peers {
		if name < v.g.opt.Name && name != v.record.Owner && !p.Draining && now.Sub(p.at) < Lost {
			n++
		}
	}
	return n
}

// askedLocked reports whether an initiator without a session at the owner has asked for long enough.
func (v *Volume) askedLocked(now time.Time, owner *peer) bool {
	asked := false
	for name, a := range v.asking {
		_, has := slices.BinarySearch(owner.Sessions, Pair(v.id, name))
		switch {
		case has || now.Sub(a.last) > AskedGap:
			delete(v.asking, name)
		case a.last.Sub(a.first) >= AskedFor:
			asked = true
		}
	}
	return asked
}
