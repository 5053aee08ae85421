package blockdevtest

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// model drives a device at random, one request at a time, and holds it against an array of bytes.
func model(t *testing.T, o Options) {
	const window = 96 << 10
	const base = 1<<20 - window/2 // across a MiB, where engines like to have seams
	m := o.memory(t, 4*window)
	d := o.Open(t) // one for all cases: making a file durable takes longer than a case
	defer func() { Close(t, d) }()
	rapid.Check(t, func(rt *rapid.T) {
		image := make([]byte, window)
		loose := make([]bool, window) // discarded and not read since
		block := d.Geometry().Logical
		data, other := m.All().Cut(0, window), m.All().Cut(window, window)
		pick := func() (off, n int) {
			blocks := window / block
			a := rapid.IntRange(0, blocks-1).Draw(rt, "block")
			k := rapid.IntRange(1, min(24, blocks-a)).Draw(rt, "blocks")
			return a * block, k * block
		}
		do := func(r *blockdev.Request) {
			if err := Do(t, d, r); err != nil && !errors.Is(err, blockdev.ErrMiscompare) {
				rt.Fatalf("%v of %d at %d: %v", r.Op, r.Length, r.Offset, err)
			}
		}
		read := func(off, n int) {
			do(&blockdev.Request{Op: blockdev.Read, Offset: base + int64(off), Length: int64(n), Data: []mem.Span{data.Cut(0, n)}})
			if o.Forgets {
				return
			}
			got := data.Bytes()[:n]
			for i, c := range got {
				if loose[off+i] && c == 0 {
					image[off+i] = 0
				}
				loose[off+i] = false
			}
			if !bytes.Equal(got, image[off:off+n]) {
				rt.Fatalf("read of %d at %d is not what was written", n, off)
			}
		}
		clear(data.Bytes())
		do(&blockdev.Request{Op: blockdev.Write, Offset: base, Length: window, Data: []mem.Span{data}})
		rt.Repeat(map[string]func(*rapid.T){
			"read": func(*rapid.T) { read(pick()) },
			"write": func(rt *rapid.T) {
				off, n := pick()
				Fill(data.Bytes()[:n], rapid.Uint64().Draw(rt, "seed"))
				cut := rapid.IntRange(0, n).Draw(rt, "cut")
				r := &blockdev.Request{Op: blockdev.Write, FUA: rapid.IntRange(0, 9).Draw(rt, "fua") == 0, Offset: base + int64(off), Length: int64(n),
					Data: []mem.Span{data.Cut(0, cut), data.Cut(cut, n-cut)}}
				if rapid.Bool().Draw(rt, "runner") {
					r.Deferrer = helper{}
				}
				do(r)
				copy(image[off:], data.Bytes()[:n])
				clear(loose[off : off+n])
			},
			"flush": func(rt *rapid.T) {
				if rapid.IntRange(0, 4).Draw(rt, "really") == 0 {
					do(&blockdev.Request{Op: blockdev.Flush})
				}
			},
			"zero": func(rt *rapid.T) {
				off, n := pick()
				if blockdev.Can(d, blockdev.WriteZeroes) {
					do(&blockdev.Request{Op: blockdev.WriteZeroes, Unmap: rapid.Bool().Draw(rt, "unmap"), Offset: base + int64(off), Length: int64(n)})
					clear(image[off : off+n])
					clear(loose[off : off+n])
				}
			},
			"discard": func(*rapid.T) {
				off, n := pick()
				if blockdev.Can(d, blockdev.Discard) {
					do(&blockdev.Request{Op: blockdev.Discard, Offset: base + int64(off), Length: int64(n)})
					for i := off; i < off+n; i++ {
						loose[i] = true
					}
				}
			},
			"compare and write": func(rt *rapid.T) {
				off, n := pick()
				n = min(n, 16*block)
				if o.Forgets || !blockdev.Can(d, blockdev.CompareWrite) {
					return
				}
				read(off, n) // settles what a discard left open
				copy(other.Bytes(), image[off:off+n])
				miss := rapid.IntRange(-1, n-1).Draw(rt, "miss")
				if miss >= 0 {
					other.Bytes()[miss] ^= 0x80
				}
				Fill(data.Bytes()[:n], rapid.Uint64().Draw(rt, "seed"))
				r := &blockdev.Request{Op: blockdev.CompareWrite, Offset: base + int64(off), Length: int64(n),
					Data: []mem.Span{data.Cut(0, n)}, Compare: []mem.Span{other.Cut(0, n)}}
				do(r)
				err := r.Err
				if (err != nil) != (miss >= 0) || err != nil && r.Miss != int64(miss) {
					rt.Fatalf("difference at %d: %v, said to be at %d", miss, err, r.Miss)
				}
				if err == nil {
					copy(image[off:], data.Bytes()[:n])
				}
			},
			"reopen": func(rt *rapid.T) {
				if o.Reopen != nil && rapid.IntRange(0, 9).Draw(rt, "really") == 0 {
					do(&blockdev.Request{Op: blockdev.Flush})
					d = o.Reopen(t, d)
				}
			},
		})
		read(0, window)
	})
}
