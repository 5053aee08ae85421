package daemon

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-storage/sluice/internal/version"
	"github.com/sluice-storage/sluice/target/hist"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/transport"
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
	mLatency     = desc("volume_operation_duration_seconds", "Time from a command's arrival to its outcome, moving its data included.", "volume", "operation")
	mSense       = desc("volume_check_conditions_total", "Commands that ended with CHECK CONDITION, by sense key of SPC-4 in hexadecimal.", "volume", "sense_key")
	mQueue       = desc("volume_commands_in_progress", "Commands of all sessions in the volume's task sets now.", "volume")
	mConflicts   = desc("volume_reservation_conflicts_total", "Commands that met a reservation of another initiator's.", "volume")
	mChannels    = desc("session_channels", "RDMA channels of SRP sessions.", "target", "initiator", "transport")
	mLogins      = desc("logins_total", "Sessions that reached full-feature phase, and of SRP channels that were accepted. Transport iSCSI is iSER too.", "transport")
	mRedirects   = desc("login_redirects_total", "Logins sent to another address.")
	mLoginRefuse = desc("login_refusals_total", "Logins refused, by status class and detail of RFC 7143 section 11.13.5 in hexadecimal, and of SRP by reason code of SRP_LOGIN_REJ. Transport iSCSI is iSER too.",
		"transport", "status")
	mEnded       = desc("sessions_ended_total", "Sessions that ended, by reason. Transport iSCSI is iSER too.", "transport", "reason")
	mHeld        = desc("session_memory_bytes", "Registered buffers that sessions hold.", "target", "initiator", "transport")
	mCached      = desc("memory_cached_bytes", "Registered buffers that connections keep for their next command.")
	mMapped      = desc("memory_mapped_bytes", "Registered memory mapped so far.")
	mMemWait     = desc("memory_waiting_connections", "Connections that wait for registered buffers.")
	mMemRefused  = desc("memory_refusals_total", "Requests for buffers that had to wait because all registered memory was in use.")
	mStags       = desc("stags", "STags that exist now: windows a peer may name, and sinks of outstanding RDMA Reads.", "provider", "kind")
	mConns       = desc("fabric_connections", "RDMA connections open now.", "provider")
	mPaths       = desc("fabric_sessions", "iSER and SRP sessions by provider and adapter; the software RNIC has no adapter.", "provider", "device")
	mSends       = desc("fabric_work_requests", "Work requests under way.", "provider")
	mRecvs       = desc("fabric_receives", "Receives posted: messages that peers may send.", "provider")
	mCompletions = desc("fabric_completions_total", "Completions taken from an adapter.", "provider", "device")
	mEvents      = desc("fabric_events_total", "Asynchronous events of an adapter: port_error, port_active, device_fatal, queue_pair_error, completion_queue_error, gid_change, other.",
		"provider", "device", "event")
	mRegistered = desc("fabric_registered_bytes", "Memory registered with an adapter; what each connection has for itself counts each time.", "provider", "device")
	mExposed    = desc("fabric_exposed_bytes", "Registered memory that peers of an adapter may reach at any time: 0 but on iWARP adapters with exposure: whole-slab.", "provider", "device")
	mAdapters   = desc("fabric_adapter_connections", "RDMA connections open now through an adapter.", "provider", "device")
	mFlushes    = desc("fabric_flushes_total", "Times a full socket handed the rest to the flusher.")
	mWakes      = desc("fabric_wakes_total", "Parked owners woken by a local completion.")
	mRecords    = desc("fabric_records_total", "Messages taken from the rings of peers through shared memory.")
	mSharedCopy = desc("fabric_shared_bytes_total", "Payload bytes copied from the memory of peers through shared memory; what lies in their rings is not counted.")
	mBells      = desc("fabric_bells_total", "Peers rung that waited for something in shared memory.")
	mUnsealed   = desc("fabric_refused_memory_total", "Memory of peers that was refused, because it was not sealed or not whole.")
	mTakenBack  = desc("fabric_taken_back_bytes_total", "Bytes that a wrong guess misplaced and that were moved.")
)

