package ublk

import (
	"encoding/binary"
	"math/bits"

	"github.com/sluice-storage/sluice/blockdev"
)

// The driver's interface, include/uapi/linux/ublk_cmd.h. Numbers in structures are the machine's own byte order.
var ne = binary.NativeEndian

// Control commands; what they are in the entry depends on the kernel: see control.op.
const (
	cmdGetInfo     = 0x02
	cmdAdd         = 0x04
	cmdDel         = 0x05
	cmdStart       = 0x06
	cmdStop        = 0x07
	cmdSetParams   = 0x08
	cmdGetFeatures = 0x13
	cmdDelAsync    = 0x14
	cmdUpdateSize  = 0x15
)

// Commands of queues.
const (
	ioFetch   = 0x20
	ioCommit  = 0x21
	ioGetData = 0x22

	resOK       = 0
	resNeedData = 1
)

// Flags of a device.
const (
	flagNeedGetData = 1 << 2
	flagUpdateSize  = 1 << 10
)

// States of a device.
const (
	stateDead = 0
	stateLive = 1
)

const (
	ctrlCmdSize = 32
	infoSize    = 64
	paramsSize  = 60
	descSize    = 24
	ioCmdSize   = 16
	featureSize = 8
)

// ioctl makes the form of a command that kernels from 6.4 on know: _IOR or _IOWR of type 'u'.
func ioctl(nr uint32, size int) uint32 {
	dir := uint32(3)
	if nr == cmdGetInfo || nr == cmdGetFeatures || nr == cmdDelAsync {
		dir = 2
	}
	return dir<<30 | uint32(size)<<16 | 'u'<<8 | nr
}

// ctrlCmd is struct ublksrv_ctrl_cmd.
type ctrlCmd struct {
	dev  uint32
	len  uint16
	addr uint64
	data uint64
}

func (c *ctrlCmd) put(b []byte) {
	clear(b[:ctrlCmdSize])
	ne.PutUint32(b, c.dev)
	ne.PutUint16(b[4:], 0xffff) // no queue
	ne.PutUint16(b[6:], c.len)
	ne.PutUint64(b[8:], c.addr)
	ne.PutUint64(b[16:], c.data)
}

// info is struct ublksrv_ctrl_dev_info, as far as it matters here.
type info struct {
	queues, depth, state uint16
	maxIO, dev           uint32
	pid                  int32
	flags                uint64
	tag                  uint64 // ublksrv_flags, which the driver keeps for the server: ours says whose the device is
}

// ownTag marks devices of this program's: a number that the driver keeps, with the process's in it.
func ownTag(pid int) uint64 { return 0x534c5543_00000000 | uint64(uint32(pid)) }

func (i *info) put(b []byte) {
	clear(b[:infoSize])
	ne.PutUint16(b, i.queues)
	ne.PutUint16(b[2:], i.depth)
	ne.PutUint32(b[8:], i.maxIO)
	ne.PutUint32(b[12:], i.dev)
	ne.PutUint64(b[24:], i.flags)
	ne.PutUint64(b[32:], i.tag)
}

func (i *info) parse(b []byte) {
	i.queues, i.depth, i.state = ne.Uint16(b), ne.Uint16(b[2:]), ne.Uint16(b[4:])
	i.maxIO, i.dev, i.pid = ne.Uint32(b[8:]), ne.Uint32(b[12:]), int32(ne.Uint32(b[16:]))
	i.flags, i.tag = ne.Uint64(b[24:]), ne.Uint64(b[32:])
}

// putParams writes struct ublk_params with its basic and discard parts.
func putParams(b []byte, g *blockdev.Geometry, readOnly bool) {
	clear(b[:paramsSize])
	ne.PutUint32(b, paramsSize)
	const basic, discard = 1 << 0, 1 << 1
	types := uint32(basic)
	attrs := uint32(1<<2 | 1<<3) // a volatile cache, and FUA
	if readOnly || g.ReadOnly {
		attrs |= 1 << 0
	}
	if g.Rotational {
		attrs |= 1 << 1
	}
	shift := func(n int) byte { return byte(bits.Len(uint(n)) - 1) }
	logical := shift(g.Logical)
	physical := max(logical, shift(max(g.Physical, 1)))
	opt := max(physical, shift(max(g.OptimalIO, 1)))
	ne.PutUint32(b[8:], attrs)
	b[12], b[13], b[14], b[15] = logical, min(physical, 12), min(opt, 20), min(physical, 12)
	ne.PutUint32(b[16:], maxIO>>9)
	ne.PutUint64(b[24:], uint64(g.Size)>>9)
	if g.DiscardUnit > 0 {
		types |= discard
		ne.PutUint32(b[44:], uint32(max(g.DiscardUnit, g.Logical))) // granularity
		ne.PutUint32(b[48:], maxDiscard>>9)
		ne.PutUint32(b[52:], maxZeroes>>9)
		ne.PutUint16(b[56:], 1) // segments
	}
	ne.PutUint32(b[4:], types)
}

// Requests of the block layer.
const (
	opReadIO      = 0
	opWriteIO     = 1
	opFlushIO     = 2
	opDiscardIO   = 3
	opWriteZeroIO = 5

	flagFUA     = 1 << 13
	flagNoUnmap = 1 << 15
)

// desc is struct ublksrv_io_desc: a request. The kernel writes it before it completes the tag's entry.
type desc struct {
	op      uint8
	flags   uint32
	sectors uint32
	start   uint64
}

func (d *desc) parse(b []byte) {
	of := ne.Uint32(b)
	d.op, d.flags, d.sectors, d.start = uint8(of), of&^0xff, ne.Uint32(b[4:]), ne.Uint64(b[8:])
}

// request translates a descriptor; false for what the driver was not told that we can do.
func (d *desc) request(r *blockdev.Request) bool {
	r.Offset, r.Length, r.FUA, r.Unmap = int64(d.start)<<9, int64(d.sectors)<<9, d.flags&flagFUA != 0, false
	switch d.op {
	case opReadIO:
		r.Op = blockdev.Read
	case opWriteIO:
		r.Op = blockdev.Write
	case opFlushIO:
		r.Op, r.Offset, r.Length = blockdev.Flush, 0, 0
	case opDiscardIO:
		r.Op = blockdev.Discard
	case opWriteZeroIO:
		r.Op, r.Unmap = blockdev.WriteZeroes, d.flags&flagNoUnmap == 0
	default:
		return false
	}
	return true
}
