package rpc

import "sync/atomic"

// counters of a server. They are added to once or twice a call.
type counters struct {
	calls, replays, connections, rdmaConnections atomic.Uint64
	bytesIn, bytesOut                            atomic.Uint64
	creditsOpened, creditsClosed                 atomic.Uint64 // beyond those that RDMA connections begin with
	credits                                      atomic.Int64  // granted now
	active                                       atomic.Int64  // calls received and not answered
	refused                                      [refusals]atomic.Uint64
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
	refusals
)

var refusalNames = [refusals]string{
	refVersion: "rpc_version", refProgram: "program", refProgramVersion: "program_version", refProcedure: "procedure", refArguments: "arguments",
	refSystem: "system", refCredentials: "credentials", refNoCall: "no_call", refRecord: "record", refHeader: "rdma_header", refOverrun: "credit_overrun",
	refNoReads: "no_read_depth", refConnections: "too_many_connections",
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
	s.pool.mu.Lock()
	out.Waiting, out.Workers, out.Idle = s.pool.waiting, s.pool.n, s.pool.idle
	s.pool.mu.Unlock()
	s.mu.Lock()
	out.Connections = s.conns
	s.mu.Unlock()
	return out
}
