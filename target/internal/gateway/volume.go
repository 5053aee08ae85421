package gateway

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Medium is the data of a volume. Its methods are called by one goroutine at a time.
type Medium interface {
	// Open makes the data ready by that instance, which no other gateway's I/O can be under way beside.
	Open(ctx context.Context, inst Instance, term uint64) (Serving, error)
}

// Serving is a volume's data in one term. The volume's State says whether I/O may begin.
type Serving interface {
	// Apply takes over reservations, nil for none ever, and returns when commands that they end have left the medium.
	Apply(ctx context.Context, number uint64, data []byte) error
	// Drain begins no I/O any more, and returns when all that was under way has ended at the medium, or an error where that is not certain.
	Drain(ctx context.Context) error
	// Abort ends what is under way with errors, without the medium, and gives up what Open made. It comes last, also after Drain.
	Abort()
}

// Volume is a volume as this gateway has it. Its methods may be called by any goroutine.
type Volume struct {
	g      *Gateway
	id     string
	medium Medium
	now    atomic.Uint32 // a State: what commands look at

	// The gateway's lock guards the rest.
	state   State
	own     *ownership         // of Owner, Releasing and Losing
	term    uint64             // that this gateway has and says it serves, or 0
	cancel  context.CancelFunc // of the goroutine of Claiming and Releasing
	record  Record             // as it was seen last
	version uint64
	looked  bool
	alive   time.Time // when a sign of the record's owner was seen last
	settled time.Time // when the record's term was seen first
	freed   time.Time // when the record was seen without an owner first
	next    time.Time // no claim before it
	want    *wish
	asking  map[string]*asker
	locker  Locker    // of an instance that no record names
	since   time.Time // when it was seen first
	failed  error     // of the last claim
}

// wish is a volume that is asked for.
type wish struct {
	cause Cause
	force time.Time // when the owner is fenced; zero until it was asked
	until time.Time // when it is forgotten
}

// asker is an initiator that asks a standby for I/O.
type asker struct{ first, last time.Time }

// Add begins to take part in a volume.
func (g *Gateway) Add(id string, m Medium) (*Volume, error) {
	if err := CheckName(id); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, ErrClosed
	}
	if g.volumes[id] != nil {
		return nil, fmt.Errorf("gateway: there is a volume %s already", id)
	}
	v := &Volume{g: g, id: id, medium: m, asking: map[string]*asker{}}
	g.volumes[id] = v
	g.nudge()
	return v, nil
}

// State is what the gateway is to the volume. It takes no lock. That it was Owner is no proof that it still is; the blocklist is.
func (v *Volume) State() State { return State(v.now.Load()) }

func (v *Volume) moveLocked(to State) {
	volumeLife.Must(&v.state, to)
	v.now.Store(uint32(to))
}

// Status is a volume as this gateway sees it.
type Status struct {
	Volume, Owner string
	State         State // of this gateway
	Term          uint64
	Cause         Cause
	Since         time.Time // of the owner's clock
	Wanted        string
	Fenced        int   // instances on the blocklist
	Err           error // of this gateway's last claim
}

// Status is that of the last look.
func (v *Volume) Status() Status {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	r := &v.record
	return Status{Volume: v.id, Owner: r.Owner, State: v.state, Term: r.Term, Cause: r.Cause, Since: r.Since, Wanted: r.Wanted, Fenced: len(r.Fenced), Err: v.failed}
}

// Serving is what is served, while this gateway owns the volume, or nil.
func (v *Volume) Serving() Serving {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	if v.state != Owner {
		return nil
	}
	return v.own.serving
}

// Pair stands for a session of an initiator port by which it reaches a volume.
func Pair(volume, initiator string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(volume))
	h.Write([]byte{0})
	h.Write([]byte(initiator))
	return h.Sum64() & (1<<53 - 1) // what every reader of JSON keeps
}

// Asked says that an initiator port asks this standby for I/O.
func (v *Volume) Asked(initiator string) {
	now := time.Now()
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	if a := v.asking[initiator]; a != nil {
		if now.Sub(a.last) > AskedGap {
			a.first = now
		}
		a.last = now
		return
	}
	for name, a := range v.asking {
		if now.Sub(a.last) > AskedGap {
			delete(v.asking, name)
		}
	}
	if len(v.asking) < maxAsking {
		v.asking[initiator] = &asker{now, now}
	}
}

