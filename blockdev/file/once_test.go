package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/mem"
)

// once has one completion of a piece of work go wrong, the n-th.
type once struct {
	n    int
	res  int32 // 1 stands for half of what was asked for,
	late bool  // and this for a completion that comes when all other work is done

	mu   sync.Mutex
	seen int
	hit  *blockdev.Request
	fua  bool // it was of a write with FUA
	left int  // workers
	kept *file.Completion
	at   *os.File // the medium
}

// undo leaves of a request what its completion tells of it, the first n bytes.
func (o *once) undo(r *blockdev.Request, n int64) {
	if r.Op == blockdev.Read {
		clear(r.Data[0].Bytes()[n:])
	} else if _, err := o.at.WriteAt(bytes.Repeat([]byte{0xee}, int(r.Length-n)), r.Offset+n); err != nil {
		panic(err)
	}
}

func (o *once) see(c file.Completion) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen++
	if o.seen != o.n {
		return true
	}
	o.hit = c.Request()
	o.fua = o.hit.FUA
	switch {
	case o.late && o.left > 1:
		o.kept = &c
		return false
	case o.late:
	case o.res == 1:
		*c.Res() = int32(o.hit.Length / 2)
		o.undo(o.hit, o.hit.Length/2)
	default:
		*c.Res() = o.res
		o.undo(o.hit, 0)
	}
	return true
}

// rests is called by a worker that has done its work: the last but one lets go of what is late.
func (o *once) rests() {
	o.mu.Lock()
	o.left--
	c := o.kept
	if o.left > 1 || c == nil {
		o.mu.Unlock()
		return
	}
	o.kept = nil
	o.mu.Unlock()
	c.Deliver()
}

func (o *once) is(r *blockdev.Request) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.hit == r
}

// Of the completions of a mixed load each one goes wrong once, in each way: its own request fails, or is done all the same, and no other notices.
// After a failed write with FUA no flush claims anything; after another failure flushes work.
func TestEachCompletionGoesWrongOnce(t *testing.T) {
	const workers, length, apart = 6, 16 << 10, 1 << 20 // a compare-and-write waits for all writes of its MiB
	ways := []struct {
		name  string
		res   int32
		late  bool
		fails bool
	}{
		{name: "EIO", res: -int32(unix.EIO), fails: true}, {name: "half", res: 1}, {name: "EAGAIN", res: -int32(unix.EAGAIN)},
		{name: "ECANCELED", res: -int32(unix.ECANCELED)}, {name: "late", late: true},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			for n, more := 1, true; more; n++ {
				o := &once{n: n, res: way.res, late: way.late, left: workers}
				d, path := tampered(t, file.Options{Size: workers * apart}, o.see)
				var err error
				if o.at, err = os.OpenFile(path, os.O_WRONLY, 0); err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				for w := range workers {
					m := blockdevtest.NewMemory(t, 2*length)
					wg.Go(func() {
						defer o.rests()
						mistakes(t, fmt.Sprintf("completion %d, worker %d", n, w), d, o, way.fails, m, int64(w)*apart, length)
					})
				}
				wg.Wait()
				lost := way.fails && o.fua
				if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); errors.Is(err, blockdev.ErrMedium) != lost {
					t.Errorf("completion %d: a flush: %v, lost: %v", n, err, lost)
				}
				if err := d.Close(); err != nil && !lost {
					t.Errorf("completion %d: %v", n, err)
				}
				for w := range workers {
					if b := content(t, path, int64(w)*apart, length); !bytes.Equal(b, bytes.Repeat(b[:1], length)) || b[0] != 4 {
						t.Errorf("completion %d, worker %d: the file has %d", n, w, b[0])
					}
				}
				o.at.Close()
				if more = o.hit != nil; !more && n < 4*workers {
					t.Errorf("no more than %d completions: nothing is tried", n-1)
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

// mistakes writes, reads, writes with FUA and compares, in its own range, and judges each answer.
func mistakes(t *testing.T, what string, d *file.Device, o *once, fails bool, m *blockdevtest.Memory, off int64, length int) {
	data, other := m.Span(length), m.Span(length)
	fill := func(s mem.Span, b byte) { copy(s.Bytes(), bytes.Repeat([]byte{b}, length)) }
	was := byte(0)
	do := func(r *blockdev.Request) (hit bool) {
		r.Offset, r.Length, r.Data = off, int64(length), []mem.Span{data}
		err := blockdevtest.Do(t, d, r)
		hit = o.is(r) && fails
		if hit != errors.Is(err, blockdev.ErrMedium) || !hit && err != nil {
			t.Errorf("%s: %v: %v", what, r.Op, err)
		}
		return hit
	}
	read := func() {
		fill(data, 0xff)
		if hit := do(&blockdev.Request{Op: blockdev.Read}); !hit && !bytes.Equal(data.Bytes(), bytes.Repeat([]byte{was}, length)) {
			t.Errorf("%s: read %d, want %d", what, slices.Max(data.Bytes()), was)
		}
	}
	write := func(b byte, fua bool) {
		for { // one that has failed is repeated, as by a host
			fill(data, b)
			if !do(&blockdev.Request{Op: blockdev.Write, FUA: fua}) {
				break
			}
		}
		was = b
	}
	write(1, false)
	read()
	write(2, true)
	read()
	fill(other, 2)
	fill(data, 3)
	do(&blockdev.Request{Op: blockdev.CompareWrite, Compare: []mem.Span{other}})
	was = 3
	read()
	write(4, false)
}
