package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// The steps of a claim are types. What makes a value of one is the step before it, so that none can be left out, and none made twice.
// Each keeps the context's time; what a failed step leaves behind harms nothing: an instance on the blocklist, or a lock of an instance
// that no record names, which the next claim fences first.

// surveyed knows who may have I/O under way.
type surveyed struct {
	v       *Volume
	cause   Cause
	record  Record // as it was read
	version uint64
	lockers []Locker
}

// opened has the new instance.
type opened struct {
	surveyed
	inst Instance
}

// blocked: every instance that the survey saw is on the blocklist of an OSD map.
type blocked struct {
	opened
	fenced []Fenced
}

// mapped: the new instance has that map, so each OSD that takes an operation of it has the map too.
type mapped struct{ blocked }

// locked: the new instance has the lock.
type locked struct {
	mapped
	cookie string
}

// ownership is a term of this gateway's: the record names its instance.
type ownership struct {
	inst    Instance
	cookie  string
	term    uint64
	record  Record // as it was seen last
	version uint64
	serving Serving
	applied uint64 // number of the rules that serving has
	rules   bool   // new rules are being applied
}

// claim goes through the steps up to the record. After an error nothing is left open here.
func (v *Volume) claim(ctx context.Context, cause Cause) (*ownership, error) {
	s, err := v.survey(ctx, cause)
	if err != nil {
		return nil, &StepError{v.id, StepSurvey, err}
	}
	o, err := s.open(ctx)
	if err != nil {
		return nil, &StepError{v.id, StepOpenInstance, err}
	}
	own, err := o.take(ctx)
	if err != nil {
		o.inst.Close()
		return nil, err
	}
	return own, nil
}

func (o opened) take(ctx context.Context) (*ownership, error) {
	b, err := o.blocklist(ctx)
	if err != nil {
		return nil, &StepError{o.v.id, StepBlocklist, err}
	}
	m, err := b.waitForMap(ctx)
	if err != nil {
		return nil, &StepError{o.v.id, StepMap, err}
	}
	if err := m.breakLock(ctx); err != nil {
		return nil, &StepError{o.v.id, StepBreak, err}
	}
	l, err := m.lock(ctx)
	if err != nil {
		if !errors.Is(err, ErrLocked) { // it may have been taken all the same
			l.v.g.tell("give the lock back", l.v.id, l.inst.Unlock(ctx, lockObject(l.v.id), l.cookie))
		}
		return nil, &StepError{o.v.id, StepLock, err}
	}
	own, err := l.raise(ctx)
	if err != nil {
		// The lock would keep the next claim waiting; if it cannot be given back, that claim fences this instance.
		l.v.g.tell("give the lock back", l.v.id, l.inst.Unlock(ctx, lockObject(l.v.id), l.cookie))
		return nil, &StepError{o.v.id, StepRaise, err}
	}
	return own, nil
}

// errClaimed is a claim of another gateway that seems to go on.
var errClaimed = errors.New("gateway: another gateway is about to take the volume over")

func (v *Volume) survey(ctx context.Context, cause Cause) (surveyed, error) {
	s := surveyed{v: v, cause: cause}
	var err error
	if s.record, s.version, err = v.g.readRecord(ctx, v.id); err != nil {
		return s, err
	}
	if !v.mayClaim(s.version) {
		return s, ErrChanged
	}
	s.lockers, err = v.g.store.Lockers(ctx, lockObject(v.id))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return s, err
	}
	if len(s.lockers) > maxAddresses {
		return s, &DamagedError{lockObject(v.id), "it has many lockers"}
	}
	for _, l := range s.lockers {
		if l.Address == "" || len(l.Address) > 2*maxName {
			return s, &DamagedError{lockObject(v.id), "a locker has no address"}
		}
		// Its claim is over, or it is dead, when the lock has been there for as long as a claim may take.
		if !slices.Contains(s.record.Addresses, l.Address) && !v.stuck(l) {
			return s, errClaimed
		}
	}
	return s, nil
}

func (s surveyed) open(ctx context.Context) (opened, error) {
	inst, err := s.v.g.store.Open(ctx)
	if err != nil {
		return opened{}, err
	}
	if f := addressesFault(inst.Addresses()); f != "" || len(inst.Addresses()) == 0 {
		inst.Close()
		return opened{}, fmt.Errorf("gateway: the new librados instance has no addresses that a blocklist could name (%v)", inst.Addresses())
	}
	return opened{s, inst}, nil
}

// blocklist names every instance that may have I/O under way: that of the record, and that of a claim that took the lock and did not get
// as far as the record.
func (o opened) blocklist(ctx context.Context) (blocked, error) {
	now, r := time.Now(), &o.record
	var l []Fenced
	for _, a := range r.Addresses {
		l = append(l, Fenced{Address: a, Gateway: r.Owner, Process: r.Process, Machine: r.Machine, Term: r.Term, At: now})
	}
	for _, k := range o.lockers {
		if !slices.Contains(r.Addresses, k.Address) {
			l = append(l, Fenced{Address: k.Address, Term: r.Term, At: now})
		}
	}
	if len(r.Fenced)+len(l) > maxFenced {
		return blocked{}, fmt.Errorf("gateway: %d earlier instances are on the blocklist and not known to be dead; start their gateways again, "+
			"or end them for certain and remove their entries from the record", len(r.Fenced))
	}
	for _, f := range l {
		if err := o.v.g.store.Blocklist(ctx, f.Address, BlockFor); err != nil {
			return blocked{}, err
		}
	}
	return blocked{o, l}, nil
}

func (b blocked) waitForMap(ctx context.Context) (mapped, error) {
	return mapped{b}, b.inst.WaitForMap(ctx)
}

func (m mapped) breakLock(ctx context.Context) error {
	for _, l := range m.lockers {
		if err := m.v.g.store.BreakLock(ctx, lockObject(m.v.id), l); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}

func (m mapped) lock(ctx context.Context) (locked, error) {
	cookie := strconv.FormatUint(m.record.Term+1, 10)
	return locked{m, cookie}, m.inst.Lock(ctx, lockObject(m.v.id), cookie)
}

// raise writes the new term down, unless the record has changed since the survey: then another claim was faster, or the owner has given
// the volume up, and what was fenced may not be all there is.
func (l locked) raise(ctx context.Context) (*ownership, error) {
	g, r := l.v.g, l.record
	r.Term++
	r.Owner, r.Process, r.Machine = g.opt.Name, g.process, g.opt.Machine
	r.Addresses, r.Cause, r.Since, r.Wanted = l.inst.Addresses(), l.cause, time.Now(), ""
	r.Fenced = append(slices.Clone(r.Fenced), l.fenced...)
	r.Moves = l.v.movesAfter(l.record, l.cause)
	version, err := g.writeSure(ctx, recordObject(l.v.id), encode(&r), l.version)
	if err != nil {
		return nil, err
	}
	return &ownership{inst: l.inst, cookie: l.cookie, term: r.Term, record: r, version: version}, nil
}

// writeSure is Store.Write of what no other writer would write. A change whose end is not known is looked for.
func (g *Gateway) writeSure(ctx context.Context, object string, data []byte, version uint64) (uint64, error) {
	now, err := g.store.Write(ctx, object, data, version)
	if err == nil || errors.Is(err, ErrChanged) && !errors.Is(err, ErrUnsure) {
		return now, err
	}
	is, now, rerr := g.store.Read(ctx, object, maxRecord)
	if rerr == nil && string(is) == string(data) {
		return now, nil
	}
	return 0, err
}
