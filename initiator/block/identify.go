package block

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// probe runs commands of one session before, or beside, the volume's requests.
type probe struct {
	s    *session
	buf  *mem.Buf
	kept *kept // what it goes to
}

func (i *Initiator) probe(ctx context.Context, s *session) (*probe, error) {
	var k *kept
	if s.path != nil {
		k = &s.path.kept
	}
	b := k.takePage()
	if b == nil {
		var err error
		if b, err = i.getForPath(ctx, mem.PageSize); err != nil {
			return nil, fmt.Errorf("block: memory: %w", err)
		}
	}
	return &probe{s: s, buf: b, kept: k}, nil
}

func (p *probe) close() { p.kept.putPage(p.buf) }

// in runs a command that reads up to n bytes, again after unit attentions and while the unit becomes ready.
func (p *probe) in(ctx context.Context, cdb []byte, n int) ([]byte, error) {
	var err error
	for try := 0; try < maxRetries; try++ {
		r := command(cdb, true)
		if n > 0 {
			r.Data = []mem.Span{p.buf.Span().Cut(0, n)}
		}
		if err = p.s.do(ctx, r); err == nil {
			return p.buf.Bytes()[:min(int(r.transferred), n)], nil
		}
		var se *SenseError
		var st *StatusError
		switch {
		case errors.As(err, &se) && (se.Key == keyUnitAttention || se.Key == keyAborted || se.Deferred):
		case errors.As(err, &st) && (st.Status == statusBusy || st.Status == statusTaskSetFull || st.Status == statusTaskAborted):
			try-- // the context bounds it
			t := time.NewTimer(retryDelay)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
		default:
			return nil, err
		}
	}
	return nil, err
}

// do runs a request on this session only and waits. When the context ends first, the command is aborted and that waited
// for: its memory is the caller's again on return, always.
func (s *session) do(ctx context.Context, r *request) error {
	r.to(routed)
	r.reset()
	ch := make(chan struct{}, 1)
	r.Err, r.waiter, r.pin, r.sent = nil, ch, s, false
	if !s.submit(r) {
		r.to(idle)
		return s.reason()
	}
	select {
	case <-ch:
	case <-ctx.Done():
		r.cancelled.Store(true)
		s.cancel(r)
		<-ch
		if errors.Is(r.Err, ErrCancelled) {
			return context.Cause(ctx)
		}
	}
	return r.Err
}

func (s *session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// identify asks the logical unit what it is, again while it says meanwhile that it changes, and returns what it says with
// the number of the doubts that are settled by it.
func (p *probe) identify(ctx context.Context) (*Unit, int, error) {
	for range maxLooks {
		g, seen, err := p.ask(ctx)
		if err != nil {
			return nil, 0, err
		}
		if seen == p.s.doubtful() {
			return g, seen, nil
		}
	}
	return nil, 0, errors.New("block: the unit goes on changing while it is asked what it is")
}

func (s *session) doubtful() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubts
}

// ask is SPC-4 sections 6.4 and 7.8, SBC-3 sections 5.10 and 6.6. The last INQUIRY is for the name once more: a target
// takes any INQUIRY for the sign that this initiator knows what the unit is now.
func (p *probe) ask(ctx context.Context) (*Unit, int, error) {
	if _, err := p.in(ctx, make([]byte, 6), 0); err != nil && !mayGoOn(err) {
		return nil, 0, fmt.Errorf("TEST UNIT READY: %w", err)
	}
	seen := p.s.doubtful()
	g, err := p.geometry(ctx)
	if err != nil {
		return nil, 0, err
	}
	again := &Unit{}
	switch {
	case g.ID != "":
		err = p.designators(ctx, again)
	case g.Serial != "":
		err = p.serial(ctx, again)
	}
	if err == nil && (again.ID != g.ID || g.ID == "" && again.Serial != g.Serial) {
		err = fmt.Errorf("%w: it says %q and then %q", errUnsaid, g.name(), again.name())
	}
	return g, seen, err
}

// serial reads the Unit Serial Number page. An answer that is lost or empty is an error: it is no name.
func (p *probe) serial(ctx context.Context, g *Unit) error {
	b, err := p.inquiry(ctx, 0x80)
	if err != nil || len(b) < 4 {
		return fmt.Errorf("INQUIRY page 0x80: %w", orShort(err))
	}
	g.Serial = text(b[4:min(len(b), 4+int(b[3]))])
	return nil
}

