package nfs_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// slowStorage keeps reads until its gate opens.
type slowStorage struct {
	entered chan struct{}
	gate    chan struct{}
}

func (s *slowStorage) Pread(_ int, bufs [][]byte, n int, _ int64, nowait bool) (int, error) {
	if nowait {
		return 0, os.ErrDeadlineExceeded // never served at once
	}
	s.entered <- struct{}{}
	<-s.gate
	done := 0
	for _, b := range bufs {
		b = b[:min(len(b), n-done)]
		for i := range b {
			b[i] = 0xee
		}
		done += len(b)
	}
	return done, nil
}

func (s *slowStorage) Pwrite(int, [][]byte, int, int64, filesystem.Stability) (int, error) {
	return 0, errors.New("no writes here")
}

func (s *slowStorage) Sync(int) error { return nil }

// A read into the caller's own memory that is given up: when ReadSpan returns the memory is the caller's again, whatever
// the server does afterwards, and other calls of the mount go on.
func TestReadIntoOwnMemoryIsGivenUp(t *testing.T) {
	for _, how := range transports {
		t.Run(how, func(t *testing.T) {
			st := &slowStorage{entered: make(chan struct{}, 16), gate: make(chan struct{})}
			s := start(t, how, nfs.Options{Storage: st}, rpcserver.Options{NoInline: true}, nfs.Export{Rights: open, Async: true})
			must(t, os.WriteFile(filepath.Join(s.dir, "f"), make([]byte, 1<<20), 0o644))
			v := s.mount(t)
			f, err := v.OpenFile(context.Background(), "f", os.O_RDONLY, 0)
			must(t, err)
			b, err := v.Memory().Get(256 << 10)
			must(t, err)
			defer b.Release()
			ctx, cancel := context.WithCancel(context.Background())
			got := make(chan error, 1)
			go func() {
				_, err := f.ReadSpan(ctx, b.Span(), 0)
				got <- err
			}()
			<-st.entered
			cancel()
			select {
			case err := <-got:
				if !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
			case <-time.After(patience):
				t.Fatal("ReadSpan does not return")
			}
			for i := range b.Bytes() {
				b.Bytes()[i] = 7
			}
			close(st.gate) // the server answers now
			for range 10 {
				if _, err := v.Stat("f"); err != nil {
					t.Fatalf("another call: %v", err)
				}
			}
			for i, x := range b.Bytes() {
				if x != 7 {
					t.Fatalf("byte %d was written after ReadSpan had returned", i)
				}
			}
			// And the memory serves again.
			n, err := f.ReadSpan(context.Background(), b.Span(), 0)
			if err != nil || n != b.Len() || b.Bytes()[n-1] != 0xee {
				t.Fatalf("%d bytes, %v", n, err)
			}
		})
	}
}

// More is in flight than the client has registered memory for: calls that wait for memory do not keep those from going
// out that have theirs.
func TestMoreInFlightThanMemory(t *testing.T) {
	s := start(t, "twin", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	v := s.mount(t)
	f, err := v.Create(context.Background(), "f", 0o600)
	must(t, err)
	var wg sync.WaitGroup
	data := bytes.Repeat([]byte{5}, 1<<20)
	for i := range 90 { // 64 MiB are a connection's
		wg.Go(func() {
			if _, err := f.WriteAt(data, int64(i%4)<<20); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	must(t, f.Sync())
	if b, err := v.ReadFile("f"); err != nil || !bytes.Equal(b, bytes.Repeat(data, 4)) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
