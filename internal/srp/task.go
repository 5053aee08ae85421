package srp

import "encoding/binary"

// Attr is the task attribute of an SRP_CMD.
type Attr uint8

// Task attributes.
const (
	Simple      Attr = 0
	HeadOfQueue Attr = 1
	Ordered     Attr = 2
	ACA         Attr = 4
)

// Function is a task management function.
type Function uint8

// Task management functions.
const (
	AbortTask    Function = 0x01
	AbortTaskSet Function = 0x02
	ClearTaskSet Function = 0x04
	LUNReset     Function = 0x08
	ClearACA     Function = 0x40
)

// Response is the last byte of response data: the outcome of a task management function.
type Response uint8

// Response codes.
const (
	FunctionComplete     Response = 0x00
	FieldsInvalid        Response = 0x02
	FunctionNotSupported Response = 0x04
	FunctionFailed       Response = 0x05
)

// ResponseLen is the length of response data that bears a response code.
const ResponseLen = 4

// Format is the kind of one buffer descriptor of an SRP_CMD.
type Format uint8

// Buffer descriptor formats.
const (
	NoBuffer  Format = 0
	Direct    Format = 1
	Indirect  Format = 2
	Immediate Format = 3 // Linux: Data-Out that lies in the unit
)

// Buffer is a data buffer of a command: Len bytes of the initiator's memory, or of the unit.
type Buffer struct {
	Format Format
	Len    uint32
	// List has the memory descriptors that the unit bears, MemoryLen bytes each and in the order of the data. They are all there are unless
	// Table names more.
	List []byte
	// Table is where an indirect buffer's whole list lies; its length is 0 where List has all.
	Table Memory
	// Data is immediate data.
	Data []byte
}

// Covers checks that a whole list of descriptors has the memory for n bytes.
func Covers(list []byte, n uint32) bool {
	var sum uint64
	for ; len(list) >= MemoryLen; list = list[MemoryLen:] {
		sum += uint64(binary.BigEndian.Uint32(list[12:]))
	}
	return sum >= uint64(n)
}

// Segments goes through the memory descriptors of a buffer. Data moves in order, so it remembers where the last search has ended.
type Segments struct {
	List []byte // descriptors; together they cover the buffer
	at   int    // of the last search, in bytes of List
	base int64  // bytes of the buffer before that
}

// Find says where the initiator has byte off of the buffer, and how many bytes follow it there: Len.
func (g *Segments) Find(off int64) Memory {
	if off < g.base {
		g.at, g.base = 0, 0
	}
	for {
		m := ParseMemory(g.List[g.at:])
		if skip := off - g.base; skip < int64(m.Len) {
			return Memory{VA: m.VA + uint64(skip), Key: m.Key, Len: m.Len - uint32(skip)}
		}
		g.at, g.base = g.at+MemoryLen, g.base+int64(m.Len)
	}
}

// Notify is SOLNT: what a request asks to be notified of. Bit 1 is success, bit 2 failure.
type Notify uint8

// Wants reports whether a response of such an end is to be a notification.
func (n Notify) Wants(good bool) bool { return good && n&(1<<1) != 0 || !good && n&(1<<2) != 0 }

// Cmd is SRP_CMD.
type Cmd struct {
	Tag     uint64
	LUN     uint64
	Attr    Attr
	Notify  Notify
	CDB     []byte // 16 bytes and the additional ones
	Out, In Buffer
}

// AtMost checks that neither buffer has more than n memory descriptors. More than the unit bears lie in the buffer's Table.
func (c *Cmd) AtMost(n int) error {
	for _, f := range [...]*Buffer{&c.Out, &c.In} {
		if int64(f.Table.Len) > int64(n)*MemoryLen {
			return broken(OpCmd, c.badCount(f), "a table of %d memory descriptors, where %d are the most", f.Table.Len/MemoryLen, n)
		}
	}
	return nil
}

