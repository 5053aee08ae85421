package twohosts

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// kind of an operation on a block.
type kind uint8

const (
	read kind = iota
	write
	swap // COMPARE AND WRITE
	flush
	crash // the medium loses its power
)

func (k kind) String() string { return [...]string{"read", "write", "swap", "flush", "crash"}[k] }

// fate of an operation.
type fate uint8

const (
	done  fate = iota
	not        // it did not take effect: a comparison that failed
	maybe      // it took effect before its end, or never will
	open       // it may take effect later
)

func (f fate) String() string { return [...]string{"done", "not", "maybe", "open"}[f] }

// op is an operation of a host on a block; flushes and crashes are about every block.
type op struct {
	host  int
	kind  kind
	fate  fate
	block int
	old   uint64 // what a comparison expects
	value uint64 // what was read or written
	fua   bool
	again bool // the second effect that a write may have
	call  int64
	ret   int64
	err   string
}

func (o op) String() string {
	s := fmt.Sprintf("%9.3f to %9.3f ms: host %d %s", float64(o.call)/1e6, float64(o.ret)/1e6, o.host, o.kind)
	if o.kind != flush && o.kind != crash {
		s += fmt.Sprintf(" block %d: %x", o.block, o.value)
	}
	if o.kind == swap {
		s += fmt.Sprintf(" for %x", o.old)
	}
	if o.fua {
		s += " FUA"
	}
	return s + " " + o.fate.String() + " " + o.err
}

// state of a block: what it holds, and what it may hold after a loss of power beside that, eight bytes each. It is of one
// comparable type for porcupine's sake.
type state struct {
	now  uint64
	also string
}

func (s state) put(v uint64, fua, power bool) state {
	if !power {
		return state{now: v}
	}
	n := state{now: v}
	if !fua {
		n.also = s.also
		if !s.may(s.now) {
			n.also += string(binary.BigEndian.AppendUint64(nil, s.now))
		}
	}
	return n
}

func (s state) each(f func(v uint64)) {
	for b := []byte(s.also); len(b) >= 8; b = b[8:] {
		f(binary.BigEndian.Uint64(b))
	}
}

func (s state) may(v uint64) (found bool) {
	s.each(func(w uint64) { found = found || v == w })
	return found
}

// blockModel is a block of a disk. With power it is one with a volatile cache.
func blockModel(power bool) porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(in, input, _ any) []any {
			s, o := in.(state), input.(op)
			switch o.kind {
			case read:
				if o.value == s.now {
					return []any{s}
				}
			case write:
				if o.fate == done && !o.again {
					return []any{s.put(o.value, o.fua, power)}
				}
				return []any{s, s.put(o.value, false, power)}
			case swap:
				switch {
				case o.fate == done && s.now == o.old:
					return []any{s.put(o.value, o.fua, power)}
				case o.fate == not && s.now != o.old:
					return []any{s}
				case (o.fate == maybe || o.fate == open) && s.now == o.old:
					return []any{s, s.put(o.value, false, power)}
				case o.fate == maybe || o.fate == open:
					return []any{s}
				}
			case flush:
				return []any{state{now: s.now}}
			case crash:
				all := []any{state{now: s.now}}
				s.each(func(v uint64) { all = append(all, state{now: v}) })
				return all
			}
			return nil
		},
	}).ToModel()
}

// bound says until when what failed can have taken effect. A host that has given a write up writes nothing newer before the
// end of that one is sure, so that the first newer write that it sends and that is done comes after it.
func bound(ops []op) {
	for k := range ops {
		o := &ops[k]
		if o.fate != open {
			continue
		}
		o.ret = math.MaxInt64
		for _, n := range ops {
			if n.host == o.host && n.call > o.call && n.fate == done && (n.kind == write || n.kind == swap) && n.err == "" {
				o.ret = min(o.ret, n.ret)
			}
		}
	}
}

// sendsAgain is how long a write takes at least that was sent a second time, because its first command was ended.
const sendsAgain = 2 * time.Millisecond

// judge looks for an order of all operations of each block. Where there is none unless a write counts twice, as it does when
// its path was lost and another host wrote the block between the two commands, again counts such blocks; a write may do that
// as long as it is not acknowledged.
func judge(ops []op, blocks int, power bool, limit time.Duration) (again int, err error) {
	bound(ops)
	m := blockModel(power)
	for b := range blocks {
		var h []op
		for _, o := range ops {
			switch {
			case o.kind == flush && (!power || o.fate != done):
			case o.kind == flush || o.kind == crash || o.block == b && (o.kind != read || o.fate == done):
				h = append(h, o)
			}
		}
		switch check(m, h, limit) {
		case porcupine.Ok:
			continue
		case porcupine.Unknown:
			return again, fmt.Errorf("block %d: the history of %d operations is not decided in %v", b, len(h), limit)
		}
		twice := slices.Clone(h)
		for _, o := range h {
			if o.kind == write && o.fate != open && o.ret-o.call >= int64(sendsAgain) {
				o.again = true
				twice = append(twice, o)
			}
		}
		switch check(m, twice, limit) {
		case porcupine.Ok:
			again++
			continue
		case porcupine.Unknown:
			return again, fmt.Errorf("block %d: the history of %d operations is not decided in %v", b, len(twice), limit)
		}
		return again, fmt.Errorf("block %d: %d operations have no order%s", b, len(h), story(m, twice, limit))
	}
	return again, nil
}

func check(m porcupine.Model, h []op, limit time.Duration) porcupine.CheckResult {
	l := make([]porcupine.Operation, 0, len(h))
	for k, o := range h {
		l = append(l, porcupine.Operation{ClientId: k, Input: o, Call: o.call, Return: o.ret})
	}
	return porcupine.CheckOperationsTimeout(m, l, limit)
}

// story is the end of the shortest beginning of a history that has no order.
func story(m porcupine.Model, h []op, limit time.Duration) string {
	ends := slices.Clone(h)
	slices.SortFunc(ends, func(a, b op) int { return int(min(max(a.ret-b.ret, -1), 1)) })
	until := func(k int) []op {
		var l []op
		for _, o := range h {
			switch {
			case o.ret <= ends[k].ret:
			case o.call > ends[k].ret || o.kind == read || o.kind == flush:
				continue
			default:
				if o.fate == done {
					o.fate = maybe
				}
				o.ret = math.MaxInt64
			}
			l = append(l, o)
		}
		return l
	}
	lo, hi := 0, len(ends)-1
	for lo < hi {
		mid := (lo + hi) / 2
		if check(m, until(mid), limit) == porcupine.Illegal {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	last := until(lo)
	slices.SortFunc(last, func(a, b op) int { return int(min(max(a.ret-b.ret, -1), 1)) })
	var s strings.Builder
	for _, o := range last[max(0, len(last)-60):] {
		if !o.again {
			fmt.Fprintf(&s, "\n  %v", o)
		}
	}
	return s.String()
}
