package twohosts

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/storm"
)

const (
	// patience bounds each call: many times what an initiator's limits add up to.
	patience = 60 * time.Second
	// judgement bounds the search for an order.
	judgement = 2 * time.Minute
)

// round is one run of all hosts at one daemon.
type round struct {
	*stand
	*history
	t      *testing.T
	rnd    *rand.Rand
	hosts  []*host
	wires  [][]*wire // of each host, by portal
	counts map[string]int
}

func TestStormTwoHosts(t *testing.T) {
	seed := storm.Seed(t)
	for n := range storm.Rounds(t, 2) {
		t.Run(fmt.Sprintf("seed=%d", seed+uint64(n)), func(t *testing.T) { oneRound(t, seed+uint64(n)) })
	}
}

func oneRound(t *testing.T, seed uint64) {
	r := &round{t: t, rnd: rand.New(rand.NewPCG(seed, 2)), history: &history{begin: time.Now()}, counts: map[string]int{}}
	defer func() {
		for what, n := range r.counts {
			storm.Count(t, what, n)
		}
	}()
	r.stand = newStand(t, t.TempDir())
	r.begin = time.Now()
	r.open()
	var wg sync.WaitGroup
	for _, x := range r.hosts {
		for k := range workers {
			rnd := rand.New(rand.NewPCG(seed, uint64(100+10*x.n+k)))
			wg.Go(func() { x.work(k, rnd) })
		}
	}
	r.faults()
	r.settle()
	r.stop.Store(true)
	r.finish(&wg)
	r.end()
	if t.Failed() {
		return
	}
	r.verdict()
}

// open has each host log in at all portals, through wires of its own.
func (r *round) open() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for n := range 2 {
		var urls []string
		var ws []*wire
		for k := range portals {
			w, err := newWire(func() string { return r.portal(k) })
			if err != nil {
				r.t.Fatal(err)
			}
			r.t.Cleanup(w.close)
			ws = append(ws, w)
			urls = append(urls, fmt.Sprintf("%s://%s/%s/0", []string{"iscsi", "iser"}[r.rnd.IntN(2)], w.addr(), iqn))
		}
		r.wires = append(r.wires, ws)
		x, err := openHost(ctx, r.history, n, filepath.Join(r.Dir, fmt.Sprint("initiator", n)), urls)
		if err != nil {
			r.t.Fatal(err)
		}
		r.hosts = append(r.hosts, x)
		r.t.Cleanup(func() {
			if r.stop.Swap(true); r.t.Failed() {
				go x.close() // it may hang, and it may be closed
			}
		})
	}
}

// pause lets the hosts work. How long is a part of what is tried.
func (r *round) pause(most time.Duration) {
	time.Sleep(time.Duration(r.rnd.Int64N(int64(most))))
	r.watch()
}

// watch fails the round with all stacks when a call takes too long.
func (r *round) watch() {
	now := r.now()
	for _, x := range r.hosts {
		for k := range x.busy {
			if since := x.busy[k].Load(); since > 0 && now-since > int64(patience) {
				r.hang(fmt.Sprintf("a call of host %d has taken %v", x.n, time.Duration(now-since)))
			}
		}
	}
	r.history.mu.Lock()
	defer r.history.mu.Unlock()
	if len(r.wrong) > 0 {
		r.t.Fatal(r.wrong)
	}
}

// hang shows where everything is.
func (r *round) hang(why string) {
	r.Signal(syscall.SIGQUIT) // the daemon's stacks are in its log
	b := make([]byte, 4<<20)
	b = b[:runtime.Stack(b, true)]
	for _, x := range r.hosts {
		for _, p := range x.v.Paths() {
			r.t.Logf("host %d: %+v", x.n, p)
		}
	}
	r.t.Fatalf("%s\n%s", why, b)
}

// settle waits until every worker has done something again.
func (r *round) settle() {
	for _, ws := range r.wires {
		for _, w := range ws {
			w.mend()
		}
	}
	var from [2][workers]int64
	for _, x := range r.hosts {
		for k := range workers {
			from[x.n][k] = x.well[k].Load()
		}
	}
	begin := time.Now()
	for _, x := range r.hosts {
		for k := 0; k < workers; time.Sleep(5 * time.Millisecond) { // a worker has no time to tell
			if r.watch(); x.well[k].Load() >= from[x.n][k]+3 {
				k++
			} else if time.Since(begin) > patience {
				r.hang(fmt.Sprintf("host %d does not get on after everything was mended", x.n))
			}
		}
	}
}

// finish waits for the end of all workers.
func (r *round) finish(wg *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	for {
		select {
		case <-ended:
			return
		case <-time.After(patience / 10):
			r.watch()
		}
	}
}

// end reads every block by every host, ends everything, and reads the file: nothing comes late.
func (r *round) end() {
	for _, x := range r.hosts {
		closed := make(chan error, 1)
		go func() {
			for b := range blocks {
				p := make([]byte, bs)
				o := op{host: x.n, block: b, call: r.now()}
				if _, err := x.v.ReadAt(p, int64(b)*bs); err != nil {
					r.blame(fmt.Errorf("host %d: the last read of block %d: %w", x.n, b, err))
					continue
				}
				o.ret, o.value = r.now(), binary.BigEndian.Uint64(p)
				if r.whole(o, p) {
					r.add(o)
				}
			}
			closed <- x.close()
		}()
		select {
		case err := <-closed:
			if err != nil {
				r.t.Errorf("host %d: close: %v", x.n, err)
			}
		case <-time.After(patience):
			r.hang(fmt.Sprintf("host %d does not close its volume", x.n))
		}
	}
	r.Stop()
	b, err := os.ReadFile(r.file)
	if err != nil {
		r.t.Fatal(err)
	}
	for k := range blocks {
		p := b[k*bs : (k+1)*bs]
		o := op{host: -1, block: k, call: r.now(), value: binary.BigEndian.Uint64(p)}
		o.ret = o.call + 1
		if r.whole(o, p) {
			r.add(o)
		}
	}
}

// verdict judges what the hosts saw.
func (r *round) verdict() {
	for _, err := range r.wrong {
		r.t.Error(err)
	}
	if err := r.tornAlone(); err != nil {
		r.t.Error(err)
	}
	b, err := os.ReadFile(r.other)
	if err != nil {
		r.t.Fatal(err)
	}
	for k, c := range b {
		if c != 0 {
			r.t.Fatalf("a host has written at %d of a volume that it does not know", k)
		}
	}
	fates := map[string]int{}
	for _, o := range r.ops {
		fates[o.kind.String()+" "+o.fate.String()]++
	}
	again, err := judge(r.ops, blocks, false, judgement)
	if err != nil {
		r.t.Error(err)
	}
	r.counts["rounds"]++
	r.counts["operations"] += int(r.count.Load())
	r.counts["torn reads"] += len(r.torn)
	r.counts["blocks with a write that counts twice"] += again
	r.t.Logf("%d operations %v, %v, %v", r.count.Load(), fates, r.counts, time.Since(r.begin))
}
