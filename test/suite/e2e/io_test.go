package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestDiscoveryShowsTheTarget(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	for _, ip := range []string{"127.0.0.1", "::1"} {
		addr := s.Portal(ip, 1)
		for _, scheme := range schemes {
			got, err := host(t, block.Options{}, iwarp.Options{}).Discover(context.Background(), scheme+"://"+addr)
			must(t, err)
			if len(got) != 1 || got[0].Name != iqn {
				t.Fatalf("%s %s: %+v", scheme, addr, got)
			}
		}
	}
}

// Everything a volume can do, on both transports and both families of addresses.
func TestAVolumeIsADisk(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	for _, ip := range []string{"127.0.0.1", "::1"} {
		addr := s.Portal(ip, 1)
		for _, scheme := range schemes {
			t.Run(scheme+" "+ip, func(t *testing.T) {
				v := open(t, host(t, block.Options{}, iwarp.Options{}), url(scheme, addr))
				ctx := context.Background()
				if g := v.Unit(); g.Size != diskSize || g.Logical != 512 || g.Serial != "e2e-0001" || g.ID == "" || g.MaxUnmap == 0 || g.MaxCompare == 0 {
					t.Fatalf("%+v", g)
				}
				for _, n := range []int{512, 4096, 8192, 8704, 64 << 10, 1 << 20, 2<<20 + 512} {
					want, got := pattern(n, int64(n)), make([]byte, n)
					_, err := v.WriteAt(want, 1<<20)
					must(t, err)
					_, err = v.ReadAt(got, 1<<20)
					must(t, err)
					if !bytes.Equal(got, want) {
						t.Fatalf("%d bytes differ", n)
					}
				}
				must(t, v.Flush(ctx))
				one, two := pattern(512, 1), pattern(512, 2)
				_, err := v.WriteAt(one, 4096)
				must(t, err)
				_, err = v.CompareAndWrite(ctx, 4096, one, two)
				must(t, err)
				if _, err := v.CompareAndWrite(ctx, 4096, one, two); !errors.Is(err, blockdev.ErrMiscompare) {
					t.Fatal(err)
				}
				must(t, v.WriteZeroes(ctx, 4096, 8192, true))
				must(t, v.Do(ctx, &blockdev.Request{Op: blockdev.WriteZeroes, FUA: true, Offset: 0, Length: 512}))
				must(t, v.Discard(ctx, 1<<20, 1<<20))
				got := make([]byte, 512)
				_, err = v.ReadAt(got, 4096)
				must(t, err)
				if !bytes.Equal(got, make([]byte, 512)) {
					t.Fatal("not zero")
				}
				ext, err := v.Status(ctx, 0, diskSize, make([]blockdev.Extent, 0, 8))
				must(t, err)
				if len(ext) == 0 || ext[0].Offset != 0 {
					t.Fatalf("%+v", ext)
				}
				if _, err := v.ReadAt(got, diskSize); !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				if err := v.Do(ctx, &blockdev.Request{Op: blockdev.Discard, Offset: diskSize, Length: 512}); !errors.Is(err, blockdev.ErrRange) {
					t.Fatal(err)
				}
				var se *block.SenseError
				if _, err := v.Raw(ctx, []byte{0xff, 0, 0, 0, 0, 0}, nil, false); !errors.As(err, &se) || se.ASC != 0x20 {
					t.Fatal(err)
				}
				if b, err := v.Inquiry(ctx, 0x83); err != nil || len(b) < 8 {
					t.Fatal(b, err)
				}
				if luns, err := v.LUNs(ctx); err != nil || len(luns) != 1 {
					t.Fatal(luns, err)
				}
			})
		}
	}
}

// More requests at a time than the target's window has room for, zero-copy, from one goroutine.
func TestManyRequestsAtATime(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	addr := s.Portal("127.0.0.1", 1)
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			v := open(t, host(t, block.Options{}, iwarp.Options{}), url(scheme, addr))
			const n, size = 250, 16 << 10
			var wg sync.WaitGroup
			reqs := make([]blockdev.Request, n)
			for k := range reqs {
				b, err := v.Memory().Get(size)
				must(t, err)
				defer b.Release()
				copy(b.Bytes(), pattern(size, int64(k)))
				reqs[k] = blockdev.Request{Offset: int64(k) * size, Length: size, Data: []mem.Span{b.Span().Cut(0, 4096), b.Span().Cut(4096, size-4096)},
					Done: func(*blockdev.Request) { wg.Done() }}
			}
			for _, op := range []blockdev.Op{blockdev.Write, blockdev.Read} {
				wg.Add(n)
				for k := range reqs {
					reqs[k].Op = op
					v.Submit(&reqs[k])
				}
				wg.Wait()
				for k := range reqs {
					must(t, reqs[k].Err)
					a, b := reqs[k].Data[0].Bytes(), reqs[k].Data[1].Bytes()
					if got := append(append([]byte(nil), a...), b...); !bytes.Equal(got, pattern(size, int64(k))) {
						t.Fatalf("%s %d differs", op, k)
					}
					clear(a)
					clear(b)
					if op == blockdev.Write {
						continue
					}
				}
			}
		})
	}
}

