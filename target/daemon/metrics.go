package daemon

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-storage/sluice/internal/version"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// metrics reads plain counters when it is scraped: the data path knows nothing of Prometheus.
type metrics struct{ d *Daemon }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_"+name, help, labels, nil)
}

var (
	mInfo        = desc("build_info", "Always 1; the version is in the label.", "version")
	mSessions    = desc("sessions", "Sessions in full-feature phase.", "target", "transport")
	mInflight    = desc("session_commands_in_progress", "SCSI commands running now.", "target", "initiator", "transport")
	mCommands    = desc("session_commands_total", "SCSI commands since the session began.", "target", "initiator", "transport")
	mIn          = desc("session_received_bytes_total", "Data-Out bytes taken from the initiator since the session began.", "target", "initiator", "transport")
	mOut         = desc("session_sent_bytes_total", "Data-In bytes sent to the initiator since the session began.", "target", "initiator", "transport")
	mCopied      = desc("session_copied_bytes_total", "Payload bytes the session layer copied since the session began; over iSER unsolicited data only.", "target", "initiator", "transport")
	mRejects     = desc("session_rejects_total", "Reject PDUs sent since the session began.", "target", "initiator", "transport")
	mWindow      = desc("session_command_window", "Commands the initiator may have outstanding (MaxCmdSN window).", "target", "initiator", "transport")
	mSize        = desc("volume_size_bytes", "Size of the volume.", "volume")
	mOps         = desc("volume_operations_total", "Commands that ended, by kind.", "volume", "operation")
	mBytes       = desc("volume_bytes_total", "Bytes moved between medium and initiators.", "volume", "direction")
	mErrors      = desc("volume_errors_total", "Reads and writes that the medium failed.", "volume", "operation")
	mMemory      = desc("memory_used_bytes", "Registered buffers handed out.")
	mMemoryMax   = desc("memory_limit_bytes", "Registered buffers there may be: the key memory of the configuration.")
	mFabricBytes = desc("fabric_stream_bytes_total", "Bytes of TCP stream the software RNIC moved.", "direction")
	mFPDUs       = desc("fabric_fpdus_total", "MPA frames.", "direction")
	mSyscalls    = desc("fabric_system_calls_total", "System calls that moved data.", "direction")
	mTerminates  = desc("fabric_terminates_total", "RDMAP Terminate messages sent or received.")
	mRefused     = desc("fabric_reads_refused_total", "RDMA Read Requests beyond the negotiated depth.")
	mFabricCopy  = desc("fabric_copied_bytes_total", "Payload bytes copied in the software RNIC, by the size of the buffer: the class's upper bound in bytes.", "direction", "size_class")
	mRPC         = desc("rpc_total", "Counters of the file service.", "what")
)

// Describe implements prometheus.Collector.
func (m metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{mInfo, mSessions, mInflight, mCommands, mIn, mOut, mCopied, mRejects, mWindow, mSize, mOps, mBytes, mErrors, mMemory,
		mMemoryMax, mFabricBytes, mFPDUs, mSyscalls, mTerminates, mRefused, mFabricCopy, mRPC} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(mInfo, 1, version.String())
	m.sessions(gauge, count)
	m.volumes(gauge, count)
	gauge(mMemory, float64(m.d.memory.Used()))
	gauge(mMemoryMax, float64(m.d.memory.Stats().Max))
	s := m.d.device.Stats()
	count(mFabricBytes, s.BytesIn, "in")
	count(mFabricBytes, s.BytesOut, "out")
	count(mFPDUs, s.FPDUsIn, "in")
	count(mFPDUs, s.FPDUsOut, "out")
	count(mSyscalls, s.Reads, "in")
	count(mSyscalls, s.Writes, "out")
	count(mTerminates, s.Terminates)
	count(mRefused, s.ReadsRefused)
	for i := range s.CopiedIn {
		count(mFabricCopy, s.CopiedIn[i], "in", copyClass(i))
		count(mFabricCopy, s.CopiedOut[i], "out", copyClass(i))
	}
	if m.d.files != nil {
		for what, n := range m.d.files.rpc.Counters() {
			count(mRPC, n, what)
		}
	}
}

// copyClass is the upper bound of a size class as a label.
func copyClass(i int) string {
	for n := 1; n <= 1<<20; n <<= 1 {
		for _, v := range []int{n - 1, n} {
			if iwarp.CopyClass(v) == i && iwarp.CopyClass(v+1) == i+1 {
				return strconv.Itoa(v)
			}
		}
	}
	return "+Inf"
}

type nexusKey struct{ target, initiator, transport string }

func (m metrics) sessions(gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	type sum struct {
		inflight, window                   int
		commands, in, out, copied, rejects uint64
	}
	sums, per := map[nexusKey]*sum{}, map[[2]string]int{}
	for _, s := range m.d.server.Sessions() {
		// Several sessions of one initiator share their labels: they are summed, for a series must be there once.
		k := nexusKey{s.Target, s.Initiator, s.Transport}
		if sums[k] == nil {
			sums[k] = &sum{}
		}
		x := sums[k]
		x.inflight, x.window = x.inflight+s.Active, x.window+s.Window
		x.commands, x.in, x.out, x.copied, x.rejects = x.commands+s.Commands, x.in+s.BytesIn, x.out+s.BytesOut, x.copied+s.Copied, x.rejects+s.Rejects
		per[[2]string{s.Target, s.Transport}]++
	}
	for k, n := range per {
		gauge(mSessions, float64(n), k[0], k[1])
	}
	for k, x := range sums {
		l := []string{k.target, strings.ToValidUTF8(k.initiator, "?"), k.transport}
		gauge(mInflight, float64(x.inflight), l...)
		gauge(mWindow, float64(x.window), l...)
		count(mCommands, x.commands, l...)
		count(mIn, x.in, l...)
		count(mOut, x.out, l...)
		count(mCopied, x.copied, l...)
		count(mRejects, x.rejects, l...)
	}
}

func (m metrics) volumes(gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	for name, v := range m.d.volumes {
		s := v.lu.Stats()
		gauge(mSize, float64(v.dev.Geometry().Size), name)
		count(mOps, uint64(s.Reads), name, "read")
		count(mOps, uint64(s.Writes), name, "write")
		count(mOps, uint64(s.Others), name, "other")
		count(mBytes, uint64(s.ReadBytes), name, "read")
		count(mBytes, uint64(s.WrittenBytes), name, "write")
		count(mErrors, uint64(s.ReadErrors), name, "read")
		count(mErrors, uint64(s.WriteErrors), name, "write")
	}
}

// metricsHandler serves GET /metrics.
func (d *Daemon) metricsHandler() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics{d}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}