// Describe implements prometheus.Collector.
func (m metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{mInfo, mSessions, mInflight, mCommands, mIn, mOut, mCopied, mRejects, mWindow, mSize, mOps, mBytes, mErrors, mMemory,
		mLatency, mSense, mQueue, mConflicts, mChannels, mLogins, mRedirects, mLoginRefuse, mEnded, mHeld, mCached, mMapped, mMemWait, mMemRefused, mStags, mConns, mPaths, mSends,
		mCompletions, mEvents, mRegistered, mExposed, mAdapters,
		mRecvs, mFlushes, mWakes, mRecords, mSharedCopy, mBells, mUnsealed, mTakenBack, mMemoryMax, mFabricBytes, mFPDUs, mSyscalls, mTerminates, mRefused, mFabricCopy} {
		ch <- d
	}
	describeFiles(ch)
	describeQueues(ch)
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
	sessions := m.sessions()
	sessionMetrics(sessions, gauge, count)
	m.volumes(ch, gauge, count)
	mem := m.d.memory.Stats()
	gauge(mMemory, float64(mem.Used))
	gauge(mMemoryMax, float64(mem.Max))
	gauge(mCached, float64(mem.Cached))
	gauge(mMapped, float64(mem.Mapped))
	gauge(mMemWait, float64(mem.Waiting))
	count(mMemRefused, mem.Refused)
	c := m.d.server.Counts()
	count(mRedirects, c.Redirected)
	loginMetrics("iSCSI", c.Logins, c.Refused, c.Ended, count)
	o := m.d.srp.Counts()
	loginMetrics(transportSRP, o.Logins, o.Refused, o.Ended, count)
	m.fabrics(gauge, count)
	for way, n := range pathsOf(sessions) {
		gauge(mPaths, float64(n), way.provider, way.device)
	}
	m.portGroups(gauge)
	m.files(ch, gauge, count)
}

// fabrics are the devices; several may be of one provider.
func (m metrics) fabrics(gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	sums := map[string]transport.Gauges{}
	var shared transport.SharedStats
	sharers := false
	for _, dev := range m.d.devices() {
		g, provider := dev.Gauges(), dev.Name()
		s := sums[provider]
		s.Windows, s.ReadSinks, s.Connections = s.Windows+g.Windows, s.ReadSinks+g.ReadSinks, s.Connections+g.Connections
		s.Sends, s.Receives = s.Sends+g.Sends, s.Receives+g.Receives
		sums[provider] = s
		if x, is := dev.(transport.Streamer); is {
			streamMetrics(x.Stats(), count)
		}
		if x, is := dev.(transport.Sharer); is {
			s := x.Stats()
			shared.Records, shared.Copied, shared.Bells = shared.Records+s.Records, shared.Copied+s.Copied, shared.Bells+s.Bells
			shared.Refused, sharers = shared.Refused+s.Refused, true
		}
		if x, is := dev.(transport.Adapters); is {
			for _, a := range x.Adapters() {
				gauge(mAdapters, float64(a.Connections), provider, a.Name)
				gauge(mRegistered, float64(a.Registered), provider, a.Name)
				gauge(mExposed, float64(a.Exposed), provider, a.Name)
				count(mCompletions, a.Completions, provider, a.Name)
				for event, n := range a.Events {
					count(mEvents, n, provider, a.Name, event)
				}
			}
		}
	}
	if sharers {
		count(mRecords, shared.Records)
		count(mSharedCopy, shared.Copied)
		count(mBells, shared.Bells)
		count(mUnsealed, shared.Refused)
	}
	for provider, s := range sums {
		gauge(mStags, float64(s.Windows), provider, "window")
		gauge(mStags, float64(s.ReadSinks), provider, "read_sink")
		gauge(mConns, float64(s.Connections), provider)
		gauge(mSends, float64(s.Sends), provider)
		gauge(mRecvs, float64(s.Receives), provider)
	}
}

// transportSRP is the transport of SRP's sessions.
const transportSRP = "SRP"

// loginMetrics are what a server counted of logins and ends.
func loginMetrics(transport string, logins uint64, refused, ended map[string]uint64, count func(*prometheus.Desc, uint64, ...string)) {
	count(mLogins, logins, transport)
	for status, n := range refused {
		count(mLoginRefuse, n, transport, status)
	}
	for reason, n := range ended {
		count(mEnded, n, transport, reason)
	}
}

// sampled is a session of either server. What SRP does not have, such as Reject PDUs, is zero.
type sampled struct {
	iscsi.SessionInfo
	channels int // of SRP
}

// sessions are those of both servers, each oldest first.
func (m metrics) sessions() (all []sampled) {
	for _, s := range m.d.server.Sessions() {
		all = append(all, sampled{SessionInfo: s})
	}
	for _, s := range m.d.srp.Sessions() {
		all = append(all, sampled{iscsi.SessionInfo{Initiator: s.Initiator, Target: s.Target, Transport: transportSRP, Active: s.Active, Window: s.Window, Commands: s.Commands,
			BytesIn: s.BytesIn, BytesOut: s.BytesOut, Copied: s.Copied, Memory: s.Memory, Path: s.Path}, s.Channels})
	}
	return all
}

type way struct{ provider, device string }

// pathsOf counts sessions over RDMA by provider and adapter.
func pathsOf(all []sampled) map[way]int {
	n := map[way]int{}
	for _, s := range all {
		if s.Path != nil {
			n[way{s.Path.Provider, s.Path.Device}]++
		}
	}
	return n
}