// Take makes list, which the Table of f named, the List of f. That is Out or In of the command.
func (c *Cmd) Take(f *Buffer, list []byte) error {
	if !Covers(list, f.Len) {
		return broken(OpCmd, c.badCount(f), "a table of %d memory descriptors that do not name the memory of all %d bytes", len(list)/MemoryLen, f.Len)
	}
	f.List = list
	return nil
}

// badCount is what is said of a list of f that is not as it should be.
func (c *Cmd) badCount(f *Buffer) LogoutReason {
	if f == &c.In {
		return LogoutInCount
	}
	return LogoutOutCount
}

// ParseCmd reads a command. immediate is where immediate data begins, 0 where the login has agreed on none.
func ParseCmd(b []byte, immediate int) (c Cmd, err error) {
	if err := long(OpCmd, b, CmdLen); err != nil {
		return c, err
	}
	c.Notify = Notify(b[1])
	c.Tag, c.LUN, c.Attr = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[20:]), Attr(b[29]&7)
	rest := CmdLen + int(b[31]&^3) // ADDITIONAL CDB LENGTH is in bits 7 to 2, in units of four bytes
	if err := long(OpCmd, b, rest); err != nil {
		return c, err
	}
	c.CDB = b[32:rest]
	if rest, err = c.Out.parse(b, rest, Format(b[5]>>4), int(b[6]), immediate, LogoutOutFormat, LogoutOutCount); err != nil {
		return c, err
	}
	if rest, err = c.In.parse(b, rest, Format(b[5]&15), int(b[7]), 0, LogoutInFormat, LogoutInCount); err != nil {
		return c, err
	}
	if c.Out.Format == Immediate && rest > immediate {
		return c, broken(OpCmd, LogoutInvalidUnit, "immediate data from byte %d on, and descriptors up to byte %d", immediate, rest)
	}
	return c, nil
}

// parse reads the descriptor at b[at:], of n memory descriptors where it is indirect, and returns where it ends.
func (f *Buffer) parse(b []byte, at int, kind Format, n, immediate int, badFormat, badCount LogoutReason) (int, error) {
	f.Format = kind
	switch kind {
	case NoBuffer:
		return at, nil
	case Direct:
		if err := long(OpCmd, b, at+MemoryLen); err != nil {
			return 0, err
		}
		f.List = b[at : at+MemoryLen]
		f.Len = binary.BigEndian.Uint32(f.List[12:])
		return at + MemoryLen, nil
	case Indirect:
		if err := long(OpCmd, b, at+MemoryLen+4); err != nil {
			return 0, err
		}
		f.Table = ParseMemory(b[at:])
		f.Len = binary.BigEndian.Uint32(b[at+MemoryLen:])
		at += MemoryLen + 4
		if err := long(OpCmd, b, at+n*MemoryLen); err != nil {
			return 0, err
		}
		f.List = b[at : at+n*MemoryLen]
		switch all := int64(f.Table.Len); {
		case all%MemoryLen != 0 || all < int64(len(f.List)):
			return 0, broken(OpCmd, badCount, "%d memory descriptors, and a table of %d bytes", n, all)
		case all == int64(len(f.List)):
			f.Table = Memory{}
			if !Covers(f.List, f.Len) {
				return 0, broken(OpCmd, badCount, "%d memory descriptors do not name the memory of all %d bytes", n, f.Len)
			}
		}
		return at + n*MemoryLen, nil
	case Immediate:
		if immediate == 0 {
			break
		}
		if err := long(OpCmd, b, at+4); err != nil {
			return 0, err
		}
		f.Len = binary.BigEndian.Uint32(b[at:])
		if int64(len(b)) < int64(immediate)+int64(f.Len) {
			return 0, broken(OpCmd, LogoutInvalidUnit, "%d bytes of immediate data from byte %d on, in a unit of %d", f.Len, immediate, len(b))
		}
		f.Data = b[immediate : immediate+int(f.Len)]
		return at + 4, nil
	}
	return 0, broken(OpCmd, badFormat, "a buffer descriptor of format %d", kind)
}

