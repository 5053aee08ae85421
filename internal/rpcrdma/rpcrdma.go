// Package rpcrdma is the transport header of RPC-over-RDMA version 1 (RFC 8166) and the private message that its
// connections begin with (RFC 8797). It encodes and decodes; it moves nothing.
//
// The Header below, as RFC 8166 section 4 draws it, in 32-bit words:
//
//	xid | vers | credits | proc
//	read list:   { 1, position, handle, length, offset(2) }* 0
//	write list:  { 1, count, { handle, length, offset(2) }* }* 0
//	reply chunk: 0 | 1, count, { handle, length, offset(2) }*
//	RDMA_MSG:    the RPC message follows
package rpcrdma

import (
	"fmt"

	"github.com/sluice-storage/sluice/internal/xdr"
)

// Version is the version of the transport protocol.
const Version = 1

// Proc is an rdma_proc (RFC 8166 section 4.2.4).
type Proc uint32

// The procedures. MSGP and DONE are obsolete and only ever received.
const (
	Msg   Proc = 0
	Nomsg Proc = 1
	Msgp  Proc = 2
	Done  Proc = 3
	Error Proc = 4
)

// Errors of an RDMA_ERROR message (RFC 8166 section 4.5).
const (
	ErrVers  = 1
	ErrChunk = 2
)

// Segment is memory of the requester (RFC 8166 section 3.4.3).
type Segment struct {
	Handle uint32 // STag
	Len    uint32 // bytes
	Off    uint64
}

const (
	segmentLen = 16
	// MinHeader is the length in bytes of a header without chunks.
	MinHeader = 28
	// ErrVersLen is the length in bytes of an RDMA_ERROR message with ERR_VERS.
	ErrVersLen = 28
	// ErrChunkLen is that of ERR_CHUNK.
	ErrChunkLen = 20
)

// Append appends the segment.
func (s Segment) Append(b []byte) []byte {
	return xdr.AppendUint64(xdr.AppendUint32(xdr.AppendUint32(b, s.Handle), s.Len), s.Off)
}

func parseSegment(r *xdr.Reader) Segment {
	return Segment{Handle: r.Uint32(), Len: r.Uint32(), Off: r.Uint64()}
}

// ReadSegment is one item of the read list: part of the chunk at an XDR position of the message.
type ReadSegment struct {
	Position uint32
	Segment
}

// Header is a transport header. Its slices are used again by the next Parse into the same Header.
type Header struct {
	XID      uint32
	Vers     uint32
	Credits  uint32
	Proc     Proc
	Reads    []ReadSegment
	Writes   []Chunk // write chunks, in the order of the results they are for
	Reply    []Segment
	HasReply bool
	// With Error:
	ErrCode   uint32
	Low, High uint32

	segs []Segment // backs Writes and Reply
}

// Chunk is one write chunk: Segments[From:To] of its header. An empty one says that its item is to stay in the message.
type Chunk struct{ From, To int }

// Segments are the segments of write chunk c.
func (h *Header) Segments(c Chunk) []Segment { return h.segs[c.From:c.To] }

// Reset empties the lists and keeps their memory.
func (h *Header) Reset() {
	*h = Header{Vers: Version, Reads: h.Reads[:0], Writes: h.Writes[:0], segs: h.segs[:0]}
}

// AddWrite adds a write chunk to a header that is being built.
func (h *Header) AddWrite(segs ...Segment) {
	from := len(h.segs)
	h.segs = append(h.segs, segs...)
	h.Writes = append(h.Writes, Chunk{From: from, To: len(h.segs)})
}

// SetReply sets the reply chunk of a header that is being built. The slice is the caller's to leave alone.
func (h *Header) SetReply(segs []Segment) { h.Reply, h.HasReply = segs, true }

// Append appends the header.
func (h *Header) Append(b []byte) []byte {
	b = xdr.AppendUint32(xdr.AppendUint32(b, h.XID), h.Vers)
	b = xdr.AppendUint32(xdr.AppendUint32(b, h.Credits), uint32(h.Proc))
	if h.Proc == Error {
		b = xdr.AppendUint32(b, h.ErrCode)
		if h.ErrCode == ErrVers {
			b = xdr.AppendUint32(xdr.AppendUint32(b, h.Low), h.High)
		}
		return b
	}
	for _, s := range h.Reads {
		b = s.Segment.Append(xdr.AppendUint32(xdr.AppendBool(b, true), s.Position))
	}
	b = xdr.AppendBool(b, false)
	for _, c := range h.Writes {
		b = appendSegments(xdr.AppendBool(b, true), h.Segments(c))
	}
	b = xdr.AppendBool(b, false)
	b = xdr.AppendBool(b, h.HasReply)
	if h.HasReply {
		b = appendSegments(b, h.Reply)
	}
	return b
}

