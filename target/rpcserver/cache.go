package rpcserver

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
)

// The reply cache makes procedures that are not idempotent safe to retransmit: CREATE GUARDED, REMOVE, RENAME and their
// like (RFC 1813 section 4.5). It is one for all transports, so that a client that reconnects, perhaps from another
// port, still finds its reply. A call is the same when client address, XID, procedure, user and a checksum over the
// arguments agree. The credential is no part of it: old kernels of Linux make a new stamp for a repetition.
//
// Only what was executed for a caller who has shown a right is kept: others could fill the cache with calls that do nothing.

const cacheShards = 16

type cacheKey struct {
	addr             netip.Addr
	xid              uint32
	prog, vers, proc uint32
	flavor           uint32
	uid, gid         uint32 // with AUTH_SYS
	sum              uint64
}

type cacheEntry struct {
	shard *cacheShard
	of    *cacheClient
	key   cacheKey
	done  bool
	when  time.Time
	reply []byte
	older *cacheEntry // towards the oldest of the client's
	newer *cacheEntry
}

// cacheClient are the entries of one client in a shard; all addresses that may be one client's count together.
type cacheClient struct {
	addr           netip.Addr
	n              int
	newest, oldest *cacheEntry
}

type cacheShard struct {
	mu      sync.Mutex
	m       map[cacheKey]*cacheEntry
	clients map[netip.Addr]*cacheClient
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
		r.shards[i].clients = make(map[netip.Addr]*cacheClient)
	}
}

func (r *replyCache) begin(c *Call) (*cacheEntry, cacheState) {
	k := cacheKey{addr: c.Peer.Addr.Addr(), xid: c.XID, prog: c.Prog, vers: c.Vers, proc: c.Proc, flavor: c.Cred.Flavor, sum: maphash.Bytes(r.seed, c.msg[c.start:])}
	if k.flavor == oncrpc.AuthSys {
		k.uid, k.gid = c.Sys.UID, c.Sys.GID
	}
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
	host := hostOf(k.addr)
	of := s.clients[host]
	if of == nil {
		of = &cacheClient{addr: host}
		s.clients[host] = of
	}
	for e := of.oldest; e != nil && now.Sub(e.when) > cacheAge; {
		next := e.newer
		if e.done {
			s.removeLocked(e)
		}
		e = next
	}
	for len(s.m) >= cacheEntries/cacheShards && s.makeRoomLocked() {
	}
	e := &cacheEntry{shard: s, of: of, key: k, when: now, older: of.newest}
	if of.newest != nil {
		of.newest.newer = e
	} else {
		of.oldest = e
	}
	of.newest = e
	of.n++
	s.clients[host] = of // it may have lost its last entry above
	s.m[k] = e
	return e, cacheNew
}

// makeRoomLocked forgets the oldest reply of the client that has the most, so that one client's many calls cost no other
// client its replies. It reports false where all calls are still being executed.
func (s *cacheShard) makeRoomLocked() bool {
	var most *cacheEntry
	for _, c := range s.clients {
		if most != nil && c.n <= most.of.n {
			continue
		}
		for e := c.oldest; e != nil; e = e.newer {
			if e.done {
				most = e
				break
			}
		}
	}
	if most == nil {
		return false
	}
	s.removeLocked(most)
	return true
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
	of := e.of
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		of.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		of.newest = e.older
	}
	if of.n--; of.n == 0 {
		delete(s.clients, of.addr)
	}
}
