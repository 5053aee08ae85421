package twohosts

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

const (
	blocks  = 8
	bs      = 512
	workers = 3 // of each host
)

// history is what all hosts have done.
type history struct {
	begin time.Time
	mu    sync.Mutex
	ops   []op
	torn  []op // reads of two values
	wrong []error
	stop  atomic.Bool
	count atomic.Int64
	// theirs are the stranger's operations that were done.
	theirs atomic.Int64
}

func (h *history) now() int64 { return int64(time.Since(h.begin)) }

func (h *history) add(o op) {
	h.count.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

func (h *history) blame(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrong = append(h.wrong, err)
}

// host is one of our initiators with its volume.
type host struct {
	*history
	n    int
	rnic *iwarp.Device
	ini  *block.Initiator
	v    *block.Volume
	may  func(error) bool // errors that a round can bring
	busy [workers]atomic.Int64
	well [workers]atomic.Int64 // calls that were done

	closed atomic.Bool
}

func hostName(n int) string { return fmt.Sprintf("iqn.2026-11.org.example:host-%d", n) }

func openHost(ctx context.Context, h *history, n int, state string, urls []string) (*host, error) {
	x := &host{history: h, n: n, rnic: iwarp.New(iwarp.Options{})}
	var err error
	x.ini, err = block.New(block.Options{Name: hostName(n), Device: x.rnic, StateDir: state, MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		Keepalive: 400 * time.Millisecond, CommandTimeout: 2 * time.Second, ReconnectLimit: 4 * time.Second})
	if err != nil {
		return nil, errors.Join(err, x.rnic.Close())
	}
	if x.v, err = x.ini.Open(ctx, urls...); err != nil {
		return nil, errors.Join(err, x.ini.Close(), x.rnic.Close())
	}
	return x, nil
}

func (x *host) close() error {
	if x.closed.Swap(true) {
		return nil
	}
	return errors.Join(x.v.Close(), x.ini.Close(), x.rnic.Close())
}

// fill makes a block of one value.
func fill(b []byte, v uint64) {
	for k := 0; k < len(b); k += 8 {
		binary.BigEndian.PutUint64(b[k:], v)
	}
}

// fateOf says what an error leaves of a write.
func (x *host) fateOf(err error) fate {
	var sense *block.SenseError
	var status *block.StatusError
	switch {
	case err == nil:
		return done
	case errors.Is(err, blockdev.ErrMiscompare):
		return not
	case errors.Is(err, block.ErrUnsettled): // given up before its end was sure
		return open
	case errors.Is(err, block.ErrOutcomeUnknown), errors.Is(err, block.ErrNoPath), errors.Is(err, block.ErrTimeout):
	case x.may != nil && x.may(err):
	case errors.As(err, &status) && status.Status != 0x18, errors.As(err, &sense) && sense.Key == 2: // waited for as long as it may
	default:
		x.blame(fmt.Errorf("host %d: a call ends with: %w", x.n, err))
	}
	return maybe
}

// work is one worker: it does one thing after the other until the round ends.
func (x *host) work(k int, rnd *rand.Rand) {
	b, err := x.ini.Memory().Get(2 * bs)
	if err != nil {
		x.blame(err)
		return
	}
	defer b.Release()
	var seen [blocks]uint64
	for n := uint64(1); !x.stop.Load(); n++ {
		o := op{host: x.n, block: rnd.IntN(blocks), value: uint64(x.n+1)<<56 | uint64(k+1)<<48 | n}
		span := b.Span()
		r := &blockdev.Request{Offset: int64(o.block) * bs, Length: bs}
		switch d := rnd.IntN(100); {
		case d < 45:
			o.kind, r.Op, r.Data = read, blockdev.Read, []mem.Span{span.Cut(0, bs)}
		case d < 85:
			o.kind, r.Op, r.Data, o.fua = write, blockdev.Write, []mem.Span{span.Cut(0, bs)}, rnd.IntN(8) == 0
			fill(b.Bytes()[:bs], o.value)
		case d < 97:
			o.kind, r.Op, o.old, o.fua = swap, blockdev.CompareWrite, seen[o.block], rnd.IntN(8) == 0
			r.Compare, r.Data = []mem.Span{span.Cut(0, bs)}, []mem.Span{span.Cut(bs, bs)}
			fill(b.Bytes()[:bs], o.old)
			fill(b.Bytes()[bs:], o.value)
		default:
			o.kind, r.Op, r.Length, r.Offset = flush, blockdev.Flush, 0, 0
		}
		r.FUA = o.fua
		o.call = x.now()
		x.busy[k].Store(o.call + 1)
		err := x.v.Do(context.Background(), r)
		o.ret = x.now()
		x.busy[k].Store(0)
		o.fate = x.fateOf(err)
		if err != nil {
			o.err = err.Error()
		} else {
			x.well[k].Add(1)
		}
		if o.kind == read && err == nil {
			if o.value = binary.BigEndian.Uint64(b.Bytes()); !x.whole(o, b.Bytes()[:bs]) {
				continue
			}
		}
		if o.fate == done {
			seen[o.block] = o.value
		}
		x.add(o)
		if err != nil && o.fate != not {
			time.Sleep(10 * time.Millisecond) // what is refused at once would be refused a thousand times
		}
	}
}

// whole reports whether a block holds one value. A read that meets a write may see parts of two: the kernel copies a page
// cache's bytes without a lock that both would take on some file systems.
func (h *history) whole(o op, b []byte) bool {
	want := make([]byte, len(b))
	fill(want, o.value)
	if bytes.Equal(b, want) {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.torn = append(h.torn, o)
	return false
}

// tornAlone are torn reads that met no write.
func (h *history) tornAlone() error {
	for _, t := range h.torn {
		met := false
		for _, o := range h.ops {
			met = met || o.kind != read && o.block == t.block && o.call <= t.ret && (o.ret >= t.call || o.fate == open)
		}
		if !met {
			return fmt.Errorf("a read of two values at a time when nothing was written: %v", t)
		}
	}
	return nil
}