// model is what the disk must hold.
type model struct{ b []byte }

// Random operations of every kind against a model, with every optimisation of both ends on and off.
func TestModel(t *testing.T) {
	for name, c := range map[string]struct {
		o block.Options
		w iwarp.Options
	}{
		"default":      {},
		"no immediate": {o: block.Options{Immediate: -1}},
		"small pieces": {o: block.Options{Piece: 8 << 10, Depth: 3}},
		"CRC":          {w: iwarp.Options{CRC: iwarp.CRCOn}},
		"segments":     {w: iwarp.Options{FPDU: iwarp.FPDUSegment}},
		"no batch":     {w: iwarp.Options{NoBatch: true}},
		"no zero copy": {w: iwarp.Options{NoZeroCopy: true}},
		"no inline":    {w: iwarp.Options{NoInline: true}},
		"no lazy recv": {w: iwarp.Options{NoLazyRecv: true}},
		"peer to peer": {w: iwarp.Options{PeerToPeer: true}},
		"MPA rev 1":    {w: iwarp.Options{Revision: 1}},
	} {
		for _, scheme := range schemes {
			if scheme == "iscsi" && c.w != (iwarp.Options{}) {
				continue // no iWARP there
			}
			t.Run(name+" "+scheme, func(t *testing.T) {
				t.Parallel()
				s := newStand(t, c.w)
				v := open(t, host(t, c.o, c.w), url(scheme, s.Portal("127.0.0.1", 1)))
				m := &model{b: make([]byte, diskSize)}
				_, err := v.WriteAt(m.b, 0)
				must(t, err)
				rapid.Check(t, func(t *rapid.T) {
					for range rapid.IntRange(1, 6).Draw(t, "operations") {
						m.step(t, v)
					}
				})
				got := make([]byte, diskSize)
				_, err = v.ReadAt(got, 0)
				must(t, err)
				if !bytes.Equal(got, m.b) {
					t.Fatal("the volume is not what the model says")
				}
			})
		}
	}
}

func (m *model) step(t *rapid.T, v *block.Volume) {
	ctx := context.Background()
	off := rapid.Int64Range(0, 2<<20/512).Draw(t, "block") * 512
	n := rapid.OneOf(rapid.Int64Range(1, 16), rapid.Int64Range(1, 1024)).Draw(t, "blocks") * 512
	part := m.b[off : off+n]
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	switch rapid.IntRange(0, 6).Draw(t, "operation") {
	case 0, 1:
		data := pattern(int(n), rapid.Int64().Draw(t, "seed"))
		copy(part, data)
		_, err := v.WriteAt(data, off)
		check(err)
	case 2, 3:
		got := make([]byte, n)
		_, err := v.ReadAt(got, off)
		check(err)
		if !bytes.Equal(got, part) {
			t.Fatalf("%d bytes at %d differ", n, off)
		}
	case 4:
		check(v.WriteZeroes(ctx, off, n, rapid.Bool().Draw(t, "unmap")))
		clear(part)
	case 5:
		check(v.Discard(ctx, off, n))
		// What a discarded block holds is the target's choice, once; the model follows.
		_, err := v.ReadAt(part, off)
		check(err)
	case 6:
		cmp := append([]byte(nil), part[:512]...)
		same := rapid.Bool().Draw(t, "same")
		if !same {
			cmp[rapid.IntRange(0, 511).Draw(t, "where")] ^= 1
		}
		data := pattern(512, off)
		_, err := v.CompareAndWrite(ctx, off, cmp, data)
		if same {
			check(err)
			copy(part, data)
		} else if !errors.Is(err, blockdev.ErrMiscompare) {
			t.Fatal(err)
		}
	}
}
