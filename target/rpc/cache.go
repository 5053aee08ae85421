package rpc

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// The reply cache makes procedures that are not idempotent safe to retransmit: CREATE GUARDED, REMOVE, RENAME and their
// like (RFC 1813 section 4.5). It is one for all transports, so that a client that reconnects, perhaps from another
// port, still finds its reply. A call is the same when client address, XID, procedure and a checksum over the whole
// message agree; the record mark of a stream is no part of it.

const cacheShards = 16

type cacheKey struct {
	addr             netip.Addr
	xid              uint32
	prog, vers, proc uint32
	sum              uint64
}

type cacheEntry struct {
	shard *cacheShard
	key   cacheKey
	done  bool
	when  time.Time
	reply []byte
	older *cacheEntry // towards the oldest
	newer *cacheEntry
}

type cacheShard struct {
	mu     sync.Mutex
	m      map[cacheKey]*cacheEntry
	newest *cacheEntry
	oldest *cacheEntry
}

type replyCache struct {
	seed   maphash.Seed
	shards [cacheShards]cacheShard
}

type cacheState uint8

const (
	cacheNew  cacheState = iota // execute, then call end
	cacheBusy                   // the same call is being executed
	cacheHit                    // c.Out is the reply given before
)

func (r *replyCache) init() {
	r.seed = maphash.MakeSeed()
	for i := range r.shards {
		r.shards[i].m = make(map[cacheKey]*cacheEntry)
	}
}

func (r *replyCache) begin(c *Call) (*cacheEntry, cacheState) {
	k := cacheKey{addr: c.Peer.Addr.Addr(), xid: c.XID, prog: c.Prog, vers: c.Vers, proc: c.Proc, sum: maphash.Bytes(r.seed, c.msg)}
	s := &r.shards[k.sum%cacheShards]
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.m[k]; e != nil {
		if !e.done {
			return nil, cacheBusy
		}
		if now.Sub(e.when) < cacheAge {
			c.Out = append(c.Out[:0], e.reply...)
			return nil, cacheHit
		}
		s.removeLocked(e)
	}
	for e := s.oldest; e != nil && (len(s.m) >= cacheEntries/cacheShards || now.Sub(e.when) > cacheAge); {
		next := e.newer
		if e.done {
			s.removeLocked(e)
		}
		e = next
	}
	e := &cacheEntry{shard: s, key: k, when: now, older: s.newest}
	if s.newest != nil {
		s.newest.newer = e
	} else {
		s.oldest = e
	}
	s.newest = e
	s.m[k] = e
	return e, cacheNew
}

// end keeps the reply, or forgets the call.
func (r *replyCache) end(e *cacheEntry, reply []byte, keep bool) {
	s := e.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if !keep || len(reply) > cacheReply {
		s.removeLocked(e)
		return
	}
	e.reply, e.done, e.when = append([]byte(nil), reply...), true, time.Now()
}

func (s *cacheShard) removeLocked(e *cacheEntry) {
	delete(s.m, e.key)
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		s.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		s.newest = e.older
	}
}
