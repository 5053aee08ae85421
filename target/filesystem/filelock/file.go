package filelock

import (
	"cmp"
	"math"
	"slices"
)

// file is the locks of one file. Ranges of one owner never overlap, and are merged where they touch and agree, as POSIX
// has it.
type file struct {
	locks   []Lock
	waiters []*request
	granted []*request // whose client has not confirmed yet
	shares  []Share
	handles []string // by which it was locked; they find it when it has no name any more
}

// conflict finds a lock that stands in the way of l.
func (f *file) conflict(l *Lock) *Lock {
	for i := range f.locks {
		h := &f.locks[i]
		if h.Owner != l.Owner && (h.Exclusive || l.Exclusive) && h.overlaps(l.Range) {
			return h
		}
	}
	return nil
}

// without returns the ranges as they are when l's is taken away from its owner: what reaches beyond it is split. f stays as it is.
func (f *file) without(l *Lock) []Lock {
	out := make([]Lock, 0, len(f.locks)+2)
	for _, h := range f.locks {
		if h.Owner != l.Owner || !h.overlaps(l.Range) {
			out = append(out, h)
			continue
		}
		if h.Start < l.Start {
			left := h
			left.End = l.Start - 1
			out = append(out, left)
		}
		if h.End > l.End {
			right := h
			right.Start = l.End + 1
			out = append(out, right)
		}
	}
	return out
}

// with returns the ranges as they are when an owner gets one in place of what it had there. f stays as it is.
func (f *file) with(l Lock) []Lock {
	// Merging: what touches l on either side and is of its kind.
	out := slices.DeleteFunc(f.without(&l), func(h Lock) bool {
		if h.Owner != l.Owner || h.Exclusive != l.Exclusive {
			return false
		}
		if h.End != math.MaxUint64 && h.End+1 == l.Start {
			l.Start = h.Start
			return true
		}
		if l.End != math.MaxUint64 && l.End+1 == h.Start {
			l.End = h.End
			return true
		}
		return false
	})
	at, _ := slices.BinarySearchFunc(out, l.Start, func(h Lock, start uint64) int { return cmp.Compare(h.Start, start) })
	return slices.Insert(out, at, l)
}

// dropClient takes all of a client's locks, waiters and shares away; those of its root only if privileged is set.
func (f *file) dropClient(c Client, privileged bool) {
	mine := func(l *Lock) bool { return l.Owner.Client == c && (privileged || !l.Privileged) }
	f.locks = slices.DeleteFunc(f.locks, func(h Lock) bool { return mine(&h) })
	f.waiters = slices.DeleteFunc(f.waiters, func(w *request) bool { return mine(&w.lock) })
	f.granted = slices.DeleteFunc(f.granted, func(w *request) bool { return mine(&w.lock) })
	f.shares = slices.DeleteFunc(f.shares, func(s Share) bool { return s.Owner.Client == c && (privileged || !s.Privileged) })
}

// settle takes from the grants that are not confirmed those that l overlaps: what their owner did since says that it knows
// of them.
func (f *file) settle(l *Lock) {
	f.granted = slices.DeleteFunc(f.granted, func(w *request) bool { return w.lock.Owner == l.Owner && w.lock.overlaps(l.Range) })
}

// clients adds those that have or want something.
func (f *file) clients(to map[Client]bool) {
	for i := range f.locks {
		to[f.locks[i].Owner.Client] = true
	}
	for _, w := range f.waiters {
		to[w.lock.Owner.Client] = true
	}
	for i := range f.shares {
		to[f.shares[i].Owner.Client] = true
	}
}

// size is what f takes of the bounds: the ranges, waiters and shares.
func (f *file) size() int { return len(f.locks) + len(f.waiters) + len(f.shares) }

func (f *file) empty() bool {
	return len(f.locks) == 0 && len(f.waiters) == 0 && len(f.granted) == 0 && len(f.shares) == 0
}

// mayShare reports whether a share can stand beside the others.
func (f *file) mayShare(s Share) bool {
	for _, o := range f.shares {
		if o.Owner != s.Owner && (o.Deny&s.Access != 0 || s.Deny&o.Access != 0) {
			return false
		}
	}
	return true
}

// shared reports whether the owner has a share.
func (f *file) shared(o Owner) bool {
	return slices.ContainsFunc(f.shares, func(s Share) bool { return s.Owner == o })
}

func (f *file) setShare(s Share) {
	f.clearShare(s.Owner)
	f.shares = append(f.shares, s)
}

func (f *file) clearShare(o Owner) {
	f.shares = slices.DeleteFunc(f.shares, func(s Share) bool { return s.Owner == o })
}
