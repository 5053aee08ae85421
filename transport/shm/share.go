package shm

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
)

var (
	errUnregistered = errors.New("shm: the memory is not registered with this device")
	errManySlabs    = fmt.Errorf("shm: one connection can be shown %d slabs at most; let the pool of its memory have fewer", maxSlabs)
)

// share is a place for a slab of ours that the peer has been, or will be, given to read. What the peer calls the slab is the place and
// how often that was taken before: a record that names a slab can be read before the message that another has left the place.
type share struct {
	slab  *mem.Slab
	state shared
	lives uint32
}

// placeBits are those of a slab's number that are its place; maxSlabs has no more.
const placeBits = 10

func (s *shares) number(place int) uint32 { return s.list[place].lives<<placeBits | uint32(place) }

// shares numbers the slabs that work requests of a queue pair have named. All of it is guarded by tx.
type shares struct {
	dev  *Device
	list []share
	tab  []uint16 // places plus one by slab, open addressing, a power of two, never more than half full; 0 is free
	n    int      // that are shown or queued
	out  []int    // places of which messages are to be sent, in order
	buf  [slabMsgLen]byte
}

// slot is where the search for a slab begins.
func (s *shares) slot(slab *mem.Slab) int { return int(slab.ID()*0x9e3779b1>>4) & (len(s.tab) - 1) }

// find is the place of a slab that has one.
func (s *shares) find(slab *mem.Slab) (int, bool) {
	if len(s.tab) == 0 {
		return 0, false
	}
	for i := s.slot(slab); s.tab[i] != 0; i = (i + 1) & (len(s.tab) - 1) {
		if n := s.tab[i] - 1; s.list[n].slab == slab {
			return int(n), true
		}
	}
	return 0, false
}

// show makes sure that a slab has a number and will be with the peer before what names it.
func (s *shares) show(slab *mem.Slab) error {
	if _, ok := s.find(slab); ok {
		return nil
	}
	if !s.dev.knows(slab) {
		return errUnregistered
	}
	n := -1
	for i := range s.list {
		if s.list[i].state == withdrawn && !slices.Contains(s.out, i) {
			n = i
			break
		}
	}
	if n < 0 {
		if len(s.list) >= maxSlabs {
			return errManySlabs
		}
		n = len(s.list)
		s.list = append(s.list, share{})
	}
	s.list[n].slab = slab
	showings.Move(&s.list[n].state, queued)
	s.out = append(s.out, n)
	s.n++
	s.index()
	return nil
}

// index makes the table anew: slabs come and go so seldom that it need not be changed in place.
func (s *shares) index() {
	size := 16
	for size < 2*(s.n+1) {
		size *= 2
	}
	s.tab = make([]uint16, size)
	for n := range s.list {
		if s.list[n].slab == nil {
			continue
		}
		i := s.slot(s.list[n].slab)
		for s.tab[i] != 0 {
			i = (i + 1) & (size - 1)
		}
		s.tab[i] = uint16(n + 1)
	}
}

// withdraw takes a slab that nothing names back; its file may be closed afterwards.
func (s *shares) withdraw(slab *mem.Slab) {
	n, ok := s.find(slab)
	if !ok {
		return
	}
	x := &s.list[n]
	if x.state == queued { // the peer has never seen it
		s.out = slices.DeleteFunc(s.out, func(o int) bool { return o == n })
	} else {
		s.out = append(s.out, n)
	}
	showings.Move(&x.state, withdrawn)
	x.slab = nil
	s.n--
	s.index()
}

// flush sends what is to be sent, in order, as far as the socket takes it.
func (s *shares) flush(fd uintptr) error {
	for len(s.out) > 0 {
		x := &s.list[s.out[0]]
		c := control{kind: msgWithdraw, slab: s.number(s.out[0])}
		var oob []byte
		if x.state == queued {
			c.kind, c.size = msgSlab, uint64(len(x.slab.Bytes()))
			oob = unix.UnixRights(x.slab.FD())
		}
		_, err := unix.SendmsgN(int(fd), c.append(s.buf[:0]), oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ETOOMANYREFS), errors.Is(err, unix.ENOBUFS):
			return nil // the peer takes some, and rings
		case err != nil:
			return err
		}
		if x.state == queued {
			showings.Move(&x.state, shown)
		} else {
			x.lives++
		}
		s.out = s.out[1:]
	}
	s.out = nil
	return nil
}

// seen are the peer's slabs that this side has mapped, by the places of their numbers. They are the owner's.
type seen struct {
	most   int64 // of mappings, below which those of the whole process stay
	maps   []mapping
	mapped int64
}

// mappings are those of peers' slabs in this process.
var mappings atomic.Int64

type mapping struct {
	number uint32
	b      []byte // nil: none
}

// at is the place of a number, which may have none yet.
func at(number uint32) int { return int(number & (maxSlabs - 1)) }

// find is the mapping of a number, if there is one.
func (s *seen) find(number uint32) []byte {
	if p := at(number); p < len(s.maps) && s.maps[p].number == number {
		return s.maps[p].b
	}
	return nil
}

// of is the memory of a peer's piece, if it names some.
func (s *seen) of(p *piece) ([]byte, bool) {
	m := s.find(p.slab)
	if m == nil || p.off > uint64(len(m)) || uint64(p.n) > uint64(len(m))-p.off {
		return nil, false
	}
	return m[p.off : p.off+uint64(p.n)], true
}

// take does what a message of the peer's says. The files that came with it are its to close.
func (s *seen) take(c *control, fds []int, flags int) error {
	if c.kind != msgSlab {
		if len(fds) > 0 {
			closeAll(fds)
			return ErrFiles
		}
		if c.kind == msgWithdraw {
			return s.drop(c.slab)
		}
		return nil
	}
	fd, err := oneFile(fds, flags)
	if err != nil {
		return err
	}
	err = s.admit(c)
	if err != nil {
		closeAll([]int{fd})
		return err
	}
	if mappings.Add(1) > s.most {
		mappings.Add(-1)
		closeAll([]int{fd})
		return fmt.Errorf("a slab more, and peers have shared %d, which are the most that are mapped", s.most)
	}
	m, err := mapSealed(fd, c.size)
	if err != nil {
		mappings.Add(-1)
		return err
	}
	for at(c.slab) >= len(s.maps) {
		s.maps = append(s.maps, mapping{})
	}
	s.maps[at(c.slab)] = mapping{c.slab, m}
	s.mapped += int64(len(m))
	return nil
}

func (s *seen) admit(c *control) error {
	switch {
	case at(c.slab) < len(s.maps) && s.maps[at(c.slab)].b != nil:
		return fmt.Errorf("slab number %d comes where number %d still is", c.slab, s.maps[at(c.slab)].number)
	case c.size > maxSlab || s.mapped+int64(c.size) > maxMapped:
		return fmt.Errorf("a slab of %d bytes beside %d bytes of others; %d and %d are the most", c.size, s.mapped, maxSlab, maxMapped)
	}
	return nil
}

func (s *seen) drop(n uint32) error {
	m := s.find(n)
	if m == nil {
		return fmt.Errorf("slab number %d, which is none, is withdrawn", n)
	}
	s.mapped -= int64(len(m))
	unmap(m)
	mappings.Add(-1)
	s.maps[at(n)].b = nil
	return nil
}

func (s *seen) dropAll() {
	for _, m := range s.maps {
		if m.b != nil {
			unmap(m.b)
			mappings.Add(-1)
		}
	}
	*s = seen{}
}
