package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"syscall"
)

// The names of RFC 5040 section 4.1, and the queue numbers of section 4.2.
const (
	opWrite     = 0
	opReadReq   = 1
	opReadResp  = 2
	opSend      = 3
	opSendInv   = 4
	opTerminate = 7

	qnSend = 0
	qnRead = 1
	qnTerm = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// rnic is an iWARP initiator that does what it is told, right or wrong. It shares no code with the product's.
type rnic struct {
	c    net.Conn
	crc  bool
	msn  [3]uint32 // the last one given, by queue
	rest []byte
	data []byte // of the untagged message that is arriving
}

// frame is an FPDU, as sent or as received.
type frame struct {
	op     byte
	tagged bool
	more   bool // L is not set
	stag   uint32
	to     uint64
	qn     uint32
	msn    uint32
	mo     uint32
	data   []byte
	ctrl   uint16 // bits to flip in the control field
}

func (f *frame) ulpdu() []byte {
	ctrl := uint16(0x0140) | uint16(f.op)
	if !f.more {
		ctrl |= 0x4000
	}
	if f.tagged {
		ctrl |= 0x8000
	}
	b := binary.BigEndian.AppendUint16(nil, ctrl^f.ctrl)
	b = binary.BigEndian.AppendUint32(b, f.stag)
	if f.tagged {
		b = binary.BigEndian.AppendUint64(b, f.to)
	} else {
		b = binary.BigEndian.AppendUint32(b, f.qn)
		b = binary.BigEndian.AppendUint32(b, f.msn)
		b = binary.BigEndian.AppendUint32(b, f.mo)
	}
	return append(b, f.data...)
}

// encode makes an FPDU of a ULPDU (RFC 5044 section 4.1).
func (r *rnic) encode(ulpdu []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	var crc uint32
	if r.crc {
		crc = crc32.Checksum(b, castagnoli)
	}
	return binary.LittleEndian.AppendUint32(b, crc)
}

func dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if at, ok := ctx.Deadline(); ok {
		err = c.SetDeadline(at)
	}
	return c, err
}

// mpaRequest is what a good initiator begins with: revision 2, IRD 16 and ORD 16, ib_iser's private data.
func mpaRequest(crc bool) []byte {
	b := append([]byte("MPA ID Req Frame"), 0x10, 2, 0, 8, 0, 16, 0, 16, 0x80, 0, 0, 0)
	if crc {
		b[16] |= 0x40
	}
	return b
}

// connect opens an RDMA connection.
func connect(ctx context.Context, rig *Rig, crc bool) (*rnic, error) {
	c, err := dial(ctx, rig.Addr)
	if err != nil {
		return nil, err
	}
	r := &rnic{c: c, crc: crc}
	if err := r.mpa(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return r, nil
}

func (r *rnic) mpa() error {
	if _, err := r.c.Write(mpaRequest(r.crc)); err != nil {
		return err
	}
	b := make([]byte, 20)
	if _, err := io.ReadFull(r.c, b); err != nil {
		return fmt.Errorf("the MPA reply: %w", err)
	}
	if string(b[:16]) != "MPA ID Rep Frame" || b[16]&0x20 != 0 {
		return fmt.Errorf("the MPA reply is % x", b)
	}
	r.crc = b[16]&0x40 != 0
	_, err := io.CopyN(io.Discard, r.c, int64(binary.BigEndian.Uint16(b[18:])))
	return err
}

func (r *rnic) put(frames ...frame) error {
	var b []byte
	for i := range frames {
		b = append(b, r.encode(frames[i].ulpdu())...)
	}
	_, err := r.c.Write(b)
	return err
}

// send sends a Send in one frame.
func (r *rnic) send(data []byte) error {
	r.msn[qnSend]++
	return r.put(frame{op: opSend, msn: r.msn[qnSend], data: data})
}

// readReq asks for size bytes.
func (r *rnic) readReq(size, srcSTag uint32, srcTO uint64) frame {
	r.msn[qnRead]++
	b := binary.BigEndian.AppendUint32(nil, 7) // our sink
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint32(b, size)
	b = binary.BigEndian.AppendUint32(b, srcSTag)
	b = binary.BigEndian.AppendUint64(b, srcTO)
	return frame{op: opReadReq, qn: qnRead, msn: r.msn[qnRead], data: b}
}

// hear returns the next frame.
func (r *rnic) hear() (*frame, error) {
	for {
		if len(r.rest) >= 2 {
			size := int(binary.BigEndian.Uint16(r.rest))
			if n := 2 + size + (-(2 + size) & 3) + 4; len(r.rest) >= n {
				f, err := decode(r.rest[2 : 2+size])
				r.rest = r.rest[n:]
				return f, err
			}
		}
		buf := make([]byte, 16<<10)
		n, err := r.c.Read(buf)
		r.rest = append(r.rest, buf[:n]...)
		if n == 0 && err != nil {
			return nil, err
		}
	}
}

func decode(u []byte) (*frame, error) {
	if len(u) < 14 {
		return nil, fmt.Errorf("the target sent an FPDU of %d bytes", len(u))
	}
	f := &frame{op: u[1] & 15, tagged: u[0]&0x80 != 0, more: u[0]&0x40 == 0, stag: binary.BigEndian.Uint32(u[2:])}
	if f.tagged {
		f.to, f.data = binary.BigEndian.Uint64(u[6:]), append([]byte(nil), u[14:]...)
		return f, nil
	}
	if len(u) < 18 {
		return nil, fmt.Errorf("the target sent an untagged FPDU of %d bytes", len(u))
	}
	f.qn, f.msn, f.mo = binary.BigEndian.Uint32(u[6:]), binary.BigEndian.Uint32(u[10:]), binary.BigEndian.Uint32(u[14:])
	f.data = append([]byte(nil), u[18:]...)
	return f, nil
}

// message returns the next untagged message, put together; tagged frames before it are passed to tagged.
func (r *rnic) message(tagged func(*frame)) (*frame, error) {
	for {
		f, err := r.hear()
		switch {
		case err != nil:
			return nil, err
		case f.tagged:
			if tagged != nil {
				tagged(f)
			}
			continue
		}
		r.data = append(r.data, f.data...)
		if !f.more {
			f.data, r.data = r.data, nil
			return f, nil
		}
	}
}

// gone reports whether an error says that the other side ended the connection.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// cause is a Terminate's reason, as layer, type and code.
type cause struct{ layer, typ, code byte }

func (c cause) String() string { return fmt.Sprintf("%d/%d/%02x", c.layer, c.typ, c.code) }

// silent is the cause of an end without a Terminate: the peer ended its direction, or sent a Terminate itself, so that
// there is none to be told.
var silent = cause{0xff, 0xff, 0xff}

// terminated waits for the end of the connection, which a Terminate with one of the reasons must announce.
func (r *rnic) terminated(want ...cause) error {
	defer func() { _ = r.c.Close() }()
	var got *cause
	for {
		f, err := r.message(nil)
		switch {
		case err == nil && f.op == opTerminate && len(f.data) >= 4:
			got = &cause{f.data[0] >> 4, f.data[0] & 15, f.data[1]}
			continue
		case err == nil:
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errors.New("the target neither answered nor ended the connection")
		case !gone(err):
			return err
		}
		break
	}
	if got == nil {
		got = &silent
	}
	for _, w := range want {
		if w == *got {
			return nil
		}
	}
	return fmt.Errorf("the connection ended with Terminate %v (ff/ff/ff is none); want one of %v", got, want)
}
