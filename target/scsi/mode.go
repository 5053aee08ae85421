package scsi

import (
	"encoding/binary"
	"maps"
)

// modePage is one mode page: what it reads as, and which bits MODE SELECT may change. The unit keeps one copy for all
// I_T nexuses (VPD 87h).
type modePage struct {
	code, sub  byte
	initial    func(lu *LogicalUnit) []byte // from the byte after the page length on
	changeable []byte
	offered    func(*LogicalUnit) bool
}

var modePages = []modePage{
	{code: 0x01, initial: errorRecoveryPage, changeable: []byte{0, 0, 0, 0, 0, lbpere, 0, 0, 0, 0}}, // read-write error recovery
	{code: 0x02, // disconnect-reconnect (SPC-4 section 7.5.9)
		initial:    func(*LogicalUnit) []byte { return make([]byte, 14) },
		changeable: make([]byte, 14)},
	{code: 0x08, // caching (SBC-3 section 6.5.5)
		initial:    cachingPage,
		changeable: func() []byte { b := make([]byte, 18); b[0] = 0x04; return b }()},
	{code: 0x0A, initial: controlPage, changeable: []byte{0x04, 0, 0x08, 0x40, 0, 0, 0, 0, 0, 0}}, // D_SENSE, SWP, TAS
	{code: 0x0A, sub: 0x01, // control extension (SPC-4 section 7.5.8): no SCSIP, TCMOS; sense length
		initial: func(*LogicalUnit) []byte {
			b := make([]byte, 28)
			b[0], b[2] = 0x02, senseLen
			return b
		},
		changeable: make([]byte, 28)},
	{code: 0x1A, // power condition (SPC-4 section 7.5.13): no timers
		initial:    func(*LogicalUnit) []byte { return make([]byte, 38) },
		changeable: make([]byte, 38)},
	{code: 0x1C, // informational exceptions (SPC-4 section 7.5.11)
		initial: func(*LogicalUnit) []byte { b := make([]byte, 10); b[0], b[1] = 0x08, 0; return b },
		// DEXCPT, TEST; MRIE; interval timer; report count.
		changeable: []byte{0x0C, 0x0F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}},
	{code: 0x1C, sub: 0x02, offered: (*LogicalUnit).thin, // logical block provisioning (SBC-3 section 6.5.9)
		initial:    provisioningPage,
		changeable: func() []byte { b := make([]byte, 12); b[0] = situa; return append(b, make([]byte, 8)...) }()},
}

// cachingPage has WCE where there is a cache that a loss of power empties.
func cachingPage(lu *LogicalUnit) []byte {
	b := make([]byte, 18)
	if !lu.dev.Geometry().WriteThrough {
		b[0] = 0x04
	}
	return b
}

func controlPage(lu *LogicalUnit) []byte {
	tst := byte(1) << 5
	if lu.opt.SharedTaskSet {
		tst = 0
	}
	// QUEUE ALGORITHM MODIFIER 1: SIMPLE tasks may be reordered. TAS 1, as LIO has it: a host whose commands another one
	// aborts is told so by their status. ATMPE, RWWP 0.
	return []byte{tst, 0x10, 0, 0x40, 0, 0, 0xFF, 0xFF, 0, 0}
}

func (p *modePage) header() []byte {
	n := len(p.changeable)
	if p.sub == 0 {
		return []byte{p.code, byte(n)}
	}
	return []byte{0x40 | p.code, p.sub, byte(n >> 8), byte(n)}
}

type modeState struct {
	// By page: the current and the saved values. Guarded by lu.mu.
	current, saved map[[2]byte][]byte
}

func (lu *LogicalUnit) initModes() {
	lu.modes.current = map[[2]byte][]byte{}
	lu.modes.saved = map[[2]byte][]byte{}
	for i := range modePages {
		p := &modePages[i]
		if p.offered == nil || p.offered(lu) {
			lu.modes.current[[2]byte{p.code, p.sub}] = p.initial(lu)
		}
	}
	lu.applyModesLocked()
}

// applyModesLocked makes flags of what the pages say.
func (lu *LogicalUnit) applyModesLocked() {
	cache, control := lu.modes.current[[2]byte{0x08}], lu.modes.current[[2]byte{0x0A}]
	lu.set(flagNoCache, cache[0]&0x04 == 0)
	lu.set(flagDescriptor, control[0]&0x04 != 0)
	lu.set(flagSWP, control[2]&0x08 != 0)
	lu.set(flagTAS, control[3]&0x40 != 0)
}