// Put writes the command and returns its length. Immediate data goes to byte immediate.
func (c *Cmd) Put(b []byte, immediate int) int {
	clear(b[:CmdLen])
	b[0], b[1] = byte(OpCmd), byte(c.Notify)
	b[5] = byte(c.Out.Format)<<4 | byte(c.In.Format)
	binary.BigEndian.PutUint64(b[8:], c.Tag)
	binary.BigEndian.PutUint64(b[20:], c.LUN)
	b[29] = byte(c.Attr)
	n := copy(b[32:], c.CDB)
	more := (max(n-16, 0) + 3) &^ 3
	b[31] = byte(more)
	if n > 16 {
		clear(b[32+n : CmdLen+more])
	}
	at := CmdLen + more
	at, b[6] = c.Out.put(b, at, immediate)
	at, b[7] = c.In.put(b, at, 0)
	if c.Out.Format == Immediate {
		clear(b[at:immediate])
		at = immediate + copy(b[immediate:], c.Out.Data)
	}
	return at
}

func (f *Buffer) put(b []byte, at, immediate int) (end int, n byte) {
	switch f.Format {
	case Direct:
		return at + copy(b[at:], f.List), 0
	case Indirect:
		table := f.Table
		if table.Len == 0 {
			table.Len = uint32(len(f.List))
		}
		table.Put(b[at:])
		binary.BigEndian.PutUint32(b[at+MemoryLen:], f.Len)
		at += MemoryLen + 4
		return at + copy(b[at:], f.List), byte(len(f.List) / MemoryLen)
	case Immediate:
		binary.BigEndian.PutUint32(b[at:], f.Len)
		return at + 4, 0
	}
	return at, 0
}

// TskMgmt is SRP_TSK_MGMT.
type TskMgmt struct {
	Tag      uint64
	LUN      uint64
	Function Function
	Task     uint64 // of ABORT TASK: the tag of the command
	Notify   Notify
}

// ParseTskMgmt reads a task management request.
func ParseTskMgmt(b []byte) (t TskMgmt, err error) {
	if err := long(OpTskMgmt, b, TskMgmtLen); err != nil {
		return t, err
	}
	return TskMgmt{Notify: Notify(b[1]), Tag: binary.BigEndian.Uint64(b[8:]), LUN: binary.BigEndian.Uint64(b[20:]), Function: Function(b[30]), Task: binary.BigEndian.Uint64(b[32:])}, nil
}

// Put writes the request.
func (t *TskMgmt) Put(b []byte) int {
	b = b[:TskMgmtLen]
	clear(b)
	b[0], b[1] = byte(OpTskMgmt), byte(t.Notify)
	binary.BigEndian.PutUint64(b[8:], t.Tag)
	binary.BigEndian.PutUint64(b[20:], t.LUN)
	b[30] = byte(t.Function)
	binary.BigEndian.PutUint64(b[32:], t.Task)
	return TskMgmtLen
}

// Flags of a response.
const (
	rspValid  = 1 << 0
	snsValid  = 1 << 1
	OutOver   = 1 << 2
	OutUnder  = 1 << 3
	InOver    = 1 << 4
	InUnder   = 1 << 5
	residuals = OutOver | OutUnder | InOver | InUnder
)

// Rsp is SRP_RSP.
type Rsp struct {
	Tag          uint64
	Credits      int32 // REQUEST LIMIT DELTA
	Notify       bool  // SOLNT: the initiator asked for a notification
	Status       uint8
	Flags        uint8  // residuals alone
	OutResidual  uint32 // bytes
	InResidual   uint32
	Sense        []byte
	ResponseData []byte
}

// SetResiduals says how much more or less than its buffers a command would have moved, in bytes: below 0 for less (SRP r16a section 6.9).
func (r *Rsp) SetResiduals(in, out int64) {
	if in > 0 {
		r.Flags, r.InResidual = r.Flags|InOver, uint32(min(in, 1<<32-1))
	} else if in < 0 {
		r.Flags, r.InResidual = r.Flags|InUnder, uint32(-in)
	}
	if out > 0 {
		r.Flags, r.OutResidual = r.Flags|OutOver, uint32(min(out, 1<<32-1))
	} else if out < 0 {
		r.Flags, r.OutResidual = r.Flags|OutUnder, uint32(-out)
	}
}

