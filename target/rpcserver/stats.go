package rpcserver

import "sync/atomic"

// counters of a server. They are added to once or twice a call.
type counters struct {
	calls, replays, connections, rdmaConnections atomic.Uint64
	bytesIn, bytesOut                            atomic.Uint64
	creditsOpened, creditsClosed                 atomic.Uint64 // beyond those that RDMA connections begin with
	credits                                      atomic.Int64  // granted now
	active                                       atomic.Int64  // calls received and not answered
	refused                                      [refusals]atomic.Uint64
	bytesLent, handoffs                          atomic.Uint64
	copiedIn, copiedOut                          copies
	pipes                                        atomic.Int64
}

// refusal is why a call or a connection got no result.
type refusal int

const (
	refVersion refusal = iota
	refProgram
	refProgramVersion
	refProcedure
	refArguments
	refSystem
	refCredentials
	refNoCall
	refRecord
	refHeader
	refOverrun
	refNoReads
	refConnections
	refOverdue
	refRepeated
	refusals
)

var refusalNames = [refusals]string{
	refVersion: "rpc_version", refProgram: "program", refProgramVersion: "program_version", refProcedure: "procedure", refArguments: "arguments",
	refSystem: "system", refCredentials: "credentials", refNoCall: "no_call", refRecord: "record", refHeader: "rdma_header", refOverrun: "credit_overrun",
	refNoReads: "no_read_depth", refConnections: "too_many_connections", refOverdue: "overdue",
	refRepeated: "repeated",
}

func (s *Server) refuse(why refusal) { s.stats.refused[why].Add(1) }

// Stats is a reading of a server's counters.
type Stats struct {
	Calls, Replays                 uint64 // executed; answered from the reply cache
	Streams, RDMA                  uint64 // connections accepted
	BytesIn, BytesOut              uint64 // of messages, and of payload that follows them
	Credits                        int64  // granted now, on all RDMA connections together
	CreditsOpened, CreditsClosed   uint64 // granted because clients used theirs, and taken back because they did not
	Active, Waiting, Workers, Idle int    // calls received and not answered, of them those that wait for a worker; workers, of them those that do nothing
	Connections                    int    // open now
	// Refused counts calls and connections that broke a rule or asked for what is not there, by kind.
	Refused map[string]uint64
	// Lent counts bytes of results that went from a file's pages to a socket. CopiedIn and CopiedOut are bytes of bulk data
	// that were copied on their way, by the size of the argument or result: 0 for large ones, except where the kernel
	// would not have the pages.
	Lent                uint64
	CopiedIn, CopiedOut map[string]uint64
}

// Stats reads the counters.
func (s *Server) Stats() Stats {
	k := &s.stats
	out := Stats{
		Calls: k.calls.Load(), Replays: k.replays.Load(), Streams: k.connections.Load(), RDMA: k.rdmaConnections.Load(),
		BytesIn: k.bytesIn.Load(), BytesOut: k.bytesOut.Load(), Credits: k.credits.Load(), CreditsOpened: k.creditsOpened.Load(),
		CreditsClosed: k.creditsClosed.Load(), Active: int(k.active.Load()), Refused: make(map[string]uint64, refusals),
	}
	for i := range k.refused {
		out.Refused[refusalNames[i]] = k.refused[i].Load()
	}
	out.Lent, out.CopiedIn, out.CopiedOut = k.bytesLent.Load(), k.copiedIn.load(), k.copiedOut.load()
	s.pool.mu.Lock()
	out.Waiting, out.Workers, out.Idle = s.pool.waiting, s.pool.n, s.pool.idle
	s.pool.mu.Unlock()
	s.mu.Lock()
	out.Connections = s.conns
	s.mu.Unlock()
	return out
}

// copies counts copied bytes of bulk data in size classes, whose names are their upper bounds.
type copies [len(copyNames)]atomic.Uint64

var (
	copyBounds = [...]int{4 << 10, 128<<10 - 1}
	copyNames  = [...]string{"4096", "131071", "+Inf"}
)

// add counts up to k bytes of an item of n.
func (c *copies) add(n, k int) {
	if k = min(n, k); k <= 0 {
		return
	}
	i := 0
	for i < len(copyBounds) && n > copyBounds[i] {
		i++
	}
	c[i].Add(uint64(k))
}

func (c *copies) load() map[string]uint64 {
	m := make(map[string]uint64, len(copyNames))
	for i, name := range copyNames {
		m[name] = c[i].Load()
	}
	return m
}