// revertModesLocked goes back to the saved pages, as a reset does.
func (lu *LogicalUnit) revertModesLocked() {
	for i := range modePages {
		p := &modePages[i]
		k := [2]byte{p.code, p.sub}
		if lu.modes.current[k] == nil {
			continue
		}
		lu.modes.current[k] = p.initial(lu)
		if s := lu.modes.saved[k]; len(s) == len(p.changeable) {
			lu.modes.current[k] = append([]byte(nil), s...)
		}
	}
	lu.applyModesLocked()
}

// canSave says whether pages can be saved (PS).
func (lu *LogicalUnit) canSaveLocked() bool { return lu.stateDir != "" }

// pageValueLocked is a page for a page control: 0 current, 1 changeable, 2 default, 3 saved.
func (lu *LogicalUnit) pageValueLocked(p *modePage, pc byte) []byte {
	switch pc {
	case 1:
		return p.changeable
	case 2:
		return p.initial(lu)
	case 3:
		if s := lu.modes.saved[[2]byte{p.code, p.sub}]; s != nil {
			return s
		}
		return p.initial(lu)
	}
	return lu.modes.current[[2]byte{p.code, p.sub}]
}

func (lu *LogicalUnit) appendPagesLocked(b []byte, code, sub, pc byte) ([]byte, bool) {
	found := false
	for i := range modePages {
		p := &modePages[i]
		if lu.modes.current[[2]byte{p.code, p.sub}] == nil {
			continue
		}
		if code != 0x3F && code != p.code || sub != 0xFF && sub != p.sub {
			continue
		}
		found = true
		h := p.header()
		if lu.canSaveLocked() {
			h[0] |= 0x80
		}
		b = append(append(b, h...), lu.pageValueLocked(p, pc)...)
	}
	return b, found
}

// beginModeSense handles MODE SENSE(6) and (10) (SPC-4 sections 6.11 and 6.12).
func beginModeSense(c *Command) stepResult {
	lu := c.x.lu
	ten := c.CDB[0] == byte(OpModeSense10)
	pc, code, sub, dbd := c.CDB[2]>>6, c.CDB[2]&0x3F, c.CDB[3], c.CDB[1]&8 != 0
	alloc := int(c.CDB[4])
	if ten {
		alloc = int(be16(c.CDB[7:]))
	}
	if code == 0x3F && sub != 0 && sub != 0xFF {
		return c.end(badCDB(3))
	}
	specific := byte(0x10) // DPOFUA
	if lu.readOnly() || lu.has(flagSWP) {
		specific |= 0x80
	}
	b := c.scratch()
	long := ten && c.CDB[1]&0x10 != 0
	if ten {
		b = append(b, 0, 0, 0, specific, 0, 0, 0, 0)
	} else {
		b = append(b, 0, 0, specific, 0)
	}
	if !dbd {
		b = lu.appendBlockDescriptor(b, long)
		n := byte(len(b) - 4)
		if ten {
			n = byte(len(b) - 8)
			b[7] = n
			if long {
				b[4] = 1
			}
		} else {
			b[3] = n
		}
	}
	// The data is made under the lock and moved without it: a move can wait for memory and for the initiator.
	lu.mu.Lock()
	canSave := lu.canSaveLocked()
	b, found := lu.appendPagesLocked(b, code, sub, pc)
	lu.mu.Unlock()
	if pc == 3 && !canSave {
		return c.end(check(IllegalRequest, ASCSavingNotSupported))
	}
	if !found {
		return c.end(badCDB(2))
	}
	if ten {
		binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	} else {
		b[0] = byte(len(b) - 1)
	}
	return c.send(b, alloc)
}

func (lu *LogicalUnit) appendBlockDescriptor(b []byte, long bool) []byte {
	if long {
		b = binary.BigEndian.AppendUint64(b, lu.blocks())
		b = append(b, 0, 0, 0, 0)
		return binary.BigEndian.AppendUint32(b, lu.bs)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(min(lu.blocks(), 0xFFFFFFFF)))
	return binary.BigEndian.AppendUint32(b, lu.bs)
}

