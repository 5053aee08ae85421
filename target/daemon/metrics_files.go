package daemon

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/scsi"
)

var (
	mExport       = desc("export_operation_duration_seconds", "Time that an NFS operation took to execute, by procedure; its count is the calls. The export is empty where a call's file handle was of none.", "export", "operation")
	mExportBytes  = desc("export_bytes_total", "Bytes of files that clients read and wrote.", "export", "direction")
	mExportErrors = desc("export_errors_total", "Calls that did not end with NFS3_OK, by status of RFC 1813 section 2.6; some are ordinary answers, such as NFS3ERR_NOENT.", "export", "status")
	mLocks        = desc("locks_held", "Byte ranges that clients hold locked (NLM).")
	mCalls        = desc("rpc_calls_total", "RPC calls executed.")
	mReplays      = desc("rpc_replays_total", "Retransmitted calls that were answered from the reply cache.")
	mCallsNow     = desc("rpc_calls_in_progress", "RPC calls received and not answered.")
	mCallsWait    = desc("rpc_calls_waiting", "RPC calls that wait for a worker.")
	mWorkers      = desc("rpc_workers", "Workers that execute calls which may block.", "state")
	mRPCConns     = desc("rpc_connections", "Connections of file clients open now.")
	mRPCConnected = desc("rpc_connections_total", "Connections of file clients accepted.", "transport")
	mRPCBytes     = desc("rpc_bytes_total", "Bytes of RPC messages and the payload in them; what RDMA Reads fetch is not among those that came in.", "direction")
	mCredits      = desc("rpc_credits", "RPC-over-RDMA credits with receives posted for them, on all connections together.")
	mCreditMoves  = desc("rpc_credit_changes_total", "Credits granted because clients used theirs, and taken back because they did not.", "change")
	mRPCRefused   = desc("rpc_refusals_total", "Calls and connections that got no result, by what was wrong with them.", "reason")
	mRPCCopies    = desc("rpc_bytes_copied_total", "Bytes of bulk data that were copied between messages and their place, by the size of the argument or result: the class's upper bound in bytes.", "direction", "size_class")
	mRPCLent      = desc("rpc_bytes_lent_total", "Bytes of results that went from the page cache to the socket without a copy.")
	mPortGroup    = desc("port_group_state", "1 for the access state that a target port group is in (ALUA), 0 for the others.", "target", "group", "state")
)

func describeFiles(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{mExport, mExportBytes, mExportErrors, mLocks, mCalls, mReplays, mCallsNow, mCallsWait, mWorkers, mRPCConns, mRPCConnected,
		mRPCBytes, mCredits, mCreditMoves, mRPCRefused, mRPCCopies, mRPCLent, mPortGroup} {
		ch <- d
	}
}

// files are the metrics of the file service, where there is one.
func (m metrics) files(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	m.d.mu.Lock()
	f := m.d.files
	m.d.mu.Unlock()
	if f == nil {
		return
	}
	for _, e := range f.nfs.Stats() {
		for p := range e.Times {
			// A procedure that was never called has no series: most never are.
			if t := &e.Times[p]; t.Count() > 0 {
				ch <- duration(mExport, t, e.Export, strings.ToLower(nfs3.Proc(p).String()))
			}
		}
		for status, n := range e.Errors {
			count(mExportErrors, n, e.Export, status)
		}
		if e.Export != "" {
			count(mExportBytes, e.Read, e.Export, "read")
			count(mExportBytes, e.Written, e.Export, "write")
		}
	}
	gauge(mLocks, float64(f.lock.Locks()))
	s := f.rpc.Stats()
	count(mCalls, s.Calls)
	count(mReplays, s.Replays)
	gauge(mCallsNow, float64(s.Active))
	gauge(mCallsWait, float64(s.Waiting))
	gauge(mWorkers, float64(s.Workers-s.Idle), "busy")
	gauge(mWorkers, float64(s.Idle), "idle")
	gauge(mRPCConns, float64(s.Connections))
	count(mRPCConnected, s.Streams, "tcp")
	count(mRPCConnected, s.RDMA, "rdma")
	count(mRPCBytes, s.BytesIn, "in")
	count(mRPCBytes, s.BytesOut, "out")
	gauge(mCredits, float64(s.Credits))
	count(mCreditMoves, s.CreditsOpened, "opened")
	count(mCreditMoves, s.CreditsClosed, "closed")
	for why, n := range s.Refused {
		count(mRPCRefused, n, why)
	}
	for class, n := range s.CopiedIn {
		count(mRPCCopies, n, "in", class)
	}
	for class, n := range s.CopiedOut {
		count(mRPCCopies, n, "out", class)
	}
	count(mRPCLent, s.Lent)
}

var groupStates = []scsi.AccessState{scsi.ActiveOptimized, scsi.ActiveNonOptimized, scsi.Standby, scsi.Unavailable, scsi.Transitioning}

func (m metrics) portGroups(gauge func(*prometheus.Desc, float64, ...string)) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	for _, t := range m.d.cfg.Targets {
		st := m.d.targets[t.Name]
		if st == nil || t.ALUA == "none" {
			continue
		}
		for _, g := range st.PortGroups() {
			for _, s := range groupStates {
				is := 0.0
				if g.State == s {
					is = 1
				}
				gauge(mPortGroup, is, t.Name, strconv.Itoa(int(g.ID)), s.String())
			}
		}
	}
}