// designators is the same with the Device Identification page.
func (p *probe) designators(ctx context.Context, g *Unit) error {
	b, err := p.inquiry(ctx, 0x83)
	if err != nil || len(b) < 4 {
		return fmt.Errorf("INQUIRY page 0x83: %w", orShort(err))
	}
	g.designators(b)
	return nil
}

func (p *probe) geometry(ctx context.Context) (*Unit, error) {
	g := &Unit{}
	b, err := p.inquiry(ctx, -1)
	if err != nil || len(b) < 36 {
		return nil, fmt.Errorf("INQUIRY: %w", orShort(err))
	}
	g.PeripheralRaw = b[0]
	if b[0]>>5 == 3 || b[0] == 0x7f {
		return nil, fmt.Errorf("%w: there is no logical unit of that number", ErrNoUnit)
	}
	if b[0]>>5 != 0 || b[0]&0x1f != 0 {
		return nil, fmt.Errorf("%w: it is no disk but a device of type 0x%02x", ErrNoUnit, b[0]&0x1f)
	}
	g.ALUA = b[5]&0x30 != 0
	g.Vendor, g.Product, g.Revision = text(b[8:16]), text(b[16:32]), text(b[32:36])
	pages, err := p.pages(ctx)
	if err != nil {
		return nil, err
	}
	if pages[0x80] {
		if err := p.serial(ctx, g); err != nil {
			return nil, err
		}
	}
	if pages[0x83] {
		if err := p.designators(ctx, g); err != nil {
			return nil, err
		}
	}
	if err := p.capacity(ctx, g); err != nil {
		old := p.s.path.v.unit.Load()
		if old == nil || !mayGoOn(err) {
			return nil, err
		}
		// Standby need not tell the capacity (SPC-4 section 5.15.2.4.4); what was known is as good.
		g.Size, g.Logical, g.Physical, g.Thin, g.DiscardZeroes = old.Size, old.Logical, old.Physical, old.Thin, old.DiscardZeroes
	}
	p.vpdLimits(ctx, g, pages)
	p.modes(ctx, g)
	return g, nil
}

// mayGoOn: a unit that is in standby still answers INQUIRY and tells its capacity, and one that has come to be another may
// give its unit attention to every command until it is asked INQUIRY.
func mayGoOn(err error) bool {
	var se *SenseError
	return errors.As(err, &se) && (se.Key == keyNotReady || se.Key == keyUnitAttention)
}

func orShort(err error) error {
	if err == nil {
		return errors.New("block: the answer is too short")
	}
	return err
}

func text(b []byte) string { return strings.TrimSpace(strings.TrimRight(string(b), "\x00")) }

// inquiry reads standard data with page -1, else a VPD page.
func (p *probe) inquiry(ctx context.Context, page int) ([]byte, error) {
	cdb := []byte{opInquiry, 0, 0, 0, 255, 0}
	if page >= 0 {
		cdb[1], cdb[2] = 1, byte(page)
	}
	return p.in(ctx, cdb, 255)
}

func (p *probe) pages(ctx context.Context) (map[byte]bool, error) {
	m := map[byte]bool{}
	b, err := p.inquiry(ctx, 0)
	switch {
	case errors.Is(err, blockdev.ErrUnsupported):
		return m, nil // SCSI-2 has no such pages
	case err != nil || len(b) < 4:
		return nil, fmt.Errorf("INQUIRY page 0x00: %w", orShort(err))
	}
	for _, c := range b[4:min(len(b), 4+int(b[3]))] {
		m[c] = true
	}
	return m, nil
}

func (p *probe) capacity(ctx context.Context, g *Unit) error {
	cdb := make([]byte, 16)
	cdb[0], cdb[1], cdb[13] = opServiceIn16, saReadCapacity16, 32
	b, err := p.in(ctx, cdb, 32)
	if err == nil && len(b) >= 12 {
		last := binary.BigEndian.Uint64(b)
		g.Logical = int(binary.BigEndian.Uint32(b[8:]))
		if g.Logical < 512 || g.Logical > mem.PageSize || g.Logical&(g.Logical-1) != 0 || last >= 1<<62/uint64(g.Logical) {
			return fmt.Errorf("block: READ CAPACITY speaks of %d blocks of %d bytes, which this initiator cannot use", last+1, g.Logical)
		}
		g.Size, g.Physical = int64(last+1)*int64(g.Logical), g.Logical
		if len(b) >= 16 {
			g.Physical <<= b[13] & 0x0f
			g.Thin, g.DiscardZeroes = b[14]&0x80 != 0, b[14]&0x40 != 0
		}
		return nil
	}
	if err != nil && !errors.Is(err, blockdev.ErrUnsupported) {
		return fmt.Errorf("READ CAPACITY (16): %w", err)
	}
	ten := make([]byte, 10)
	ten[0] = opReadCapacity10
	if b, err = p.in(ctx, ten, 8); err != nil || len(b) < 8 {
		return fmt.Errorf("READ CAPACITY (10): %w", orShort(err))
	}
	g.Logical = int(binary.BigEndian.Uint32(b[4:]))
	if g.Logical != 512 && g.Logical != 4096 {
		return fmt.Errorf("block: blocks of %d bytes, which this initiator cannot use", g.Logical)
	}
	g.Size, g.Physical = (int64(binary.BigEndian.Uint32(b))+1)*int64(g.Logical), g.Logical
	return nil
}

