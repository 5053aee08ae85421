package nfs

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/hist"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// counters are what happened to one export, under any of its rules: they stay when the rules are replaced.
type counters struct {
	times         [nfs3.NumProcs]hist.Hist
	read, written atomic.Uint64 // bytes of READ and WRITE
	errors        [statuses]atomic.Uint64
}

// statuses are the values that nfsstat3 can have, in two runs (RFC 1813 section 2.6).
const (
	lowStatuses = int(nfs3.ErrRemote) + 1
	statuses    = lowStatuses + int(nfs3.ErrJukebox-nfs3.ErrBadhandle) + 1
)

func statusIndex(s nfs3.Status) int {
	if s >= nfs3.ErrBadhandle && s <= nfs3.ErrJukebox {
		return lowStatuses + int(s-nfs3.ErrBadhandle)
	}
	return min(int(s), lowStatuses-1)
}

func statusAt(i int) nfs3.Status {
	if i >= lowStatuses {
		return nfs3.ErrBadhandle + nfs3.Status(i-lowStatuses)
	}
	return nfs3.Status(i)
}

func countersOf(e *filesystem.Served) *counters {
	k, _ := e.Data.(*counters)
	return k
}

// observe counts a call that was executed. Every result of NFSv3 but NULL's begins with its status.
func (k *counters) observe(c *rpcserver.Call, took time.Duration) {
	k.times[c.Proc].Observe(took)
	if len(c.Out) < oncrpc.ReplyLen+4 {
		return // no result: refused by RPC, and counted there
	}
	if st := nfs3.Status(binary.BigEndian.Uint32(c.Out[oncrpc.ReplyLen:])); st != nfs3.OK {
		k.errors[statusIndex(st)].Add(1)
	}
}

// NumProcs is how many procedures NFS version 3 has (RFC 1813 section 3.3).
const NumProcs = int(nfs3.NumProcs)

// Stats are counters of one export since it was first served.
type Stats struct {
	// Export is its name as clients mount it, "" for calls whose file handle is of no export.
	Export string
	// Times are how long procedures took to execute, by number: what waits for a worker is not in it. Their counts are the calls.
	Times         [NumProcs]hist.Snapshot
	Read, Written uint64            // bytes
	Errors        map[string]uint64 // refusals by the name of their status: "NFS3ERR_NOENT"
}

// Kinds sums Times by kind: READ, what makes data durable, and the rest.
func (s *Stats) Kinds() (read, write, other hist.Snapshot) {
	for p := range s.Times {
		switch t := &s.Times[p]; nfs3.Proc(p) {
		case nfs3.ProcRead:
			read.Merge(t)
		case nfs3.ProcWrite, nfs3.ProcCommit:
			write.Merge(t)
		default:
			other.Merge(t)
		}
	}
	return read, write, other
}

func (k *counters) stats(name string) Stats {
	s := Stats{Export: name, Read: k.read.Load(), Written: k.written.Load(), Errors: map[string]uint64{}}
	for p := range k.times {
		s.Times[p].Add(&k.times[p])
	}
	for i := range k.errors {
		if n := k.errors[i].Load(); n > 0 {
			s.Errors[statusAt(i).Name()] += n
		}
	}
	return s
}

// Stats are of all exports, in no order, and last of what belongs to none.
func (s *Server) Stats() []Stats {
	var out []Stats
	for _, e := range s.fs.Exports() {
		out = append(out, countersOf(e).stats(e.Path))
	}
	return append(out, s.stray.stats(""))
}
