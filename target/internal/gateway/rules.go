package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// Reservations are an object that any gateway changes, whatever it is to the volume: the version keeps two changes apart. A change is
// answered when no I/O goes by the rules before it any more. That is when the owner of the term that stands in the record says that it has
// applied them, or when there is no owner: who takes over reads them after it has raised the term. An owner that is alive and does neither is
// fenced. What a fenced owner says counts for nothing, since its term is over.

// ErrRules says that a change of reservations was made and is not known to be applied.
var ErrRules = errors.New("gateway: the reservations were changed, but the owner of the volume has not applied them in time")

func (g *Gateway) readRules(ctx context.Context, id string) (r rules, version uint64, err error) {
	data, version, err := g.store.Read(ctx, rulesObject(id), maxRecord)
	if errors.Is(err, ErrNotFound) {
		return rules{}, 0, nil
	}
	if err == nil {
		err = decode(rulesObject(id), data, &r)
	}
	return r, version, err
}

func (g *Gateway) readApplied(ctx context.Context, id string) (a applied, version uint64, err error) {
	data, version, err := g.store.Read(ctx, appliedObject(id), maxRecord)
	if errors.Is(err, ErrNotFound) {
		return applied{}, 0, nil
	}
	if err == nil {
		err = decode(appliedObject(id), data, &a)
	}
	return a, version, err
}

// writeApplied says which rules the owner of a term has. One of a later term stays.
func (g *Gateway) writeApplied(ctx context.Context, id string, a applied) error {
	for range maxTries {
		is, version, err := g.readApplied(ctx, id)
		if err != nil {
			return err
		}
		if is.Term > a.Term {
			return ErrChanged
		}
		if _, err = g.writeSure(ctx, appliedObject(id), encode(&a), version); !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return ErrChanged
}

// Reservations returns the reservations as they stand, and their number; 0 and nil where there were none ever.
func (v *Volume) Reservations(ctx context.Context) (data []byte, number uint64, err error) {
	r, _, err := v.g.readRules(ctx, v.id)
	return r.Data, r.Number, err
}

// ChangeReservations makes a change, which is given what stands there and may be made more than once, and returns when it is in force. An
// error of the change's comes back as it is. After another error the change may be in force, or come into force later.
func (v *Volume) ChangeReservations(ctx context.Context, change func(old []byte) ([]byte, error)) error {
	number, err := v.writeRules(ctx, change)
	if err != nil {
		return err
	}
	v.g.nudge()
	late := time.Now().Add(RulesWait)
	for {
		done, err := v.settledRules(ctx, number)
		if done {
			return nil
		}
		if err != nil {
			v.g.tell("see whether reservations are applied", v.id, err)
		}
		if time.Now().After(late) {
			// The owner hangs, or is cut from the cluster. The takeover that is asked for here applies them, whoever makes it.
			v.g.mu.Lock()
			v.wishLocked(CauseRules)
			v.g.mu.Unlock()
			v.g.nudge()
		}
		if err := pause(ctx, RulesLook); err != nil {
			return fmt.Errorf("%w: %w", ErrRules, err)
		}
		if err := v.g.Err(); err != nil {
			return fmt.Errorf("%w: %w", ErrRules, err)
		}
	}
}

func (v *Volume) writeRules(ctx context.Context, change func(old []byte) ([]byte, error)) (number uint64, err error) {
	writer := rand.Text()
	for range maxTries {
		r, version, err := v.g.readRules(ctx, v.id)
		if err != nil {
			return 0, err
		}
		if r.Writer == writer {
			return r.Number, nil // one that was not answered has taken effect
		}
		data, err := change(bytes.Clone(r.Data))
		if err != nil {
			return 0, err
		}
		next := rules{Number: r.Number + 1, Writer: writer, Data: data}
		if f := next.fault(); f != "" {
			return 0, &DamagedError{rulesObject(v.id), f}
		}
		_, err = v.g.store.Write(ctx, rulesObject(v.id), encode(&next), version)
		switch {
		case err == nil:
			return next.Number, nil
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case !errors.Is(err, ErrChanged) && !errors.Is(err, ErrUnsure):
			return 0, err
		}
		if err := pause(ctx, RulesLook/10); err != nil {
			return 0, err
		}
	}
	return 0, ErrChanged
}

// settledRules reports whether no I/O goes by earlier rules any more. What is applied is read before the record: a term that stands there
// afterwards was not over when its owner said so.
func (v *Volume) settledRules(ctx context.Context, number uint64) (bool, error) {
	a, _, err := v.g.readApplied(ctx, v.id)
	if err != nil {
		return false, err
	}
	r, version, err := v.g.readRecord(ctx, v.id)
	if err != nil {
		return false, err
	}
	return version == 0 || r.Owner == "" && len(r.Addresses) == 0 || a.Term == r.Term && a.Number >= number, nil
}

// lookAtRulesLocked begins to apply what has changed, one change at a time.
func (v *Volume) lookAtRulesLocked() {
	own := v.own
	if own.rules {
		return
	}
	own.rules = true
	ctx, cancel := context.WithTimeout(v.g.ctx, ClaimLimit)
	v.g.work.Go(func() {
		defer cancel()
		err := v.applyRules(ctx, own)
		v.g.mu.Lock()
		own.rules = false
		v.g.mu.Unlock()
		v.g.tell("apply reservations", v.id, err)
	})
}

func (v *Volume) applyRules(ctx context.Context, own *ownership) error {
	r, _, err := v.g.readRules(ctx, v.id)
	if err != nil || r.Number == own.applied {
		return err
	}
	if err := own.serving.Apply(ctx, r.Number, r.Data); err != nil {
		return err
	}
	if err := v.g.writeApplied(ctx, v.id, applied{own.term, r.Number}); err != nil {
		return err
	}
	own.applied = r.Number
	return nil
}