func streamMetrics(s transport.StreamStats, count func(*prometheus.Desc, uint64, ...string)) {
	count(mFabricBytes, s.BytesIn, "in")
	count(mFabricBytes, s.BytesOut, "out")
	count(mFPDUs, s.FPDUsIn, "in")
	count(mFPDUs, s.FPDUsOut, "out")
	count(mSyscalls, s.Reads, "in")
	count(mSyscalls, s.Writes, "out")
	count(mTerminates, s.Terminates)
	count(mRefused, s.ReadsRefused)
	count(mFlushes, s.FlusherRuns)
	count(mWakes, s.Wakes)
	count(mTakenBack, s.TakenBack)
	for i := range s.CopiedIn {
		count(mFabricCopy, s.CopiedIn[i], "in", copyClass(i))
		count(mFabricCopy, s.CopiedOut[i], "out", copyClass(i))
	}
}

// copyClass is the upper bound of a size class as a label.
func copyClass(i int) string {
	if i < len(transport.CopyBounds) {
		return strconv.Itoa(transport.CopyBounds[i])
	}
	return "+Inf"
}

type nexusKey struct{ target, initiator, transport string }

// maxNexusSeries bounds the label sets with an initiator's name, which is a peer's to choose: those of the oldest sessions have
// their own, all others share one under otherInitiators.
const maxNexusSeries = 256

const otherInitiators = "(other)"

func sessionMetrics(all []sampled, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	type sum struct {
		inflight, window, channels         int
		commands, in, out, copied, rejects uint64
		held                               int64
	}
	sums, per := map[nexusKey]*sum{}, map[[2]string]int{}
	for _, s := range all {
		// Several sessions of one initiator share their labels: they are summed, for a series must be there once.
		k := nexusKey{s.Target, s.Initiator, s.Transport}
		if sums[k] == nil && len(sums) >= maxNexusSeries {
			k = nexusKey{"", otherInitiators, ""}
		}
		if sums[k] == nil {
			sums[k] = &sum{}
		}
		x := sums[k]
		x.inflight, x.window, x.held = x.inflight+s.Active, x.window+s.Window, x.held+s.Memory
		x.commands, x.in, x.out, x.copied, x.rejects = x.commands+s.Commands, x.in+s.BytesIn, x.out+s.BytesOut, x.copied+s.Copied, x.rejects+s.Rejects
		x.channels += s.channels
		per[[2]string{s.Target, s.Transport}]++
	}
	for k, n := range per {
		gauge(mSessions, float64(n), k[0], k[1])
	}
	for k, x := range sums {
		l := []string{k.target, strings.ToValidUTF8(k.initiator, "?"), k.transport}
		gauge(mInflight, float64(x.inflight), l...)
		gauge(mWindow, float64(x.window), l...)
		gauge(mHeld, float64(x.held), l...)
		if x.channels > 0 {
			gauge(mChannels, float64(x.channels), l...)
		}
		count(mCommands, x.commands, l...)
		count(mIn, x.in, l...)
		count(mOut, x.out, l...)
		count(mCopied, x.copied, l...)
		count(mRejects, x.rejects, l...)
	}
}

// duration is a histogram as Prometheus has it: cumulative, in seconds.
func duration(d *prometheus.Desc, s *hist.Snapshot, labels ...string) prometheus.Metric {
	buckets, n := make(map[float64]uint64, len(hist.Bounds)), uint64(0)
	for i, b := range hist.Bounds {
		n += s.Counts[i]
		buckets[b.Seconds()] = n
	}
	return prometheus.MustNewConstHistogram(d, s.Count(), s.Sum.Seconds(), buckets, labels...)
}

func (m metrics) volumes(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	for name, v := range m.d.volumes {
		s := v.lu.Stats()
		gauge(mSize, float64(v.dev.Geometry().Size), name)
		l := v.lu.Latency()
		ch <- duration(mLatency, &l.Read, name, "read")
		ch <- duration(mLatency, &l.Write, name, "write")
		ch <- duration(mLatency, &l.Other, name, "other")
		for key, n := range v.lu.CheckConditions() {
			if n > 0 {
				count(mSense, uint64(n), name, strconv.FormatInt(int64(key), 16))
			}
		}
		gauge(mQueue, float64(v.lu.InProgress()), name)
		count(mConflicts, uint64(s.Conflicts), name)
		count(mOps, uint64(s.Reads), name, "read")
		count(mOps, uint64(s.Writes), name, "write")
		count(mOps, uint64(s.Others), name, "other")
		count(mBytes, uint64(s.ReadBytes), name, "read")
		count(mBytes, uint64(s.WrittenBytes), name, "write")
		count(mErrors, uint64(s.ReadErrors), name, "read")
		count(mErrors, uint64(s.WriteErrors), name, "write")
		queueMetrics(name, v.dev, gauge, count)
	}
}

// metricsHandler serves GET /metrics.
func (d *Daemon) metricsHandler() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics{d}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}
