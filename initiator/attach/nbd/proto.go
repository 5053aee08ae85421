package nbd

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/errno"
)

// Handshake.
const (
	magicInit   = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption = 0x49484156454f5054 // "IHAVEOPT"
	magicReply  = 0x0003e889045565a9

	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1

	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMeta        = 9
	optSetMeta         = 10

	repAck         = 1
	repServer      = 2
	repInfo        = 3
	repMetaContext = 4
	repErrUnsup    = 1<<31 + 1
	repErrInvalid  = 1<<31 + 3
	repErrUnknown  = 1<<31 + 6
	repErrTooBig   = 1<<31 + 9

	infoExport    = 0
	infoName      = 1
	infoBlockSize = 3
)

// Transmission flags.
const (
	hasFlags        = 1 << 0
	readOnly        = 1 << 1
	sendFlush       = 1 << 2
	sendFUA         = 1 << 3
	rotational      = 1 << 4
	sendTrim        = 1 << 5
	sendWriteZeroes = 1 << 6
	sendDF          = 1 << 7
	canMultiConn    = 1 << 8
	sendCache       = 1 << 10
)

// Requests and replies.
const (
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef

	cmdRead        = 0
	cmdWrite       = 1
	cmdDisc        = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdCache       = 5
	cmdWriteZeroes = 6
	cmdBlockStatus = 7

	flagFUA    = 1 << 0
	flagNoHole = 1 << 1
	flagDF     = 1 << 2
	flagReqOne = 1 << 3

	chunkDone        = 1 << 0
	chunkNone        = 0
	chunkOffsetData  = 1
	chunkBlockStatus = 5
	chunkError       = 1<<15 + 1

	stateHole = 1 << 0
	stateZero = 1 << 1
)

const (
	requestLen    = 28 // bytes of a request header
	simpleLen     = 16
	structuredLen = 20

	allocation = "base:allocation" // the metadata context this server knows
	contextID  = 1
)

// ProtocolError is what a client did against the protocol; it ends that connection.
type ProtocolError struct{ Detail string }

func (e *ProtocolError) Error() string { return "nbd: the client broke the protocol: " + e.Detail }

func broke(format string, a ...any) error { return &ProtocolError{fmt.Sprintf(format, a...)} }

// errnoOf is the error number of a reply (doc/proto.md, "Error values"); the protocol knows no others.
func errnoOf(err error) uint32 {
	switch e := errno.Of(err); e {
	case 0, unix.EPERM, unix.EIO, unix.ENOMEM, unix.EINVAL, unix.ENOSPC, unix.EOVERFLOW, unix.ESHUTDOWN, unix.EOPNOTSUPP:
		return uint32(e)
	case unix.EROFS: // "EPERM is sent for writes to what is read-only"
		return uint32(unix.EPERM)
	}
	return uint32(unix.EIO)
}
