package twohosts

import (
	"encoding/binary"
	"errors"
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
	crash  // the medium loses its power
	begins // from here on a write may take effect, any number of times,
	ends   // until here
)

func (k kind) String() string {
	return [...]string{"read", "write", "swap", "flush", "crash", "begins", "ends"}[k]
}

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

// values are eight bytes each, so that a state is comparable, for porcupine's sake.
type values string

func (l values) all() (out []uint64) {
	for b := []byte(l); len(b) >= 8; b = b[8:] {
		out = append(out, binary.BigEndian.Uint64(b))
	}
	return out
}

func (l values) with(v uint64) values {
	if slices.Contains(l.all(), v) {
		return l
	}
	return l + values(binary.BigEndian.AppendUint64(nil, v))
}

func (l values) without(v uint64) values {
	var n values
	for _, w := range l.all() {
		if w != v {
			n = n.with(w)
		}
	}
	return n
}

// state of a block.
type state struct {
	now     uint64
	also    values // what it may hold after a loss of power as well
	pending values // writes that may take effect
}

func (s state) put(v uint64, fua, power bool) state {
	switch {
	case fua:
		s.also = ""
	case power:
		s.also = s.also.with(s.now)
	}
	s.now = v
	return s
}

// blockModel is a block of a disk. With power it is one with a volatile cache.
func blockModel(power bool) porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(in, input, _ any) []any {
			s, o := in.(state), input.(op)
			next := s.step(o, power)
			if o.kind != begins {
				for _, v := range s.pending.all() { // one of them may just have taken effect
					next = append(next, s.put(v, false, power).step(o, power)...)
				}
			}
			return next
		},
	}).ToModel()
}

func (s state) step(o op, power bool) []any {
	switch o.kind {
	case read:
		if o.value == s.now {
			return []any{s}
		}
	case write:
		if o.fate == done {
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
		s.also = ""
		return []any{s}
	case crash:
		var all []any
		for _, v := range s.also.with(s.now).all() {
			all = append(all, state{now: v, pending: s.pending})
		}
		return all
	case begins:
		s.pending = s.pending.with(o.value)
		return []any{s}
	case ends:
		if s.pending = s.pending.without(o.value); power {
			s.also = s.also.with(o.value)
		}
		return []any{s}
	}
	return nil
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
			if o.host != strangerHost && n.host == o.host && n.call > o.call && n.fate == done && (n.kind == write || n.kind == swap) && n.err == "" {
				o.ret = min(o.ret, n.ret)
			}
		}
	}
}

// sendsAgain is how long it takes at least to send a write once more, because its command was ended; the later ones are tried
// first, of which there are few.
var sendsAgain = []time.Duration{40 * time.Millisecond, 10 * time.Millisecond, 2 * time.Millisecond}

var errUndecided = errors.New("is not decided")

// judge looks for an order of all operations of each block. Where there is none unless a write takes effect more than once, as
// it does when its command was ended by a reset or a lost path and another host wrote the block before the next one, again
// counts such blocks; a write may do that as long as it is not acknowledged.
func judge(ops []op, blocks int, power bool, limit time.Duration) (again int, err error) {
	bound(ops)
	m := blockModel(power)
	for b := range blocks {
		h := about(ops, b, power)
		if check(m, h, limit/10) == porcupine.Ok {
			continue
		}
		r, more := porcupine.Unknown, h
		for _, least := range sendsAgain {
			more = repeat(h, int64(least))
			if r = check(m, more, limit/4); r == porcupine.Ok {
				break
			}
		}
		if r == porcupine.Unknown {
			more = plain(more)
			r = check(m, more, limit)
		}
		switch r {
		case porcupine.Ok:
			again++
		case porcupine.Unknown:
			return again, fmt.Errorf("block %d: the history of %d operations %w in %v", b, len(more), errUndecided, limit)
		default:
			return again, fmt.Errorf("block %d: %d operations have no order%s", b, len(h), story(m, more, limit))
		}
	}
	return again, nil
}

// about is what tells of a block.
func about(ops []op, b int, power bool) (h []op) {
	for _, o := range ops {
		switch {
		case o.kind == flush && (!power || o.fate != done):
		case o.kind == flush || o.kind == crash || o.block == b && (o.kind != read || o.fate == done):
			h = append(h, o)
		}
	}
	return h
}

// plain leaves out what makes a search long and forbids little: comparisons that failed, which say only what a block did not
// hold, and, as nothing but those can then tell of them, writes without a certain end that were never read. What has no order
// without them has none with them.
func plain(h []op) (less []op) {
	seen := map[uint64]bool{}
	for _, o := range h {
		switch o.kind {
		case read:
			seen[o.value] = true
		case swap:
			if o.fate != not {
				seen[o.old] = true
			}
		}
	}
	for _, o := range h {
		switch {
		case o.kind == swap && o.fate == not:
		case (o.kind == write || o.kind == swap) && o.fate != done && !seen[o.value]:
		case (o.kind == begins || o.kind == ends) && !seen[o.value]:
		default:
			less = append(less, o)
		}
	}
	return less
}

// repeat lets writes that took long take effect any number of times until their end.
func repeat(h []op, least int64) (more []op) {
	for _, o := range h {
		if o.kind == write && o.ret-o.call >= least {
			begin, end := o, o
			begin.kind, begin.ret = begins, o.call+1
			more = append(more, begin)
			if o.ret < math.MaxInt64 {
				end.kind, end.call, end.ret, end.err = ends, o.ret, o.ret+1, o.String()
				more = append(more, end)
			}
			if o.fate != done {
				continue
			}
		}
		more = append(more, o)
	}
	return more
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
	byEnd := slices.Clone(h)
	slices.SortFunc(byEnd, func(a, b op) int { return int(min(max(a.ret-b.ret, -1), 1)) })
	until := func(k int) []op {
		var l []op
		for _, o := range h {
			switch {
			case o.ret <= byEnd[k].ret || o.kind == begins:
			case o.kind == ends:
				continue
			case o.call > byEnd[k].ret || o.kind == read || o.kind == flush || o.fate == not:
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
	lo, hi := 0, len(byEnd)-1
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
		switch o.kind {
		case begins:
		case ends:
			fmt.Fprintf(&s, "\n  ended %s", o.err)
		default:
			fmt.Fprintf(&s, "\n  %v", o)
		}
	}
	s.WriteString("\n  and then")
	slices.SortFunc(h, func(a, b op) int { return int(min(max(a.ret-b.ret, -1), 1)) })
	shown := 0
	for _, o := range h {
		if o.ret > byEnd[lo].ret && o.kind != begins && shown < 15 {
			fmt.Fprintf(&s, "\n  %v", o)
			shown++
		}
	}
	return s.String()
}
