package rpcserver

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// A client that gives a connection up repeats its calls on another, with the same XIDs and bytes; this end may know nothing of the first one's end.
// A call of the first connection that is begun after its repetition must not be executed: a WRITE would undo what was
// acknowledged since. knfsd finds it in its reply cache, which has WRITEs too; here the first calls of a
// connection whose host has an older one leave a mark, so that a WRITE in general takes no lock that is shared.

// Such a connection is closed: a client that has left it loses nothing, and one that uses two connections with the same
// numbers repeats the call.

// errRepeated is why.
var errRepeated = errors.New("rpc: the client has repeated a call of this connection on a newer one")

// claims are marks of calls that came by newer connections of a host. A mark may be overwritten by another.
type claims struct {
	mu    sync.Mutex // of those that mark
	slots [claimSlots]struct {
		key  atomic.Uint64
		born atomic.Uint64 // of the connection, 0 while key changes
	}
}

// claimKey tells calls of one host apart; by as much of a message as knfsd takes for its checksum. A WRITE asks for it twice.
func (s *Server) claimKey(c *Call) uint64 {
	if c.key == 0 {
		c.key = s.claimKeyOf(c)
	}
	return c.key
}

func (s *Server) claimKeyOf(c *Call) uint64 {
	var h maphash.Hash
	h.SetSeed(s.cache.seed)
	var b [16]byte
	binary.NativeEndian.PutUint32(b[:], c.XID)
	binary.NativeEndian.PutUint32(b[4:], c.Prog)
	binary.NativeEndian.PutUint32(b[8:], c.Proc)
	args := c.msg[c.start:] // no credential: a client may put another time into it
	binary.NativeEndian.PutUint32(b[12:], uint32(len(args)))
	_, _ = h.Write(b[:]) // never fails
	_, _ = h.Write(args[:min(len(args), claimBytes)])
	return max(h.Sum64(), 1)
}

func overwrites(c *Call) bool {
	p, is := c.prog.(Overwriter)
	return is && p.Overwrites(c.Vers, c.Proc)
}

// claim marks one of the first calls of a connection that has older ones beside it.
func (s *Server) claim(c *Call) {
	st := c.Peer.state
	if st == nil || !st.second || st.early.Load() >= claimCalls || !overwrites(c) {
		return
	}
	st.early.Add(1)
	t := st.host.claims.Load()
	if t == nil {
		st.host.claims.CompareAndSwap(nil, new(claims))
		t = st.host.claims.Load()
	}
	k := s.claimKey(c)
	slot := &t.slots[k%claimSlots]
	t.mu.Lock()
	defer t.mu.Unlock()
	if slot.key.Load() == k {
		slot.born.Store(max(slot.born.Load(), st.born)) // what comes by an older connection takes no mark away
		return
	}
	slot.born.Store(0)
	slot.key.Store(k)
	slot.born.Store(st.born)
}

// Superseded reports that the client has repeated the call on a newer connection, or that the call's connection is lost. A
// program whose call waited asks once more, in the order in which calls change what they are about, and answers Drop then:
// the client may have had the repetition's answer, and have gone on.
func (c *Call) Superseded() bool {
	if c.life != lifeOvertaken && c.from != nil && (c.from.gone() || c.server.claimed(c)) {
		lives.Move(&c.life, lifeOvertaken)
	}
	return c.life == lifeOvertaken
}

// claimed reports that the call has come by a newer connection as well.
func (s *Server) claimed(c *Call) bool {
	st := c.Peer.state
	if st == nil {
		return false
	}
	t := st.host.claims.Load()
	if t == nil || !overwrites(c) {
		return false
	}
	k := s.claimKey(c)
	slot := &t.slots[k%claimSlots]
	return slot.key.Load() == k && slot.born.Load() > st.born && slot.key.Load() == k
}
