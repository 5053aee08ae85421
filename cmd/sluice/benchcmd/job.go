package benchcmd

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
)

// spec is what every job does, in fio's vocabulary.
type spec struct {
	pattern  string // read, write, randread, randwrite, rw, randrw
	mix      int    // percent of reads in a mixed pattern
	block    int    // bytes
	depth    int
	offset   int64 // the region worked on
	size     int64
	runtime  time.Duration
	verify   bool
	random   bool
	hasRead  bool
	hasWrite bool
}

// Latencies are kept from a microsecond to a minute with three digits: 60 KiB a direction and job.
const (
	minLatency = 1_000
	maxLatency = 60_000_000_000
	digits     = 3
)

// side is what one direction of a job did.
type side struct {
	ios, bytes int64
	lat        *hdrhistogram.Histogram // ns
}

func newSide() side { return side{lat: hdrhistogram.New(minLatency, maxLatency, digits)} }

// job keeps depth requests under way on one session. The volume calls back on its own goroutine, and there the request is
// used again: an I/O allocates nothing and wakes no goroutine.
type job struct {
	s     *spec
	v     *block.Volume
	id    int
	began time.Time
	end   time.Time

	mu     sync.Mutex
	rng    *rand.Rand
	next   int64
	read   side
	write  side
	err    error
	live   int
	done   chan struct{}
	stop   atomic.Bool
	total  *atomic.Int64 // bytes of all jobs, for the progress line
	fill   []byte        // what lies between the stamps
	stamps []uint32      // verify: how often each block was written
	busy   []bool        // verify: a block is written by one request at a time
}

type slot struct {
	j     *job
	req   blockdev.Request
	buf   *mem.Buf
	start time.Time
	block int64
}

func newJob(s *spec, v *block.Volume, id int, total *atomic.Int64) *job {
	j := &job{s: s, v: v, id: id, rng: rand.New(rand.NewPCG(uint64(id)+1, 1)), read: newSide(), write: newSide(), done: make(chan struct{}), total: total, fill: make([]byte, s.block)}
	for i := range j.fill {
		j.fill[i] = byte(i * 7)
	}
	if s.verify {
		j.stamps, j.busy = make([]uint32, s.size/int64(s.block)), make([]bool, s.size/int64(s.block))
	}
	return j
}

// run works until the time is over and every request has ended.
func (j *job) run() error {
	j.began = time.Now()
	j.end = j.began.Add(j.s.runtime)
	var slots []*slot
	defer func() {
		for _, sl := range slots {
			sl.buf.Release()
		}
	}()
	for range j.s.depth {
		b, err := j.v.Memory().Get(j.s.block)
		if err != nil {
			return fmt.Errorf("buffers for %d requests of %d bytes: %w", j.s.depth, j.s.block, err)
		}
		copy(b.Bytes(), j.fill)
		sl := &slot{j: j, buf: b}
		sl.req.Done = func(*blockdev.Request) { j.ended(sl) }
		slots = append(slots, sl)
	}
	j.live = len(slots)
	for _, sl := range slots {
		j.start(sl)
	}
	<-j.done
	if j.err != nil {
		return j.err
	}
	return nil
}

// start submits the next request of a slot, or retires it.
func (j *job) start(sl *slot) {
	j.mu.Lock()
	now := time.Now()
	if j.err != nil || now.After(j.end) || j.stop.Load() {
		if j.live--; j.live == 0 {
			close(j.done)
		}
		j.mu.Unlock()
		return
	}
	write := j.s.hasWrite
	if j.s.hasRead && j.s.hasWrite {
		write = j.rng.IntN(100) >= j.s.mix
	}
	sl.block = j.pickLocked(write)
	r := &sl.req
	done, data := r.Done, r.Data[:0]
	*r = blockdev.Request{Op: blockdev.Read, Offset: j.s.offset + sl.block*int64(j.s.block), Length: int64(j.s.block), Data: append(data, sl.buf.Span()), Done: done, Priv: r.Priv}
	if write {
		r.Op = blockdev.Write
		if j.stamps != nil {
			j.stamps[sl.block]++
			j.busy[sl.block] = true
			copy(sl.buf.Bytes(), j.fill) // a read may have used the buffer
			stamp(sl.buf.Bytes(), j.id, sl.block, j.stamps[sl.block])
		}
	}
	sl.start = now
	j.mu.Unlock()
	j.v.Submit(r)
}

// pickLocked chooses a block. With verification a block is never written twice at a time, for then it could not be told
// what it holds.
func (j *job) pickLocked(write bool) int64 {
	blocks := j.s.size / int64(j.s.block)
	for {
		b := j.next
		if j.s.random {
			b = j.rng.Int64N(blocks)
		} else if j.next++; j.next == blocks {
			j.next = 0
		}
		if !write || j.busy == nil || !j.busy[b] {
			return b
		}
	}
}

// ended is the volume's callback.
func (j *job) ended(sl *slot) {
	lat := time.Since(sl.start)
	j.mu.Lock()
	if sl.req.Err != nil && j.err == nil {
		j.err = sl.req.Err
	}
	s := &j.read
	if sl.req.Op == blockdev.Write {
		s = &j.write
		if j.busy != nil {
			j.busy[sl.block] = false
		}
	}
	s.ios++
	s.bytes += int64(j.s.block)
	_ = s.lat.RecordValue(min(max(int64(lat), minLatency), maxLatency)) // clamped: it is always in range
	j.mu.Unlock()
	j.total.Add(int64(j.s.block))
	j.start(sl)
}

// stamp marks every 512 bytes of a block with who wrote it, where, and for the how-many-th time.
func stamp(b []byte, id int, at int64, n uint32) {
	for i := 0; i+20 <= len(b); i += 512 {
		binary.BigEndian.PutUint32(b[i:], uint32(id))
		binary.BigEndian.PutUint64(b[i+4:], uint64(at))
		binary.BigEndian.PutUint32(b[i+12:], n)
		binary.BigEndian.PutUint32(b[i+16:], uint32(i))
	}
}