// designators takes the best name of the logical unit, and what names the port (SPC-4 section 7.8.6).
func (u *Unit) designators(b []byte) {
	best := -1
	for d := b[min(4, len(b)):]; len(d) >= 4; {
		n := int(d[3])
		if len(d) < 4+n {
			return
		}
		v, set, kind := d[4:4+n], d[0]&0x0f, d[1]&0x0f
		if d[1]>>4&3 == 0 { // of the logical unit
			rank := map[byte]int{1: 1, 2: 2, 3: 3, 8: 2, 0xa: 0}
			if r, ok := rank[kind]; ok && r > best {
				best = r
				prefix := map[byte]string{1: "t10.", 2: "eui.", 3: "naa.", 8: "", 0xa: "uuid."}[kind]
				if set == 1 {
					u.ID = prefix + hex.EncodeToString(v)
				} else {
					u.ID = prefix + text(v)
				}
			}
		} else if n == 4 {
			switch kind {
			case 4:
				u.RelativePort = binary.BigEndian.Uint16(v[2:])
			case 5:
				u.PortGroup, u.HasPortGroup = binary.BigEndian.Uint16(v[2:]), true
			}
		}
		d = d[4+n:]
	}
}

func (p *probe) vpdLimits(ctx context.Context, g *Unit, pages map[byte]bool) {
	block := int64(g.Logical)
	if pages[0xb0] {
		if b, err := p.inquiry(ctx, 0xb0); err == nil && len(b) >= 16 {
			g.MaxTransfer = int64(binary.BigEndian.Uint32(b[8:])) * block
			g.OptimalIO = int(binary.BigEndian.Uint32(b[12:])) * g.Logical
			g.MaxCompare = int64(b[5]) * block
			if len(b) >= 44 {
				g.MaxUnmap = int64(binary.BigEndian.Uint32(b[20:])) * block
				g.UnmapUnit = max(int64(binary.BigEndian.Uint32(b[28:])), 1) * block
				if v := binary.BigEndian.Uint64(b[36:]); v < 1<<40 {
					g.MaxWriteSame = int64(v) * block
				}
			}
		}
	}
	if pages[0xb1] {
		if b, err := p.inquiry(ctx, 0xb1); err == nil && len(b) >= 6 {
			rate := binary.BigEndian.Uint16(b[4:])
			g.Rotational = rate > 1
		}
	}
	unmap := g.Thin
	if pages[0xb2] {
		if b, err := p.inquiry(ctx, 0xb2); err == nil && len(b) >= 6 {
			unmap, g.UnmapSame = b[5]&0x80 != 0, b[5]&0x40 != 0
		}
	}
	switch {
	case !unmap:
		g.MaxUnmap, g.UnmapUnit = 0, 0
	case g.MaxUnmap == 0 && !pages[0xb0]:
		g.MaxUnmap, g.UnmapUnit = 1<<31, block
	}
	if g.MaxUnmap > 0 {
		g.DiscardUnit = int(g.UnmapUnit)
	}
}

// modes reads write protection and the caching page (SBC-3 section 6.5.6).
func (p *probe) modes(ctx context.Context, g *Unit) {
	b, err := p.in(ctx, []byte{opModeSense6, 0, 0x08, 0, 192, 0}, 192)
	if err != nil || len(b) < 4 {
		return
	}
	g.ReadOnly = b[2]&0x80 != 0
	if pg := 4 + int(b[3]); len(b) > pg+2 && b[pg]&0x3f == 0x08 {
		g.WriteCache = b[pg+2]&0x04 != 0
		g.WriteThrough = !g.WriteCache
	}
	// The Control page (SPC-4 section 7.5.8).
	if b, err := p.in(ctx, []byte{opModeSense6, 0x08, 0x0a, 0, 192, 0}, 192); err == nil && len(b) > 4+5 && b[4]&0x3f == 0x0a {
		g.TaskAborted = b[4+5]&0x40 != 0
	}
}
