package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// writers fill regions of their own, round after round, and check at the end that the last round is what is there.
func writers(t *testing.T, v *block.Volume, n, rounds int, size int, during func(round int32)) {
	t.Helper()
	var wg sync.WaitGroup
	var top atomic.Int32
	errs := make([]error, n)
	for k := range n {
		wg.Go(func() {
			for r := range rounds {
				if _, errs[k] = v.WriteAt(pattern(size, int64(r*n+k)), int64(k*size)); errs[k] != nil {
					return
				}
				if k == 0 {
					during(top.Add(1))
				}
				if r%3 == 2 {
					got := make([]byte, size)
					if _, errs[k] = v.ReadAt(got, int64(k*size)); errs[k] != nil {
						return
					}
					if !bytes.Equal(got, pattern(size, int64(r*n+k))) {
						errs[k] = fmt.Errorf("writer %d, round %d: what is read is not what was written", k, r)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	for k := range n {
		must(t, errs[k])
		got := make([]byte, size)
		_, err := v.ReadAt(got, int64(k*size))
		must(t, err)
		if !bytes.Equal(got, pattern(size, int64((rounds-1)*n+k))) {
			t.Fatalf("region %d is not what was written last", k)
		}
	}
}

// The wire is cut in the middle of anything, many times; no request fails and nothing is lost.
func TestCutsAreRepaired(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	addr := s.Portal("127.0.0.1", 1)
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			w := newRelay(t, addr)
			v := open(t, host(t, block.Options{}, iwarp.Options{}), url(scheme, w.addr()))
			writers(t, v, 16, 12, 32<<10, func(round int32) {
				if round%2 == 0 {
					w.after(rand.Int63n(256 << 10))
				}
			})
		})
	}
}

// gate holds writes back until it is opened.
type gate struct {
	blockdev.Device
	mu   sync.Mutex
	shut bool
	only int // with shut, how many are held, 0 for all
	held []*blockdev.Request
	came chan struct{}
}

func (g *gate) Can(op blockdev.Op) bool { return blockdev.Can(g.Device, op) }

func (g *gate) Submit(r *blockdev.Request) {
	g.mu.Lock()
	if g.shut && (r.Op == blockdev.Write || r.Op == blockdev.CompareWrite) && (g.only == 0 || len(g.held) < g.only) {
		g.held = append(g.held, r)
		g.mu.Unlock()
		g.came <- struct{}{}
		return
	}
	g.mu.Unlock()
	g.Device.Submit(r)
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	g.shut = shut
	var held []*blockdev.Request
	if !shut {
		held, g.held = g.held, nil
	}
	g.mu.Unlock()
	for _, r := range held {
		g.Device.Submit(r)
	}
}

func gated(t *testing.T) (*served, *gate) {
	g := &gate{came: make(chan struct{}, 1024)}
	return newStand(t, iwarp.Options{}, func(d blockdev.Device) blockdev.Device { g.Device = d; return g }), g
}

func submit(t *testing.T, v *block.Volume, op blockdev.Op, off int64, data, compare []byte) (*blockdev.Request, chan error) {
	t.Helper()
	span := func(b []byte) []mem.Span {
		if b == nil {
			return nil
		}
		buf, err := v.Memory().Get(len(b))
		must(t, err)
		t.Cleanup(buf.Release)
		copy(buf.Bytes(), b)
		return []mem.Span{buf.Span()}
	}
	done := make(chan error, 1)
	r := &blockdev.Request{Op: op, Offset: off, Length: int64(len(data)), Data: span(data), Compare: span(compare), Done: func(r *blockdev.Request) { done <- r.Err }}
	v.Submit(r)
	return r, done
}

func wait(t *testing.T, c chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		t.Fatal("the request does not end")
		return nil
	}
}

// A write and a comparison hang in the target when the wire is cut. The write is done again; the comparison is not, and
// its caller is told only after the target has ended it, so that what is then read stays.
func TestOutcomeUnknown(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			s, g := gated(t)
			w := newRelay(t, s.Portal("127.0.0.1", 1))
			v := open(t, host(t, block.Options{}, iwarp.Options{}), url(scheme, w.addr()))
			g.set(true)
			_, written := submit(t, v, blockdev.Write, 0, pattern(4096, 1), nil)
			<-g.came
			_, compared := submit(t, v, blockdev.CompareWrite, 8192, pattern(512, 2), make([]byte, 512))
			<-g.came
			w.cut(false)
			select {
			case err := <-compared:
				t.Fatalf("the comparison ended before the target let go of it: %v", err)
			case <-time.After(50 * time.Millisecond): // a chance to be wrong; being slow hides nothing but that
			}
			g.set(false)
			must(t, wait(t, written))
			if err := wait(t, compared); !errors.Is(err, block.ErrOutcomeUnknown) {
				t.Fatal(err)
			}
			got := make([]byte, 4096)
			_, err := v.ReadAt(got, 0)
			must(t, err)
			if !bytes.Equal(got, pattern(4096, 1)) {
				t.Fatal("the write is lost")
			}
		})
	}
}

