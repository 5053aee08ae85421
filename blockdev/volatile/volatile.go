// Package volatile is a block device with a write cache that loses what was not promised: at a power cut each
// sector that was written since it last became durable keeps its durable content or any of the later ones, by chance
// and independently of its neighbours. What a Flush or FUA had acknowledged stays (SBC-4 section 4.14). Suites run on
// it to show that the layers above flush when they must.
package volatile

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// ErrPower is the outcome of requests that a power cut caught or that came after it. It says nothing about whether
// they took effect.
var ErrPower = errors.New("blockdev/volatile: the power is off")

// sector is what a disk writes whole or not at all.
const sector = 512

// Options describe the device.
type Options struct {
	Size    int64
	Logical int // 512 by default
}

// Device is the engine: Reopen after a cut makes the next one on the same medium.
type Device struct {
	geo blockdev.Geometry
	m   *medium
}

type medium struct {
	mu      sync.Mutex
	durable []byte
	cached  []byte             // what reads see
	pending map[int64][][]byte // by sector: contents newer than the durable one, oldest first
	rng     *rand.Rand
	left    int // sectors that still become durable before an armed cut, -1 for no cut
	off     bool
}

var (
	_ blockdev.Device    = (*Device)(nil)
	_ blockdev.Capable   = (*Device)(nil)
	_ blockdev.Explainer = (*Device)(nil)
)

// Open makes a device full of durable zeroes.
func Open(o Options) (*Device, error) {
	if o.Logical == 0 {
		o.Logical = 512
	}
	if o.Size <= 0 || o.Size%int64(o.Logical) != 0 || o.Logical%sector != 0 {
		return nil, fmt.Errorf("blockdev/volatile: size of %d bytes; it must be a multiple of %d", o.Size, o.Logical)
	}
	return &Device{
		geo: blockdev.Geometry{Size: o.Size, Logical: o.Logical, Physical: o.Logical, DiscardUnit: o.Logical, DiscardZeroes: true},
		m: &medium{durable: make([]byte, o.Size), cached: make([]byte, o.Size), pending: make(map[int64][][]byte), left: -1,
			rng: rand.New(rand.NewPCG(1, 1))},
	}, nil
}

// Cut takes the power away: what was not durable is lost in part, as seed decides, and requests fail until Reopen.
func (d *Device) Cut(seed uint64) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	d.m.rng = rand.New(rand.NewPCG(seed, seed))
	d.m.cutLocked()
}

// CutAfter takes the power away once n more sectors have become durable, which may be in the middle of a flush or of a
// write with FUA.
func (d *Device) CutAfter(n int, seed uint64) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	d.m.rng = rand.New(rand.NewPCG(seed, seed))
	d.m.left = n
}

// Reopen puts the power on again, or goes on without a cut, and returns the device on the same medium. The old one is
// not to be used any more.
func (d *Device) Reopen() *Device {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	d.m.off, d.m.left = false, -1
	return &Device{geo: d.geo, m: d.m}
}

// Geometry implements blockdev.Device.
func (d *Device) Geometry() blockdev.Geometry { return d.geo }

// Can implements blockdev.Capable.
func (d *Device) Can(op blockdev.Op) bool {
	return op >= blockdev.Read && op <= blockdev.CompareWrite
}

// Path implements blockdev.Explainer.
func (d *Device) Path() string { return "memory with a volatile cache, inline" }

// Close implements blockdev.Device. It loses nothing: closing is no power cut.
func (d *Device) Close() error { return nil }

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	err := r.Check(&d.geo)
	if err == nil && !d.Can(r.Op) {
		err = blockdev.ErrUnsupported
	}
	if err == nil {
		err = d.m.run(r)
	}
	r.Finish(err)
}

func (m *medium) run(r *blockdev.Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.off {
		return ErrPower
	}
	switch r.Op {
	case blockdev.Read:
		mem.Scatter(r.Data, 0, m.cached[r.Offset:r.Offset+r.Length])
	case blockdev.CompareWrite:
		if i := mem.Differ(m.cached[r.Offset:r.Offset+r.Length], r.Compare, 0); i >= 0 {
			r.Miss = int64(i)
			return blockdev.ErrMiscompare
		}
		r.Miss = 0
		return m.write(r)
	case blockdev.Write, blockdev.WriteZeroes, blockdev.Discard:
		return m.write(r)
	case blockdev.Flush:
		dirty := slices.Sorted(maps.Keys(m.pending))
		m.rng.Shuffle(len(dirty), func(i, j int) { dirty[i], dirty[j] = dirty[j], dirty[i] })
		for _, s := range dirty { // in any order, as a disk would
			if !m.persistLocked(s) {
				return ErrPower
			}
		}
	}
	return nil
}

func (m *medium) write(r *blockdev.Request) error {
	b := make([]byte, r.Length)
	if r.Op == blockdev.Write || r.Op == blockdev.CompareWrite {
		mem.Gather(b, r.Data, 0)
	}
	copy(m.cached[r.Offset:], b)
	for at := int64(0); at < r.Length; at += sector {
		s := (r.Offset + at) / sector
		m.pending[s] = append(m.pending[s], b[at:at+sector])
	}
	if !r.FUA {
		return nil
	}
	for at := int64(0); at < r.Length; at += sector {
		if !m.persistLocked((r.Offset + at) / sector) {
			return ErrPower
		}
	}
	return nil
}

// persistLocked makes the newest content of a sector durable; false means that the power went away instead.
func (m *medium) persistLocked(s int64) bool {
	if m.left == 0 {
		m.cutLocked()
		return false
	}
	if m.left > 0 {
		m.left--
	}
	copy(m.durable[s*sector:(s+1)*sector], m.cached[s*sector:])
	delete(m.pending, s)
	return true
}

func (m *medium) cutLocked() {
	for s := int64(0); s < int64(len(m.durable))/sector; s++ { // in order, so that one seed gives one outcome
		if vs := m.pending[s]; len(vs) > 0 {
			if i := m.rng.IntN(len(vs) + 1); i > 0 {
				copy(m.durable[s*sector:], vs[i-1])
			}
		}
	}
	copy(m.cached, m.durable)
	clear(m.pending)
	m.off, m.left = true, -1
}