// TooSoonError is a move that is refused because the volume moved a short time ago.
type TooSoonError struct {
	Volume string
	Left   time.Duration
}

func (e *TooSoonError) Error() string {
	return fmt.Sprintf("gateway: volume %s was taken over a short time ago; ask again in %v", e.Volume, e.Left.Round(time.Second))
}

// Take asks the owner for the volume, fences it if it does not give the volume up within HandOver, and returns when this gateway is the
// owner. cause is CauseOperator or CauseSetGroups.
func (v *Volume) Take(ctx context.Context, cause Cause) error {
	r, version, err := v.g.readRecord(ctx, v.id) // the last look may be of before the last move
	if err != nil {
		return err
	}
	v.g.mu.Lock()
	v.sawLocked(r, version)
	if cause == CauseSetGroups && v.state == Standby {
		if left := v.unsettledLocked(SetGroups, Settle); left > 0 {
			v.g.mu.Unlock()
			return &TooSoonError{v.id, left}
		}
	}
	v.wishLocked(cause)
	v.g.mu.Unlock()
	v.g.nudge()
	for {
		v.g.mu.Lock()
		state, draining, err, failed := v.state, v.g.draining, v.g.err, v.failed
		v.g.mu.Unlock()
		switch {
		case state == Owner:
			return nil
		case err != nil:
			return ErrClosed
		case draining:
			return ErrDraining
		}
		if err := pause(ctx, RulesLook); err != nil {
			return errors.Join(fmt.Errorf("gateway: volume %s was not taken over in time: %w", v.id, err), failed)
		}
	}
}

func (v *Volume) wishLocked(cause Cause) {
	if v.want == nil && v.state == Standby {
		v.want = &wish{cause: cause, until: time.Now().Add(HandOver + 2*ClaimLimit)}
	}
}

// unsettledLocked is for how long the volume stays where it is: base, doubled with each move in a row, up to most.
func (v *Volume) unsettledLocked(base, most time.Duration) time.Duration {
	if !v.looked {
		return base
	}
	return time.Until(v.settled.Add(min(base<<min(v.record.Moves, 20), most)))
}

// movesAfter is what Record.Moves is after a claim.
func (v *Volume) movesAfter(r Record, cause Cause) int {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	switch {
	case cause == CauseInitiators || cause == CauseSetGroups:
		return min(r.Moves+1, 20)
	case time.Since(v.settled) > MostSettle:
		return 0
	}
	return r.Moves
}

// mayClaim says whether that version of the record is the one that the claim was decided by.
func (v *Volume) mayClaim(version uint64) bool {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	return version == v.version
}

// stuck reports whether a locker that no record names has been there for longer than a claim takes.
func (v *Volume) stuck(l Locker) bool {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	if v.locker != l {
		v.locker, v.since = l, time.Now()
	}
	return time.Since(v.since) >= ClaimLimit
}

// claimLocked begins a claim.
func (v *Volume) claimLocked(cause Cause) {
	v.moveLocked(Claiming)
	v.next = time.Now().Add(Again)
	ctx, cancel := context.WithTimeout(v.g.ctx, ClaimLimit)
	v.cancel = cancel
	v.g.work.Go(func() {
		defer cancel()
		own, err := v.claim(ctx, cause)
		if err == nil {
			err = v.begin(ctx, own)
		}
		if err == nil {
			err = ctx.Err() // too late, or ended meanwhile
		}
		v.claimed(own, cause, err)
	})
}

var errLease = errors.New("gateway: no heartbeat was written for a lease meanwhile")

func (v *Volume) claimed(own *ownership, cause Cause, err error) {
	v.g.mu.Lock()
	if err == nil && !v.g.leasedLocked() {
		err = errLease
	}
	if v.failed = err; err == nil {
		v.own, v.record, v.version, v.want = own, own.record, own.version, nil
		v.term = own.term
		v.settled, v.alive, v.looked = time.Now(), time.Now(), true
		clear(v.asking)
		v.moveLocked(Owner)
		term := v.term
		v.g.mu.Unlock()
		v.g.log.Info("gateway: volume taken over", zap.String("volume", v.id), zap.Uint64("term", term), zap.String("cause", string(cause)))
		return
	}
	v.g.mu.Unlock()
	if own != nil {
		if own.serving != nil {
			own.serving.Abort()
		}
		own.inst.Close()
		v.g.gone(own.inst)
	}
	v.g.mu.Lock()
	v.term = 0
	v.next = time.Now().Add(Again)
	v.moveLocked(Standby)
	v.g.mu.Unlock()
	if !errors.Is(err, ErrChanged) && !errors.Is(err, errClaimed) {
		v.g.tell("take a volume over", v.id, err)
	}
}