// passes waits until bytes pass through the wire beyond those that have passed.
func (r *relay) passes(t *testing.T, from int64) {
	t.Helper()
	for deadline := time.Now().Add(patience); r.passed() == from; time.Sleep(time.Millisecond) { // a wire announces nothing
		if time.Now().After(deadline) {
			t.Fatal("nothing is sent")
		}
	}
}

// A context that ends aborts its command, which is asked of the target, and the memory is free on return.
func TestCancelAborts(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			s, g := gated(t)
			w := newRelay(t, s.Portal("127.0.0.1", 1))
			v := open(t, host(t, block.Options{Keepalive: time.Hour}, iwarp.Options{Nudge: -1}), url(scheme, w.addr()))
			g.set(true)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() {
				_, err := v.WriteAtContext(ctx, pattern(4096, 1), 0)
				done <- err
			}()
			<-g.came
			from := w.passed()
			cancel()
			w.passes(t, from) // it can be nothing but the abort
			// The target answers the abort when the device has let go.
			g.set(false)
			if err := wait(t, done); !errors.Is(err, context.Canceled) {
				t.Fatalf("the outcome of a cancelled write is %v", err)
			}
			_, err := v.WriteAt(pattern(4096, 2), 0)
			must(t, err)
		})
	}
}

// Many commands are aborted at once, which takes more task management than a target has room for at a time. Each ends as
// cancelled, because Cancel came before its end.
func TestCancelManyCommands(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			s, g := gated(t)
			v := open(t, host(t, block.Options{}, iwarp.Options{}), url(scheme, s.Portal("127.0.0.1", 1)))
			g.set(true)
			const n = 60
			var reqs []*blockdev.Request
			var done []chan error
			for k := range n {
				r, d := submit(t, v, blockdev.Write, int64(k)*4096, pattern(4096, 1), nil)
				reqs, done = append(reqs, r), append(done, d)
			}
			<-g.came
			for _, r := range reqs {
				v.Cancel(r)
			}
			g.set(false)
			for k, d := range done {
				if err := wait(t, d); !errors.Is(err, block.ErrCancelled) {
					t.Fatalf("cancelled write %d ends with %v", k, err)
				}
			}
			_, err := v.WriteAt(pattern(4096, 2), 0)
			must(t, err)
		})
	}
}

// A target that has moved is found at its new address.
func TestRedirection(t *testing.T) {
	there := newStand(t, iwarp.Options{})
	addr := there.Portal("127.0.0.1", 1)
	here := newStand(t, iwarp.Options{})
	must(t, here.Server.UpdateTarget(iscsi.Target{Name: iqn, Redirect: &iscsi.Redirect{Address: addr + ",1"}}))
	old := here.Portal("127.0.0.1", 1)
	for _, scheme := range schemes {
		v := open(t, host(t, block.Options{}, iwarp.Options{}), url(scheme, old))
		_, err := v.WriteAt(pattern(4096, 1), 0)
		must(t, err)
	}
	// Each points at the other: the login ends.
	must(t, there.Server.UpdateTarget(iscsi.Target{Name: iqn, Redirect: &iscsi.Redirect{Address: old}}))
	if v, err := host(t, block.Options{}, iwarp.Options{}).Open(t.Context(), url("iser", old)); err == nil {
		t.Fatal(errors.Join(errors.New("a circle leads somewhere"), v.Close()))
	}
}

func TestTheReconnectLimit(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	w := newRelay(t, s.Portal("127.0.0.1", 1))
	v := open(t, host(t, block.Options{ReconnectLimit: 100 * time.Millisecond}, iwarp.Options{}), url("iser", w.addr()))
	w.cut(true)
	if _, err := v.ReadAt(make([]byte, 512), 0); !errors.Is(err, block.ErrNoPath) {
		t.Fatal(err)
	}
	w.mend()
	for deadline := time.Now().Add(patience); ; {
		_, err := v.ReadAt(make([]byte, 512), 0)
		if err == nil {
			break
		}
		if !errors.Is(err, block.ErrNoPath) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestRefusals(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	addr := s.Portal("127.0.0.1", 1)
	i := host(t, block.Options{}, iwarp.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, scheme := range schemes {
		for _, bad := range []string{scheme + "://" + addr + "/iqn.2026-01.org.example:other/0", scheme + "://" + addr + "/" + iqn + "/7",
			scheme + "://joe%secret@" + addr + "/" + iqn + "/0?target_password=proof", scheme + "://127.0.0.1:1/" + iqn + "/0", scheme + "://" + addr} {
			if _, err := i.Open(ctx, bad); err == nil {
				t.Errorf("%s opens", bad)
			}
		}
	}
}
