package block_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

// drain takes what a pool has of the largest buffers.
func drain(pool *mem.Pool) (held []*mem.Buf) {
	for {
		b, err := pool.Get(mem.MaxBuf)
		if err != nil {
			return held
		}
		held = append(held, b)
	}
}

// Copies from one volume to another end where both share the last of a pool, whichever end moves the pieces.
func TestCopiesBetweenVolumesThatShareLittleMemoryEnd(t *testing.T) {
	pool := mem.NewPool(16 << 20)
	from := open(t, target(t, stand.BlockOptions{}).URL("iscsi"), block.Options{Memory: pool})
	to := open(t, target(t, stand.BlockOptions{}).URL("iscsi"), block.Options{Memory: pool})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	want, got := random(diskSize, 9), make([]byte, diskSize)
	if _, err := from.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	held := drain(pool)
	held[0].Release()
	for name, cp := range map[string]func(io.Writer, io.Reader) (int64, error){
		"WriteTo":  io.Copy,
		"ReadFrom": func(w io.Writer, r io.Reader) (int64, error) { return io.CopyN(w, r, diskSize) },
		"neither":  func(w io.Writer, r io.Reader) (int64, error) { return io.Copy(onlyWriter{w}, onlyReader{r}) },
	} {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if n, err := cp(to.Writer(ctx), from.Reader(ctx)); n != diskSize || err != nil {
					t.Errorf("%s: %d, %v", name, n, err)
				}
			})
		}
		wg.Wait()
		if _, err := to.ReadAtContext(ctx, got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the copy differs: %v", name, err)
		}
		if _, err := to.WriteAtContext(ctx, make([]byte, diskSize), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range held[1:] {
		b.Release()
	}
}

// Close waits for the calls that copy, those that wait for memory too, and gives all memory back.
func TestCloseUnderCopies(t *testing.T) {
	url := target(t, stand.BlockOptions{}).URL("iscsi")
	for round := range 10 {
		short := round < 2
		pool := mem.NewPool(64 << 20)
		v, err := block.Open(t.Context(), url, block.Options{Memory: pool})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var begun atomic.Int32
		all := make(chan struct{})
		const callers = 12
		until := func(f func() error) {
			wg.Go(func() {
				for k := 0; ; k++ {
					err := f()
					if k == 0 && begun.Add(1) == callers {
						close(all)
					}
					if err != nil {
						if !errors.Is(err, blockdev.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		for k := range int64(callers / 3) {
			to, p := make([]byte, 1<<20), make([]byte, 200<<10)
			until(func() error { _, err := v.ReadAt(to, 0); return err })
			until(func() error { _, err := v.WriteAt(p, k<<20+100); return err })
			until(func() error { _, err := io.Copy(onlyWriter{io.Discard}, v.Reader(context.Background())); return err })
		}
		<-all
		var held []*mem.Buf
		if short {
			held = drain(pool)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		for _, b := range held {
			b.Release()
		}
		if err := pool.Close(); err != nil {
			t.Error("memory was in use after Close:", err)
		}
		wg.Wait()
	}
}

// SubmitAll leaves the slice as it was, where some requests end at once too.
func TestSubmitAllLeavesTheSlice(t *testing.T) {
	v := open(t, target(t, stand.BlockOptions{}).URL("iscsi"), block.Options{})
	b, err := v.Memory().Get(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	done := make(chan *blockdev.Request, 8)
	var rs []*blockdev.Request
	for k := range 8 {
		r := &blockdev.Request{Op: blockdev.Read, Offset: int64(k) * 4096, Length: 4096, Data: []mem.Span{b.Span()}, Done: func(r *blockdev.Request) { done <- r }}
		if k%3 == 0 { // there is nothing to be done
			r.Length, r.Data = 0, nil
		}
		rs = append(rs, r)
	}
	before := slices.Clone(rs)
	v.SubmitAll(rs)
	if !slices.Equal(rs, before) {
		t.Error("the slice has other contents")
	}
	seen := map[*blockdev.Request]bool{}
	for range rs {
		r := <-done
		if r.Err != nil || seen[r] {
			t.Errorf("%v at %d: %v, told before: %v", r.Op, r.Offset, r.Err, seen[r])
		}
		seen[r] = true
	}
}
