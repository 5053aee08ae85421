package twohosts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
)

// shut is a time in which a host may not write, because another one has preempted it.
type shut struct {
	host     int
	from, to int64 // from the answer to the command that shuts it out to the CLEAR that ends it
	aborted  bool  // what it had sent before is over as well
}

const (
	prRegister = 6 // AND IGNORE EXISTING KEY
	prReserve  = 1
	prClear    = 3
	prPreempt  = 5 // AND ABORT
	allRegs    = 7 // Write Exclusive - All Registrants: each path of a host that has registered may write
)

// prTries bounds how often a command is sent again after a unit attention, of which each path has its own.
const prTries = 40

// pathsTake is how long all paths of a host are waited for.
const pathsTake = 3 * time.Second

// reserveOut runs PERSISTENT RESERVE OUT on some path.
func (x *host) reserveOut(ctx context.Context, action byte, key, sa uint64) error {
	list := make([]byte, 24)
	binary.BigEndian.PutUint64(list, key)
	binary.BigEndian.PutUint64(list[8:], sa)
	var err error
	for range prTries {
		var sense *block.SenseError
		if _, err = x.v.Raw(ctx, []byte{0x5f, action, allRegs, 0, 0, 0, 0, 0, 24, 0}, list, false); !errors.As(err, &sense) || sense.Key != 6 {
			return err
		}
	}
	return err
}

// keys counts the registrations of each key.
func (x *host) keys(ctx context.Context) (map[uint64]int, error) {
	var err error
	for range prTries {
		b := make([]byte, 512)
		var sense *block.SenseError
		if _, err = x.v.Raw(ctx, []byte{0x5e, 0, 0, 0, 0, 0, 0, 2, 0, 0}, b, true); err == nil {
			m := map[uint64]int{}
			for n := min(int(binary.BigEndian.Uint32(b[4:])), 504); n >= 8; n -= 8 {
				m[binary.BigEndian.Uint64(b[n:])]++ // the list begins at 8
			}
			return m, nil
		}
		if !errors.As(err, &sense) || sense.Key != 6 {
			break
		}
	}
	return nil, err
}

func keyOf(n int) uint64 { return 0xA000 + uint64(n) }

// registered has a host register by each of its paths, which commands take in turn.
func (x *host) registered(ctx context.Context) error {
	for begin := time.Now(); time.Since(begin) < pathsTake; time.Sleep(5 * time.Millisecond) { // a path may be on its way
		m, err := x.keys(ctx)
		if err == nil && m[keyOf(x.n)] == portals {
			return nil
		}
		if err == nil {
			err = x.reserveOut(ctx, prRegister, 0, keyOf(x.n))
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("host %d does not get to register by all of its paths: %w", x.n, block.ErrNoPath)
}

// preempt has one host take the right to write from the other, and give it back.
func (r *round) preempt() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := r.now()
	defer func() { r.reserved = append(r.reserved, [2]int64{begin, r.now()}) }()
	for _, g := range []string{"1", "2"} {
		r.sluice("target", "set-group", iqn, g, "active/optimized") // so that commands go by all paths
	}
	a := r.rnd.IntN(2)
	by, of := r.hosts[a], r.hosts[1-a]
	err := r.preempts(ctx, by, of)
	if err == nil {
		r.counts["preempts"]++
	} else {
		r.counts["preempts that did not come about"]++ // an earlier fault is still felt
		r.t.Log(err)
	}
	// Nothing stays, whatever became of it.
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) { // a path comes back
		m, err := by.keys(ctx)
		if err == nil && len(m) == 0 {
			return
		}
		if time.Since(begin) > patience {
			r.t.Fatalf("registrations stay: %v, %v", m, err)
		}
		if err == nil && m[keyOf(a)] == 0 {
			err = by.reserveOut(ctx, prRegister, 0, keyOf(a))
		}
		if err == nil {
			_ = by.reserveOut(ctx, prClear, keyOf(a), 0) // looked at above; a path that has not registered conflicts
		}
	}
}

func (r *round) preempts(ctx context.Context, by, of *host) error {
	for _, x := range []*host{by, of} {
		if err := x.registered(ctx); err != nil {
			return err
		}
	}
	if err := by.reserveOut(ctx, prReserve, keyOf(by.n), 0); err != nil {
		return err
	}
	strangers := shut{host: strangerHost, from: r.now()}
	r.pause(30 * time.Millisecond)
	if err := by.reserveOut(ctx, prPreempt, keyOf(by.n), keyOf(of.n)); err != nil {
		return err
	}
	victims := shut{host: of.n, from: r.now(), aborted: true}
	r.pause(100 * time.Millisecond)
	m, err := by.keys(ctx)
	if err != nil {
		return err
	}
	if m[keyOf(of.n)] != 0 || m[keyOf(by.n)] != portals {
		return fmt.Errorf("registrations after a preempt: %v: %w", m, block.ErrNoPath)
	}
	strangers.to = r.now()
	victims.to = strangers.to
	r.shuts = append(r.shuts, strangers, victims)
	return by.reserveOut(ctx, prClear, keyOf(by.n), 0)
}

// obeyed holds that a host wrote nothing while it was shut out. What it had sent before may have been executed before.
func obeyed(ops []op, shuts []shut) error {
	for _, s := range shuts {
		for k := range ops {
			o := &ops[k]
			if o.host != s.host || o.kind != write && o.kind != swap || o.ret > s.to || o.ret < s.from {
				continue
			}
			if o.call > s.from && o.fate == done {
				return fmt.Errorf("a host that was preempted at %.3f ms writes: %v", float64(s.from)/1e6, *o)
			}
			if s.aborted && o.call < s.from {
				if o.fate == open {
					o.fate = maybe
				}
				o.ret = s.from // PREEMPT AND ABORT was answered when nothing of it was left (SPC-4 section 5.13.11.2.6)
			}
		}
	}
	return nil
}

// allowed fails the round for a command that was refused while there was no reservation.
func (r *round) allowed() error {
	for _, o := range r.ops {
		if !strings.Contains(o.err, "RESERVATION CONFLICT") {
			continue
		}
		met := false
		for _, t := range r.reserved {
			met = met || o.call <= t[1] && o.ret >= t[0]
		}
		if !met {
			return fmt.Errorf("refused while nothing is reserved: %v", o)
		}
	}
	return nil
}
