package block_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

var (
	_ blockdev.Device  = (*block.Volume)(nil)
	_ blockdev.Capable = (*block.Volume)(nil)
	_ io.ReaderAt      = (*block.Volume)(nil)
	_ io.WriterAt      = (*block.Volume)(nil)
	_ io.Closer        = (*block.Volume)(nil)
	_ io.ReadSeeker    = (*block.Reader)(nil)
	_ io.WriterTo      = (*block.Reader)(nil)
	_ io.WriteSeeker   = (*block.Writer)(nil)
	_ io.ReaderFrom    = (*block.Writer)(nil)
)

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

// The standard library's checks of readers find nothing, and what it builds on a ReaderAt and a WriterAt works.
func TestAVolumeReadsAndWritesAsTheStandardLibraryMeansIt(t *testing.T) {
	for _, scheme := range []string{"iser", "iscsi"} {
		t.Run(scheme, func(t *testing.T) {
			v := open(t, target(t, stand.BlockOptions{}).URL(scheme), block.Options{})
			want := random(int(v.Size()), 1)
			if n, err := v.WriteAt(want, 0); n != len(want) || err != nil {
				t.Fatal(n, err)
			}
			if err := v.Sync(); err != nil {
				t.Fatal(err)
			}
			section := io.NewSectionReader(v, 1000, 5000)
			if err := iotest.TestReader(section, want[1000:6000]); err != nil {
				t.Error("a section:", err)
			}
			r := v.Reader(t.Context())
			if _, err := r.Seek(-3000, io.SeekEnd); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(iotest.OneByteReader(io.LimitReader(r, 20))); err != nil || !bytes.Equal(got, want[len(want)-3000:len(want)-2980]) {
				t.Error("bytes one by one:", err)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want[len(want)-2980:]) {
				t.Error("up to the end:", err)
			}
			w := io.NewOffsetWriter(v, 777)
			if n, err := w.Write([]byte("hello")); n != 5 || err != nil {
				t.Error(n, err)
			}
			copy(want[777:], "hello")
			b := make([]byte, len(want))
			if n, err := v.ReadAt(b, 0); n != len(b) || err != nil || !bytes.Equal(b, want) {
				t.Error("all of it:", n, err)
			}
		})
	}
}

// ReadAt gives io.EOF where the volume ends, and neither it nor WriteAt goes beyond.
func TestTheEndOfAVolume(t *testing.T) {
	v := open(t, target(t, stand.BlockOptions{}).URL("iscsi"), block.Options{})
	size := v.Size()
	for _, c := range []struct {
		off  int64
		n    int
		want int
		err  error
	}{{size - 10, 10, 10, nil}, {size - 10, 11, 10, io.EOF}, {size, 1, 0, io.EOF}, {size + 5, 1, 0, io.EOF}, {size, 0, 0, nil}, {-1, 1, 0, blockdev.ErrRange}, {0, 0, 0, nil}} {
		if n, err := v.ReadAt(make([]byte, c.n), c.off); n != c.want || !errors.Is(err, c.err) {
			t.Errorf("%d bytes at %d of %d: %d, %v", c.n, c.off, size, n, err)
		}
	}
	for _, c := range []struct {
		off int64
		n   int
	}{{size - 10, 11}, {size, 1}, {-1, 1}} {
		if n, err := v.WriteAt(bytes.Repeat([]byte{1}, c.n), c.off); n != 0 || !errors.Is(err, blockdev.ErrRange) {
			t.Errorf("a write of %d bytes at %d: %d, %v", c.n, c.off, n, err)
		}
	}
	b := make([]byte, 10)
	if _, err := v.ReadAt(b, size-10); err != nil || !bytes.Equal(b, make([]byte, 10)) {
		t.Errorf("a write that was refused has written: %v, %v", b, err)
	}
	w := v.Writer(t.Context())
	if _, err := w.Seek(-3, io.SeekEnd); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(w, strings.NewReader("abcdef")); n != 3 || !errors.Is(err, blockdev.ErrRange) {
		t.Errorf("a copy beyond the end: %d, %v", n, err)
	}
	if _, err := v.ReadAt(b[:3], size-3); err != nil || string(b[:3]) != "abc" {
		t.Errorf("%q, %v", b[:3], err)
	}
}

// Any offset and any length, against a copy in memory.
func TestUnalignedReadsAndWrites(t *testing.T) {
	v := open(t, target(t, stand.BlockOptions{}).URL("iser"), block.Options{})
	const window = 64 << 10
	want := random(window, 2)
	if _, err := v.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		off := r.IntN(window)
		n := r.IntN(min(window-off, []int{3, 600, 5000}[r.IntN(3)]) + 1)
		if r.IntN(2) == 0 {
			b := random(n, r.Uint64())
			if k, err := v.WriteAt(b, int64(off)); k != n || err != nil {
				t.Fatal(k, err)
			}
			copy(want[off:], b)
		}
		b := make([]byte, n)
		if k, err := v.ReadAt(b, int64(off)); k != n || err != nil || !bytes.Equal(b, want[off:off+n]) {
			t.Fatalf("%d bytes at %d: %d, %v", n, off, k, err)
		}
	}
}

