package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// disk is a device in memory that can hold requests back and fail them.
type disk struct {
	mu      sync.Mutex
	data    []byte
	mapped  map[int64]bool // by logical block
	geo     blockdev.Geometry
	hold    bool
	held    []*blockdev.Request
	arrived chan struct{} // one token a held request
	async   bool
	fail    func(*blockdev.Request) error
	log     []blockdev.Op
	id      string
	place   bool // id says no more than where it is
}

func newDisk(size int64, bs int) *disk {
	return &disk{data: make([]byte, size), mapped: map[int64]bool{}, arrived: make(chan struct{}, 4096),
		geo: blockdev.Geometry{Size: size, Logical: bs, Physical: 4096, DiscardUnit: bs, DiscardZeroes: true, Thin: true}}
}

func (d *disk) Geometry() blockdev.Geometry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.geo
}
func (d *disk) Can(blockdev.Op) bool { return true }
func (d *disk) Close() error         { return nil }

func (d *disk) Identity() (string, error) { return d.id, nil }
func (d *disk) Distinct() (bool, error)   { return !d.place, nil }

func (d *disk) Submit(r *blockdev.Request) {
	d.mu.Lock()
	d.log = append(d.log, r.Op)
	if d.hold {
		d.held = append(d.held, r)
		d.mu.Unlock()
		d.arrived <- struct{}{}
		return
	}
	async := d.async
	d.mu.Unlock()
	if async {
		go d.do(r)
		return
	}
	d.do(r)
}

// letGo stops holding and runs what was held.
func (d *disk) letGo() {
	d.mu.Lock()
	held := d.held
	d.held, d.hold = nil, false
	d.mu.Unlock()
	for _, r := range held {
		d.do(r)
	}
}

func (d *disk) do(r *blockdev.Request) {
	r.Err = d.apply(r)
	r.Done(r)
}

func (d *disk) apply(r *blockdev.Request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		if err := d.fail(r); err != nil {
			return err
		}
	}
	bs := int64(d.geo.Logical)
	if r.Op != blockdev.Flush && (r.Offset < 0 || r.Length < 0 || r.Offset%bs != 0 || r.Length%bs != 0 || r.Offset+r.Length > d.geo.Size) {
		return blockdev.ErrRange
	}
	mark := func(on bool) {
		for b := r.Offset / bs; b < (r.Offset+r.Length)/bs; b++ {
			if on {
				d.mapped[b] = true
			} else {
				delete(d.mapped, b)
			}
		}
	}
	at := d.data[r.Offset:]
	switch r.Op {
	case blockdev.Read:
		for _, s := range r.Data {
			at = at[copy(s.Bytes(), at[:s.Len]):]
		}
	case blockdev.CompareWrite:
		off := int64(0)
		for _, s := range r.Compare {
			for i, b := range s.Bytes() {
				if at[off+int64(i)] != b {
					r.Miss = off + int64(i)
					return blockdev.ErrMiscompare
				}
			}
			off += int64(s.Len)
		}
		fallthrough
	case blockdev.Write:
		for _, s := range r.Data {
			at = at[copy(at, s.Bytes()):]
		}
		mark(true)
	case blockdev.WriteZeroes, blockdev.Discard:
		clear(at[:r.Length])
		mark(r.Op == blockdev.WriteZeroes && !r.Unmap)
	case blockdev.Status:
		r.Extents = r.Extents[:0]
		for off := r.Offset; off < r.Offset+r.Length; off += bs {
			m := d.mapped[off/bs]
			if n := len(r.Extents); n > 0 && r.Extents[n-1].Mapped == m {
				r.Extents[n-1].Length += bs
			} else if n == cap(r.Extents) {
				break
			} else {
				r.Extents = append(r.Extents, blockdev.Extent{Offset: off, Length: bs, Mapped: m})
			}
		}
	}
	return nil
}

// host is a mover and the initiator's memory behind it.
type host struct {
	t       testing.TB
	in, out []byte
	async   bool
	hold    chan func() // when not nil, moves wait here
	failIn  error
	done    chan struct{}
	pending func()
	mu      sync.Mutex
}

func (h *host) deliver(f func()) {
	switch {
	case h.hold != nil:
		h.mu.Lock()
		h.pending = f
		h.mu.Unlock()
		h.hold <- f
	case h.async:
		go f()
	default:
		f()
	}
}

func (h *host) DataIn(c *Command, off int, data []mem.Span) {
	h.deliver(func() {
		for _, s := range data {
			if off+s.Len > int(c.ExpectIn) {
				h.t.Errorf("DataIn [%d,%d) beyond %d", off, off+s.Len, c.ExpectIn)
			} else {
				off += copy(h.in[off:], s.Bytes())
			}
		}
		c.Moved(h.failIn)
	})
}

func (h *host) DataOut(c *Command, off int, data []mem.Span) {
	h.deliver(func() {
		for _, s := range data {
			if off+s.Len > int(c.ExpectOut) {
				h.t.Errorf("DataOut [%d,%d) beyond %d", off, off+s.Len, c.ExpectOut)
			} else {
				off += copy(s.Bytes(), h.out[off:])
			}
		}
		c.Moved(h.failIn)
	})
}

func (h *host) Cancel(c *Command) {
	h.mu.Lock()
	f := h.pending
	h.pending = nil
	h.mu.Unlock()
	if f != nil {
		<-h.hold
		c.Moved(errors.New("cancelled"))
	}
}

