package twohosts

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/storm"
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

	fs       *faultfs.FS // what the volume lies on, where its power can be cut
	alien    *stranger
	remapped atomic.Bool // another unit has been in the volume's place
	shuts    []shut
	reserved [][2]int64 // when a reservation may have been held
}

func TestStormTwoHosts(t *testing.T) {
	need.Tool(t, "qemu-io", "qemu-utils")
	need.File(t, "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so", "qemu-block-extra")
	seed := storm.Seed(t)
	for n := range storm.Rounds(t, 2) {
		seed := seed + uint64(n)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { oneRound(t, seed) })
	}
}

func oneRound(t *testing.T, seed uint64) {
	r := &round{t: t, rnd: rand.New(rand.NewPCG(seed, 2)), history: &history{begin: time.Now()}, counts: map[string]int{}}
	defer func() {
		for what, n := range r.counts {
			storm.Count(t, what, n)
		}
	}()
	dir := ""
	if seed%2 == 0 {
		r.fs = faultfs.Mount(t)
		dir = r.fs.Dir
	} else {
		dir = t.TempDir()
	}
	r.stand = newStand(t, dir)
	r.begin = time.Now()
	r.open()
	r.met()
	var wg sync.WaitGroup
	for _, x := range r.hosts {
		for k := range workers {
			rnd := rand.New(rand.NewPCG(seed, uint64(100+10*x.n+k)))
			wg.Go(func() { x.work(k, rnd) })
		}
	}
	wg.Go(func() { r.alien.work(rand.New(rand.NewPCG(seed, 99))) })
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
	k := r.rnd.IntN(portals)
	w := r.wire(k)
	r.alien = &stranger{history: r.history, url: "iscsi://" + w.addr() + "/" + iqn + "/0"}
	for n := range 2 {
		var urls []string
		var ws []*wire
		for k := range portals {
			w := r.wire(k)
			ws = append(ws, w)
			urls = append(urls, fmt.Sprintf("%s://%s/%s/0", []string{"iscsi", "iser"}[r.rnd.IntN(2)], w.addr(), iqn))
		}
		r.wires = append(r.wires, ws)
		x, err := openHost(ctx, r.history, n, filepath.Join(r.Dir, fmt.Sprint("initiator", n)), urls)
		if err != nil {
			r.t.Fatal(err)
		}
		x.may = r.may
		r.hosts = append(r.hosts, x)
		r.t.Cleanup(func() {
			r.alien.kill(true)
			if r.stop.Swap(true); r.t.Failed() {
				go x.close() // it may hang, and it may be closed
			}
		})
	}
	// The file's size is durable with its first fsync.
	if _, err := r.hosts[0].v.WriteAt(make([]byte, bs), size-bs); err != nil {
		r.t.Fatal(err)
	}
	if err := r.hosts[0].v.Flush(ctx); err != nil {
		r.t.Fatal(err)
	}
	r.wires = append(r.wires, []*wire{w}) // the stranger's is the last
}

// met waits until the daemon has noted that each path of ours has heard POWER ON: a kill before that has it said once more.
func (r *round) met() {
	r.t.Helper()
	for begin := time.Now(); ; time.Sleep(2 * time.Millisecond) { // the note is a file
		files, err := filepath.Glob(filepath.Join(r.State, "scsi", "lu-*.json"))
		if err != nil {
			r.t.Fatal(err)
		}
		n := 0
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil {
				n += bytes.Count(b, []byte(hostName(0)+",")) + bytes.Count(b, []byte(hostName(1)+","))
			}
		}
		if n >= 2*portals {
			return
		}
		if time.Since(begin) > patience {
			r.t.Fatalf("the daemon has noted %d paths: %v", n, files)
		}
	}
}

func (r *round) wire(portal int) *wire {
	r.t.Helper()
	w, err := newWire(func() string { return r.portal(portal) })
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(w.close)
	return w
}

// may says which errors a host can have for what is done to it. The POWER ON of a unit in the volume's place is taken for the
// volume's: a flush that fails for it is one too many.
func (r *round) may(err error) bool {
	var sense *block.SenseError
	return errors.Is(err, block.ErrReserved) || r.fs != nil && (errors.Is(err, block.ErrPowerLost) || errors.Is(err, blockdev.ErrMedium)) || r.remapped.Load() && (errors.Is(err, block.ErrOtherUnit) || errors.Is(err, block.ErrPowerLost) || errors.As(err, &sense) && sense.Key == 5)
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
	late := time.AfterFunc(3*time.Second, func() { r.alien.kill(true) }) // libiscsi waits for as long as it takes
	defer late.Stop()
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
	b := r.content()
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
	if err := errors.Join(r.allowed(), obeyed(r.ops, r.shuts)); err != nil {
		r.t.Error(err)
	}
	fates := map[string]int{}
	for _, o := range r.ops {
		fates[o.kind.String()+" "+o.fate.String()]++
		if o.err != "" && o.fate != not {
			fates[o.kind.String()+": "+o.err[:min(len(o.err), 70)]]++
		}
	}
	heard, err := told(r.ops)
	if err != nil {
		r.t.Error(err)
	}
	limit := judgement
	if !storm.Long() {
		limit = judgement / 40
	}
	again, err := judge(r.ops, blocks, r.fs != nil, limit)
	if errors.Is(err, errUndecided) && !storm.Long() {
		r.t.Log(err) // a busy machine may not have the time; the long form must
	} else if err != nil {
		r.t.Error(err)
	}
	r.counts["rounds"]++
	r.counts["operations"] += int(r.count.Load())
	r.counts["operations of the stranger"] += int(r.theirs.Load())
	r.counts["losses of power heard"] += heard
	r.counts["torn reads"] += len(r.torn)
	r.counts["blocks with a write that counts twice"] += again
	r.t.Logf("%d operations %v, %v, %v", r.count.Load(), fates, r.counts, time.Since(r.begin))
}