// Len is the number of bytes that Append appends.
func (h *Header) Len() int {
	if h.Proc == Error {
		if h.ErrCode == ErrVers {
			return ErrVersLen
		}
		return ErrChunkLen
	}
	n := MinHeader + len(h.Reads)*(8+segmentLen) + len(h.Writes)*8 + len(h.segsOfWrites())*segmentLen
	if h.HasReply {
		n += 4 + len(h.Reply)*segmentLen
	}
	return n
}

func (h *Header) segsOfWrites() []Segment {
	if len(h.Writes) == 0 {
		return nil
	}
	return h.segs[h.Writes[0].From:h.Writes[len(h.Writes)-1].To]
}

func appendSegments(b []byte, segs []Segment) []byte {
	b = xdr.AppendUint32(b, uint32(len(segs)))
	for _, s := range segs {
		b = s.Append(b)
	}
	return b
}

// VersionError is Parse's answer to another version; it deserves ERR_VERS, with the XID and credits of the header.
type VersionError struct{ Version uint32 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("rpcrdma: the peer speaks RPC-over-RDMA version %d; only 1 is spoken here (RFC 8166 section 4.2.2)", e.Version)
}

// ChunkError is Parse's answer to chunk lists that cannot be used; it deserves ERR_CHUNK.
type ChunkError struct{ Reason string }

func (e *ChunkError) Error() string { return "rpcrdma: " + e.Reason + " (RFC 8166 section 4.5.3)" }

// Parse takes a header from r and leaves r at the RPC message. The four fixed fields are valid in every error that is
// not xdr.ErrShort.
func (h *Header) Parse(r *xdr.Reader) error {
	h.Reset()
	h.XID, h.Vers, h.Credits, h.Proc = r.Uint32(), r.Uint32(), r.Uint32(), Proc(r.Uint32())
	if err := r.Err(); err != nil {
		return err
	}
	if h.Vers != Version {
		return &VersionError{Version: h.Vers}
	}
	switch h.Proc {
	case Msg, Nomsg:
	case Error:
		h.ErrCode = r.Uint32()
		if h.ErrCode == ErrVers {
			h.Low, h.High = r.Uint32(), r.Uint32()
		}
		return r.Err()
	case Done:
		return nil
	default:
		// RFC 8166 section 4.5.3: an unsupported procedure is answered with ERR_CHUNK, and so is RDMA_MSGP here.
		return &ChunkError{Reason: fmt.Sprintf("procedure %d is not supported", uint32(h.Proc))}
	}
	if err := h.parseLists(r); err != nil {
		return err
	}
	if r.Err() != nil {
		return &ChunkError{Reason: "the chunk lists end early or hold an illegal value: " + r.Err().Error()}
	}
	return nil
}

func (h *Header) parseLists(r *xdr.Reader) error {
	for r.Bool() {
		if len(h.Reads) == MaxReadSegments {
			return &ChunkError{Reason: fmt.Sprintf("a read list of more than %d segments", MaxReadSegments)}
		}
		h.Reads = append(h.Reads, ReadSegment{Position: r.Uint32(), Segment: parseSegment(r)})
	}
	for r.Bool() {
		if len(h.Writes) == MaxWriteChunks {
			return &ChunkError{Reason: fmt.Sprintf("a write list of more than %d chunks", MaxWriteChunks)}
		}
		from := len(h.segs)
		// RFC 8166 section 3.4.6: a write chunk may be empty. Its item comes back inline (section 4.3.2.3).
		if err := h.parseSegments(r, 0); err != nil {
			return err
		}
		h.Writes = append(h.Writes, Chunk{From: from, To: len(h.segs)})
	}
	if r.Bool() {
		from := len(h.segs)
		if err := h.parseSegments(r, 1); err != nil {
			return err
		}
		h.Reply, h.HasReply = h.segs[from:len(h.segs):len(h.segs)], true
	}
	return nil
}

func (h *Header) parseSegments(r *xdr.Reader, least uint32) error {
	n := r.Uint32()
	if r.Err() == nil && (n < least || n > MaxSegments) {
		return &ChunkError{Reason: fmt.Sprintf("a chunk of %d segments; %d to %d are taken", n, least, MaxSegments)}
	}
	for ; n > 0 && r.Err() == nil; n-- {
		h.segs = append(h.segs, parseSegment(r))
	}
	return nil
}

// Total is the number of bytes of segs.
func Total(segs []Segment) uint64 {
	var n uint64
	for _, s := range segs {
		n += uint64(s.Len)
	}
	return n
}