func (h *host) Complete(*Command) { close(h.done) }

// rig is one target with one unit as LUN 0 and a nexus whose power-on attention is gone.
type rig struct {
	t      testing.TB
	disk   *disk
	lu     *LogicalUnit
	target *Target
	pool   *mem.Pool
	n      *Nexus
}

func newRig(t testing.TB, change ...func(*LUOptions)) *rig {
	d := newDisk(8<<20, 512)
	return rigOn(t, d, change...)
}

func rigOn(t testing.TB, d *disk, change ...func(*LUOptions)) *rig {
	t.Helper()
	return rigIn(t, mem.NewPool(256<<20), d, change...)
}

func rigIn(t testing.TB, pool *mem.Pool, d *disk, change ...func(*LUOptions)) *rig {
	t.Helper()
	o := LUOptions{Device: d, Name: "vol0", Serial: "S0001"}
	for _, f := range change {
		f(&o)
	}
	lu, err := NewLogicalUnit(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, disk: d, lu: lu, pool: pool}
	t.Cleanup(lu.background.Wait)
	r.target, err = NewTarget(TargetOptions{Name: "iqn.2026-01.example:t", Memory: r.pool})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.target.AddLUN(0, lu); err != nil {
		t.Fatal(err)
	}
	r.n = r.nexus(1)
	return r
}

func (r *rig) nexus(id byte, change ...func(*NexusOptions)) *Nexus {
	o := NexusOptions{InitiatorName: "iqn.2026-01.example:i" + string('0'+rune(id)), ISID: [6]byte{0x40, 0, 0, 0, 0, id},
		TargetPortGroup: 1, Transport: "test", Memory: r.pool.Quota(64 << 20)}
	for _, f := range change {
		f(&o)
	}
	n := r.target.NewNexus(o)
	for range 20 {
		if r.run(n, nil, 0, "00 00 00 00 00 00").Status == StatusGood {
			break
		}
	}
	return n
}

// result is what came of a command.
type result struct {
	*Command
	in []byte
}

func (r result) key() SenseKey {
	if len(r.Sense) < 3 {
		return 0
	}
	if r.Sense[0]&0x7F >= 0x72 {
		return SenseKey(r.Sense[1] & 15)
	}
	return SenseKey(r.Sense[2] & 15)
}

func (r result) asc() ASC {
	if len(r.Sense) < 4 {
		return 0
	}
	if r.Sense[0]&0x7F >= 0x72 {
		return ASC(be16(r.Sense[2:]))
	}
	return ASC(be16(r.Sense[12:]))
}

func cdb(hexes string) []byte { return mustHex(hexes) }

func mustHex(s string) []byte {
	var b []byte
	hi := -1
	for _, ch := range s {
		v := -1
		switch {
		case ch >= '0' && ch <= '9':
			v = int(ch - '0')
		case ch >= 'a' && ch <= 'f':
			v = int(ch-'a') + 10
		case ch >= 'A' && ch <= 'F':
			v = int(ch-'A') + 10
		}
		switch {
		case v < 0:
		case hi < 0:
			hi = v
		default:
			b = append(b, byte(hi<<4|v))
			hi = -1
		}
	}
	return b
}

// start begins a command and returns it with its host.
func (r *rig) start(n *Nexus, cdb []byte, out []byte, in int, change ...func(*Command, *host)) (*Command, *host) {
	h := &host{t: r.t, in: make([]byte, in), out: slices.Clone(out), done: make(chan struct{})}
	c := &Command{CDB: cdb, ExpectIn: int64(in), ExpectOut: int64(len(out)), Mover: h, Attr: Simple}
	for _, f := range change {
		f(c, h)
	}
	n.Execute(c)
	return c, h
}

func (h *host) wait(t testing.TB) {
	t.Helper()
	select {
	case <-h.done:
	case <-time.After(patience):
		t.Fatal("the command did not end")
	}
}

func (r *rig) run(n *Nexus, out []byte, in int, hexes string, patch ...func([]byte)) result {
	r.t.Helper()
	b := cdb(hexes)
	for _, f := range patch {
		f(b)
	}
	c, h := r.start(n, b, out, in)
	h.wait(r.t)
	return result{c, h.in}
}

// want runs a command on the rig's own nexus and checks its status or sense.
func (r *rig) good(out []byte, in int, hexes string, patch ...func([]byte)) []byte {
	r.t.Helper()
	res := r.run(r.n, out, in, hexes, patch...)
	if res.Status != StatusGood {
		r.t.Fatalf("%s: %v, %X/%04X", hexes, res.Status, res.key(), res.asc())
	}
	return res.in
}

func (r *rig) sense(key SenseKey, asc ASC, out []byte, in int, hexes string, patch ...func([]byte)) result {
	r.t.Helper()
	res := r.run(r.n, out, in, hexes, patch...)
	if res.Status != StatusCheckCondition || res.key() != key || res.asc() != asc {
		r.t.Fatalf("%s: %v, %X/%04X, want %X/%04X", hexes, res.Status, res.key(), res.asc(), key, asc)
	}
	return res
}

func put32(at int, v uint32) func([]byte) {
	return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v) }
}
func put64(at int, v uint64) func([]byte) {
	return func(b []byte) { binary.BigEndian.PutUint64(b[at:], v) }
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return b
}

func sameBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes differ from the %d wanted", what, len(got), len(want))
	}
}