// begin opens the data, and loads the reservations, which are read after the record has the new term: who changes them later finds that
// term, and waits for it.
func (v *Volume) begin(ctx context.Context, own *ownership) error {
	v.g.mu.Lock()
	v.term = own.term // others wait for it from now on
	v.g.mu.Unlock()
	var err error
	if own.serving, err = v.medium.Open(ctx, own.inst, own.term); err != nil {
		return &StepError{v.id, StepOpenData, err}
	}
	r, _, err := v.g.readRules(ctx, v.id)
	if err == nil {
		err = own.serving.Apply(ctx, r.Number, r.Data)
	}
	if err == nil {
		own.applied = r.Number
		err = v.g.writeApplied(ctx, v.id, applied{own.term, r.Number})
	}
	if err != nil {
		return &StepError{v.id, StepRules, err}
	}
	return nil
}

// Lost says that the instance that served the volume has failed for good, as one that is blocklisted has.
func (v *Volume) Lost(err error) {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	v.loseLocked(err.Error())
}

// loseLocked ends what this gateway has of the volume, without RADOS.
func (v *Volume) loseLocked(why string) {
	switch v.state {
	case Claiming, Releasing:
		v.cancel()
	case Owner:
		v.moveLocked(Losing)
		own := v.own
		v.g.log.Warn("gateway: volume lost", zap.String("volume", v.id), zap.Uint64("term", own.record.Term), zap.String("why", why))
		v.g.work.Go(func() { v.drop(own) })
	}
}

// drop ends a term, whose state is Losing.
func (v *Volume) drop(own *ownership) {
	own.serving.Abort()
	own.inst.Close()
	v.g.gone(own.inst)
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	v.own, v.term, v.next = nil, 0, time.Now().Add(Again)
	v.moveLocked(Standby)
}

// gone notes instances that are shut down.
func (g *Gateway) gone(inst Instance) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = append(g.shut, inst.Addresses()...)
	g.shut = g.shut[max(0, len(g.shut)-maxShut):]
}

// releaseLocked gives the volume up.
func (v *Volume) releaseLocked() {
	v.moveLocked(Releasing)
	ctx, cancel := context.WithTimeout(v.g.ctx, DrainLimit)
	v.cancel = cancel
	own := v.own
	v.g.work.Go(func() {
		defer cancel()
		err := own.serving.Drain(ctx)
		if err == nil {
			err = v.giveBack(ctx, own)
		}
		if err != nil {
			v.g.tell("give a volume up; the next owner fences it", v.id, err)
			v.g.mu.Lock()
			v.moveLocked(Losing)
			v.g.mu.Unlock()
			v.drop(own)
			return
		}
		own.serving.Abort()
		own.inst.Close()
		v.g.gone(own.inst)
		v.g.mu.Lock()
		v.own, v.term, v.next = nil, 0, time.Now().Add(HandOver)
		v.moveLocked(Standby)
		v.g.mu.Unlock()
	})
}

// giveBack frees the lock, and then says in the record that the volume has no owner. All I/O has ended, so no address is left to be fenced.
func (v *Volume) giveBack(ctx context.Context, own *ownership) error {
	if err := own.inst.Unlock(ctx, lockObject(v.id), own.cookie); err != nil {
		return err
	}
	for range maxTries {
		r, version, err := v.g.readRecord(ctx, v.id)
		if err != nil {
			return err
		}
		if !sameTerm(r, own.record) {
			return ErrChanged
		}
		r.Owner, r.Process, r.Machine, r.Addresses = "", "", "", nil
		if _, err = v.g.writeSure(ctx, recordObject(v.id), encode(&r), version); !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return ErrChanged
}

func sameTerm(a, b Record) bool {
	return a.Term == b.Term && a.Owner == b.Owner && a.Process == b.Process
}