// Writers of parts of one block, and of all of it, of two volumes: a part that was written is not undone by who writes another part.
func TestWritesToPartsOfOneBlockLoseNothing(t *testing.T) {
	s := target(t, stand.BlockOptions{})
	v := open(t, s.URL("iser"), block.Options{})
	other := open(t, s.URL("iscsi"), block.Options{Name: "iqn.2026-01.org.example:other"})
	const writers, rounds, each = 6, 40, 100
	var wg sync.WaitGroup
	for k := range writers {
		to := v
		if k%2 == 1 {
			to = other
		}
		wg.Go(func() {
			for i := range rounds {
				// It crosses from block to block, so that each has parts of several writers.
				if _, err := to.WriteAt(bytes.Repeat([]byte{byte(i)}, each), int64(k*each)); err != nil {
					t.Error(err)
					return
				}
				b := make([]byte, each)
				if _, err := to.ReadAt(b, int64(k*each)); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(i)}, each)) {
					t.Errorf("writer %d does not find what it wrote in round %d: %v, %v", k, i, b, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// io.Copy moves whole buffers both ways, from and to places within blocks.
func TestCopyMovesMegabytes(t *testing.T) {
	for _, scheme := range []string{"iser", "iscsi"} {
		t.Run(scheme, func(t *testing.T) {
			v := open(t, target(t, stand.BlockOptions{}).URL(scheme), block.Options{})
			for _, at := range []int64{0, 512, 1234} {
				data := random(3<<20+777, uint64(at)+5)
				before := commands(v)
				w := v.Writer(t.Context())
				if _, err := w.Seek(at, io.SeekStart); err != nil {
					t.Fatal(err)
				}
				if n, err := io.Copy(w, onlyReader{bytes.NewReader(data)}); n != int64(len(data)) || err != nil {
					t.Fatal(n, err)
				}
				r := v.Reader(t.Context())
				if _, err := r.Seek(at, io.SeekStart); err != nil {
					t.Fatal(err)
				}
				var got bytes.Buffer
				if n, err := io.Copy(onlyWriter{&got}, r); n != v.Size()-at || err != nil {
					t.Fatal(n, err)
				}
				if !bytes.Equal(got.Bytes()[:len(data)], data) {
					t.Error("it is not what was written")
				}
				// io.Copy's own pieces of 32 KiB would take more than 200.
				if n := commands(v) - before; n > 100 {
					t.Errorf("%d commands for a copy of 3 MiB there and 4 MiB back", n)
				}
			}
		})
	}
}

func commands(v *block.Volume) uint64 { return v.Paths()[0].Commands }

type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }

// A copy that fails in the middle says how far it came, and leaves nothing under way.
func TestACopyThatFails(t *testing.T) {
	v := open(t, target(t, stand.BlockOptions{}).URL("iser"), block.Options{})
	bad := errors.New("the source is gone")
	n, err := io.Copy(v.Writer(t.Context()), io.MultiReader(bytes.NewReader(make([]byte, 2<<20)), iotest.ErrReader(bad)))
	if n != 2<<20 || !errors.Is(err, bad) {
		t.Error(n, err)
	}
	if n, err = io.Copy(short{}, v.Reader(t.Context())); n != 100 || !errors.Is(err, io.ErrShortWrite) {
		t.Error(n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = io.Copy(io.Discard, v.Reader(ctx)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A source that breaks off has not ended, whatever its error looks like: a part of an image is not to pass for all of it.
func TestACopyOfASourceThatBreaksOffFails(t *testing.T) {
	v := open(t, target(t, stand.BlockOptions{}).URL("iscsi"), block.Options{})
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(random(100_000, 9)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	cut, err := gzip.NewReader(bytes.NewReader(packed.Bytes()[:packed.Len()/2]))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(v.Writer(t.Context()), cut); n == 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half of an archive: %d, %v", n, err)
	}
	for k, want := range []error{io.ErrUnexpectedEOF, fmt.Errorf("the body was cut: %w", io.EOF), fmt.Errorf("it is gone: %w", io.ErrUnexpectedEOF)} {
		data := random(1000+mem.MaxBuf*k, uint64(k))
		n, err := io.Copy(v.Writer(t.Context()), io.MultiReader(bytes.NewReader(data), iotest.ErrReader(want)))
		if n != int64(len(data)) || !errors.Is(err, want) {
			t.Errorf("%v: %d of %d, %v", want, n, len(data), err)
		}
		got := make([]byte, len(data))
		if _, err := v.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%v: what came before it is not there: %v", want, err)
		}
	}
}

type short struct{}

func (short) Write(p []byte) (int, error) { return 100, nil }

// A stream that finds no more memory goes on with what it has, and several that share the last of it do not wait for each other.
func TestCopiesThatShareLittleMemoryEnd(t *testing.T) {
	pool := mem.NewPool(16 << 20)
	v := open(t, target(t, stand.BlockOptions{}).URL("iser"), block.Options{Memory: pool})
	var held []*mem.Buf
	for {
		b, err := pool.Get(mem.MaxBuf)
		if err != nil {
			break
		}
		held = append(held, b)
	}
	held[0].Release()
	held[1].Release()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			w := v.Writer(ctx)
			if _, err := w.Seek(int64(k)*1000, io.SeekStart); err != nil {
				t.Error(err)
			}
			if _, err := io.Copy(w, onlyReader{bytes.NewReader(make([]byte, 3<<20))}); err != nil {
				t.Error("write:", err)
			}
			if _, err := io.Copy(onlyWriter{io.Discard}, v.Reader(ctx)); err != nil {
				t.Error("read:", err)
			}
		})
	}
	wg.Wait()
	for _, b := range held[2:] {
		b.Release()
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// A write of nothing within a block leaves the block alone.
func TestAWriteOfNothingWritesNothing(t *testing.T) {
	v := open(t, target(t, stand.BlockOptions{}).URL("iscsi"), block.Options{})
	before := commands(v)
	if n, err := v.WriteAt(nil, 100); n != 0 || err != nil || commands(v) != before {
		t.Errorf("%d, %v, %d commands", n, err, commands(v)-before)
	}
}
