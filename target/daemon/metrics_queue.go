package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-storage/sluice/blockdev"
)

var (
	mRing       = desc("volume_io_uring", "1 where what waits for the medium waits in the kernel, by io_uring; 0 where it takes one of the volume's few threads. volume list says why.", "volume")
	mRingOps    = desc("volume_io_uring_requests_total", "Reads and writes that went by io_uring.", "volume")
	mRingCalls  = desc("volume_io_uring_calls_total", "System calls that submitted them.", "volume")
	mRingAgain  = desc("volume_io_uring_finished_by_workers_total", "Of them, those that a thread of the volume's had to finish: they came back short, interrupted or refused.", "volume")
	mRingInside = desc("volume_io_uring_requests_in_progress", "Reads and writes that the kernel has now.", "volume")
)

func describeQueues(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{mRing, mRingOps, mRingCalls, mRingAgain, mRingInside} {
		ch <- d
	}
}

// queueMetrics are of a volume whose engine says where its requests wait.
func queueMetrics(name string, dev blockdev.Device, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	q, some := blockdev.QueueOf(dev)
	if !some {
		return
	}
	in := 0.0
	if q.Kernel {
		in = 1
	}
	gauge(mRing, in, name)
	gauge(mRingInside, float64(q.UnderWay), name)
	count(mRingOps, q.Requests, name)
	count(mRingCalls, q.Calls, name)
	count(mRingAgain, q.Again, name)
}