// beginModeSelect handles MODE SELECT(6) and (10) (SPC-4 sections 6.9 and 6.10).
func beginModeSelect(c *Command) stepResult {
	ten := c.CDB[0] == byte(OpModeSelect10)
	n := int(c.CDB[4])
	if ten {
		n = int(be16(c.CDB[7:]))
	}
	save := c.CDB[1]&1 != 0
	c.x.lu.mu.Lock()
	canSave := c.x.lu.canSaveLocked()
	c.x.lu.mu.Unlock()
	if save && !canSave {
		return c.end(badCDBBit(1, 0))
	}
	if n == 0 {
		return stepDone
	}
	return c.asyncParams(n, func(c *Command, list []byte) error { return c.x.lu.modeSelect(c, list, ten, save) })
}

func (lu *LogicalUnit) modeSelect(c *Command, list []byte, ten, save bool) error {
	lu.modeMu.Lock()
	defer lu.modeMu.Unlock()
	head := 4
	if ten {
		head = 8
	}
	if len(list) < head {
		return check(IllegalRequest, ASCParameterListLength)
	}
	desc, long := int(list[3]), false
	if ten {
		desc, long = int(be16(list[6:])), list[4]&1 != 0
	}
	size := 8
	if long {
		size = 16
	}
	if desc != 0 && desc != size {
		return badParam(head - 1)
	}
	if len(list) < head+desc {
		return check(IllegalRequest, ASCParameterListLength)
	}
	if desc != 0 {
		// The block length cannot be changed; the number of blocks is ignored.
		d := list[head:]
		if bs := be32(d[size-4:]) & 0xFFFFFF; bs != lu.bs && bs != 0 {
			return badParam(head + size - 4)
		}
	}
	lu.mu.Lock()
	changed := map[[2]byte][]byte{}
	for off := head + desc; off < len(list); {
		next, err := lu.checkPageLocked(list, off, changed)
		if err != nil {
			lu.mu.Unlock()
			return err
		}
		off = next
	}
	// A page that was only made current lasts as long as there is power: it is written down as well, see luState.
	current, saved := maps.Clone(lu.modes.current), maps.Clone(lu.modes.saved)
	differs := false
	for k, v := range changed {
		differs = differs || string(lu.modes.current[k]) != string(v)
		lu.modes.current[k] = v
		if save {
			lu.modes.saved[k] = v // values are replaced, never changed
		}
	}
	lu.applyModesLocked()
	lu.mu.Unlock()
	if !differs && !save {
		return nil
	}
	if err := lu.persist(); err != nil {
		lu.mu.Lock()
		lu.modes.current, lu.modes.saved = current, saved
		lu.applyModesLocked()
		lu.mu.Unlock()
		return err
	}
	if differs {
		lu.attention(ASCModeParametersChanged, c.x.itl)
	}
	return nil
}

// checkPageLocked checks the page at off against what may change and returns where the next one begins.
func (lu *LogicalUnit) checkPageLocked(list []byte, off int, changed map[[2]byte][]byte) (int, error) {
	p := list[off:]
	if len(p) < 2 {
		return 0, check(IllegalRequest, ASCParameterListLength)
	}
	k := [2]byte{p[0] & 0x3F}
	body := 2
	n := int(p[1])
	if p[0]&0x40 != 0 {
		if len(p) < 4 {
			return 0, check(IllegalRequest, ASCParameterListLength)
		}
		k[1], body, n = p[1], 4, int(be16(p[2:]))
	}
	cur := lu.modes.current[k]
	if cur == nil {
		return 0, badParam(off)
	}
	if n != len(cur) {
		return 0, badParam(off + body - 1)
	}
	if len(p) < body+n {
		return 0, check(IllegalRequest, ASCParameterListLength)
	}
	mask := modeMask(k)
	for i, v := range p[body : body+n] {
		if (v^cur[i])&^mask[i] != 0 {
			return 0, badParam(off + body + i)
		}
	}
	changed[k] = append([]byte(nil), p[body:body+n]...)
	return off + body + n, nil
}

func modeMask(k [2]byte) []byte {
	for i := range modePages {
		if p := &modePages[i]; p.code == k[0] && p.sub == k[1] {
			return p.changeable
		}
	}
	return nil
}