// Put writes the response; b has room for RspLen bytes, response data and sense.
func (r *Rsp) Put(b []byte) int {
	clear(b[:RspLen])
	b[0] = byte(OpRsp)
	if r.Notify {
		b[1] = 1
	}
	binary.BigEndian.PutUint32(b[4:], uint32(r.Credits))
	binary.BigEndian.PutUint64(b[8:], r.Tag)
	b[18], b[19] = r.Flags&residuals, r.Status
	if len(r.ResponseData) > 0 {
		b[18] |= rspValid
	}
	if len(r.Sense) > 0 {
		b[18] |= snsValid
	}
	binary.BigEndian.PutUint32(b[20:], r.OutResidual)
	binary.BigEndian.PutUint32(b[24:], r.InResidual)
	binary.BigEndian.PutUint32(b[28:], uint32(len(r.Sense)))
	binary.BigEndian.PutUint32(b[32:], uint32(len(r.ResponseData)))
	n := RspLen + copy(b[RspLen:], r.ResponseData)
	return n + copy(b[n:], r.Sense)
}

// ParseRsp reads a response.
func ParseRsp(b []byte) (r Rsp, err error) {
	if err := long(OpRsp, b, RspLen); err != nil {
		return r, err
	}
	r = Rsp{Tag: binary.BigEndian.Uint64(b[8:]), Credits: int32(binary.BigEndian.Uint32(b[4:])), Notify: b[1]&1 != 0, Status: b[19], Flags: b[18] & residuals,
		OutResidual: binary.BigEndian.Uint32(b[20:]), InResidual: binary.BigEndian.Uint32(b[24:])}
	var sense, data int64
	if b[18]&snsValid != 0 {
		sense = int64(binary.BigEndian.Uint32(b[28:]))
	}
	if b[18]&rspValid != 0 {
		data = int64(binary.BigEndian.Uint32(b[32:]))
	}
	if int64(len(b)) < RspLen+sense+data {
		return r, broken(OpRsp, LogoutInvalidUnit, "%d bytes of response data and %d of sense in a unit of %d", data, sense, len(b))
	}
	r.ResponseData, r.Sense = b[RspLen:RspLen+data], b[RspLen+data:RspLen+data+sense]
	return r, nil
}

// AERReq is SRP_AER_REQ: a unit attention that an initiator is told of before it asks.
type AERReq struct {
	Tag     uint64
	Credits int32
	LUN     uint64
	Sense   []byte
}

// Put writes the request; b has room for AERReqLen bytes and the sense.
func (a *AERReq) Put(b []byte) int {
	clear(b[:AERReqLen])
	b[0] = byte(OpAERReq)
	binary.BigEndian.PutUint32(b[4:], uint32(a.Credits))
	binary.BigEndian.PutUint64(b[8:], a.Tag)
	binary.BigEndian.PutUint64(b[20:], a.LUN)
	binary.BigEndian.PutUint32(b[28:], uint32(len(a.Sense)))
	return AERReqLen + copy(b[AERReqLen:], a.Sense)
}

// ParseAERReq reads an asynchronous event.
func ParseAERReq(b []byte) (a AERReq, err error) {
	if err := long(OpAERReq, b, AERReqLen); err != nil {
		return a, err
	}
	n := int64(binary.BigEndian.Uint32(b[28:]))
	if int64(len(b)) < AERReqLen+n {
		return a, broken(OpAERReq, LogoutInvalidUnit, "%d bytes of sense in a unit of %d", n, len(b))
	}
	return AERReq{Tag: binary.BigEndian.Uint64(b[8:]), Credits: int32(binary.BigEndian.Uint32(b[4:])), LUN: binary.BigEndian.Uint64(b[20:]), Sense: b[AERReqLen : AERReqLen+n]}, nil
}
