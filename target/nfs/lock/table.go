package lock

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
)

// hostID is a client. Its name alone is not enough: containers and cloned machines share names, and two of them must not
// share locks.
type hostID struct {
	name string // as it calls itself in LOCK
	addr netip.Addr
}

// held is one range that an owner has; end is its last byte.
type held struct {
	owner      string // within the host
	host       hostID
	svid       uint32
	oh         string // the owner's handle, for TEST
	exclusive  bool
	start, end uint64
	secure     bool // asked for from a port that only root may use
}

// same reports whether o is what h asks for, from whatever port.
func (h *held) same(o *held) bool {
	return h.sameOwner(o) && h.exclusive == o.exclusive && h.start == o.start && h.end == o.end
}

// file is the locks of one file. Ranges of one owner never overlap, and are merged where they touch and agree, as POSIX
// has it.
type file struct {
	locks   []held
	waiters []*waiter
	granted []*waiter // whose client has not confirmed yet
	shares  []share
	handles []string // by which it was locked; they find it when it has no name any more
}

// endOf is the last byte of a range; length 0, or one that wraps, goes to the end.
func endOf(off, n uint64) uint64 {
	if n == 0 || off+n-1 < off {
		return math.MaxUint64
	}
	return off + n - 1
}

func (h *held) overlaps(start, end uint64) bool { return h.start <= end && start <= h.end }

func (h *held) sameOwner(o *held) bool { return h.owner == o.owner && h.host == o.host }

// conflict finds a lock that stands in the way of l.
func (f *file) conflict(l *held) *held {
	for i := range f.locks {
		h := &f.locks[i]
		if !h.sameOwner(l) && (h.exclusive || l.exclusive) && h.overlaps(l.start, l.end) {
			return h
		}
	}
	return nil
}

// without returns the ranges as they are when l's is taken away from its owner: what reaches beyond it is split. f stays as it is.
func (f *file) without(l *held) []held {
	start, end := l.start, l.end
	out := make([]held, 0, len(f.locks)+2)
	for _, h := range f.locks {
		if !h.sameOwner(l) || !h.overlaps(start, end) {
			out = append(out, h)
			continue
		}
		if h.start < start {
			left := h
			left.end = start - 1
			out = append(out, left)
		}
		if h.end > end {
			right := h
			right.start = end + 1
			out = append(out, right)
		}
	}
	return out
}

// with returns the ranges as they are when an owner gets one in place of what it had there. f stays as it is.
func (f *file) with(l held) []held {
	// Merging: what touches l on either side and is of its kind.
	out := slices.DeleteFunc(f.without(&l), func(h held) bool {
		if !h.sameOwner(&l) || h.exclusive != l.exclusive {
			return false
		}
		if h.end != math.MaxUint64 && h.end+1 == l.start {
			l.start = h.start
			return true
		}
		if l.end != math.MaxUint64 && l.end+1 == h.start {
			l.end = h.end
			return true
		}
		return false
	})
	at, _ := slices.BinarySearchFunc(out, l.start, func(h held, start uint64) int { return cmp.Compare(h.start, start) })
	return slices.Insert(out, at, l)
}

// dropHost takes all of a client's locks, waiters and shares away; those from ports that only root may use only if secure
// is set.
func (f *file) dropHost(host hostID, secure bool) {
	mine := func(h *held) bool { return h.host == host && (secure || !h.secure) }
	f.locks = slices.DeleteFunc(f.locks, func(h held) bool { return mine(&h) })
	f.waiters = slices.DeleteFunc(f.waiters, func(w *waiter) bool { return mine(&w.lock) })
	f.granted = slices.DeleteFunc(f.granted, func(w *waiter) bool { return mine(&w.lock) })
	f.shares = slices.DeleteFunc(f.shares, func(s share) bool { return s.host == host && (secure || !s.secure) })
}

// settle takes from the grants that are not confirmed those that l overlaps: what their owner did since says that it knows
// of them.
func (f *file) settle(l *held) {
	f.granted = slices.DeleteFunc(f.granted, func(w *waiter) bool { return w.lock.sameOwner(l) && w.lock.overlaps(l.start, l.end) })
}

// hosts adds the clients that have or want something.
func (f *file) hosts(to map[hostID]bool) {
	for i := range f.locks {
		to[f.locks[i].host] = true
	}
	for _, w := range f.waiters {
		to[w.lock.host] = true
	}
	for i := range f.shares {
		to[f.shares[i].host] = true
	}
}

// size is what f takes of the bounds: the ranges, waiters and shares.
func (f *file) size() int { return len(f.locks) + len(f.waiters) + len(f.shares) }

func (f *file) empty() bool {
	return len(f.locks) == 0 && len(f.waiters) == 0 && len(f.granted) == 0 && len(f.shares) == 0
}

// share is a DOS share reservation: what its owner does, and what it denies others.
type share struct {
	host         hostID
	owner        string
	mode, access uint32
	secure       bool
}

// mayShare reports whether a share can stand beside the others.
func (f *file) mayShare(s share) bool {
	for _, o := range f.shares {
		if (o.host != s.host || o.owner != s.owner) && (o.mode&s.access != 0 || s.mode&o.access != 0) {
			return false
		}
	}
	return true
}

// shared reports whether the owner of s has a share, which s replaces.
func (f *file) shared(s share) bool {
	return slices.ContainsFunc(f.shares, func(o share) bool { return o.host == s.host && o.owner == s.owner })
}

func (f *file) setShare(s share) {
	f.clearShare(s.host, s.owner)
	f.shares = append(f.shares, s)
}

func (f *file) clearShare(host hostID, owner string) {
	f.shares = slices.DeleteFunc(f.shares, func(s share) bool { return s.host == host && s.owner == owner })
}
