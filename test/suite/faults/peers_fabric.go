package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// sendRaw opens a TCP connection, says b, and waits for the target to end the connection without a word: what is no
// request has no answer (RFC 5044 section 7.1.2, RFC 7143 section 6.3). half ends our direction.
func sendRaw(ctx context.Context, rig *Rig, b []byte, half bool) error {
	c, err := dial(ctx, rig.Addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write(b); err != nil && !gone(err) {
		return err
	}
	if half {
		if err := c.(*net.TCPConn).CloseWrite(); err != nil && !gone(err) {
			return err
		}
	}
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		switch {
		case err == nil:
			return fmt.Errorf("the target answered with %x", buf[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errors.New("the target neither answered nor ended the connection")
		default:
			return nil
		}
	}
}

func patched(b []byte, at int, v ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], v)
	return b
}

// mpaPeers break RFC 5044 section 7.1.1 and RFC 6581 section 9.
var mpaPeers = []Peer{
	{"mpa: nothing but a key", func(ctx context.Context, r *Rig) error { return sendRaw(ctx, r, mpaRequest(false)[:16], true) }},
	{"mpa: half a key", func(ctx context.Context, r *Rig) error { return sendRaw(ctx, r, mpaRequest(false)[:7], true) }},
	{"mpa: a reply for a request", func(ctx context.Context, r *Rig) error {
		return sendRaw(ctx, r, patched(mpaRequest(false), 8, []byte("Rep")...), false)
	}},
	{"mpa: a key with a wrong end", func(ctx context.Context, r *Rig) error {
		return sendRaw(ctx, r, patched(mpaRequest(false), 15, 'X'), false)
	}},
	{"mpa: revision 0", func(ctx context.Context, r *Rig) error {
		return sendRaw(ctx, r, patched(mpaRequest(false), 17, 0), false)
	}},
	{"mpa: revision 3", func(ctx context.Context, r *Rig) error {
		return sendRaw(ctx, r, patched(mpaRequest(false), 17, 3), false)
	}},
	{"mpa: 64 KiB of private data", func(ctx context.Context, r *Rig) error {
		return sendRaw(ctx, r, patched(mpaRequest(false), 18, 0xff, 0xff), false)
	}},
	{"mpa: private data that never comes", func(ctx context.Context, r *Rig) error {
		return sendRaw(ctx, r, patched(mpaRequest(false), 18, 1, 0), true)
	}},
	{"mpa: enhanced without its four bytes", func(ctx context.Context, r *Rig) error {
		return sendRaw(ctx, r, patched(mpaRequest(false), 18, 0, 2)[:22], false)
	}},
	{"mpa: gone after the reply", func(ctx context.Context, r *Rig) error {
		x, err := connect(ctx, r, true)
		if err != nil {
			return err
		}
		return x.c.Close()
	}},
}

// onQP runs do on a fresh RDMA connection with CRC, and wants the target to end it for one of the reasons.
func onQP(do func(r *rnic) error, first cause, more ...cause) func(context.Context, *Rig) error {
	return func(ctx context.Context, rig *Rig) error {
		r, err := connect(ctx, rig, true)
		if err != nil {
			return err
		}
		if !r.crc {
			return errors.Join(errors.New("the target refuses the CRC"), r.c.Close())
		}
		if err := do(r); err != nil && !gone(err) {
			return errors.Join(err, r.c.Close())
		}
		return r.terminated(append(more, first)...)
	}
}

// bytesOf sends bytes as they are.
func bytesOf(make func(r *rnic) []byte) func(*rnic) error {
	return func(r *rnic) error {
		_, err := r.c.Write(make(r))
		return err
	}
}

// one sends a frame.
func one(f frame) func(*rnic) error {
	return func(r *rnic) error { return r.put(f) }
}

// The codes of RFC 5044 section 8, RFC 5041 section 7.2 and RFC 5040 section 4.8.
var (
	llpCRC  = cause{2, 0, 2}
	llpFPDU = cause{2, 0, 3}

	ddpSTag      = cause{1, 1, 0}
	ddpTaggedVer = cause{1, 1, 4}
	ddpQN        = cause{1, 2, 1}
	ddpNoBuffer  = cause{1, 2, 2}
	ddpMSN       = cause{1, 2, 3}
	ddpMO        = cause{1, 2, 4}
	ddpTooLong   = cause{1, 2, 5}
	ddpVersion   = cause{1, 2, 6}

	rdmapSTag    = cause{0, 1, 0}
	rdmapVersion = cause{0, 2, 5}
	rdmapOpcode  = cause{0, 2, 6}
	rdmapStream  = cause{0, 2, 7}
	rdmapInv     = cause{0, 2, 9}
	rdmapInv1    = cause{0, 1, 9}
	rdmapOther   = cause{0, 2, 0xff}
)

// fpduPeers break framing: RFC 5044 section 4.
var fpduPeers = []Peer{
	{"fpdu: length 0", onQP(bytesOf(func(*rnic) []byte { return make([]byte, 64) }), llpFPDU)},
	{"fpdu: shorter than a header", onQP(bytesOf(func(r *rnic) []byte { return r.encode(make([]byte, 5)) }), llpFPDU)},
	{"fpdu: an untagged header cut short", onQP(bytesOf(func(r *rnic) []byte { return r.encode((&frame{op: opSend, msn: 1}).ulpdu()[:15]) }), llpFPDU)},
	{"fpdu: the longest length and nothing more", onQP(func(r *rnic) error {
		b := r.encode((&frame{op: opSend, msn: 1, data: make([]byte, 100)}).ulpdu())
		b[0], b[1] = 0xff, 0xff
		if _, err := r.c.Write(b); err != nil {
			return err
		}
		return r.c.(*net.TCPConn).CloseWrite()
	}, silent)},
	{"fpdu: cut in the middle", onQP(func(r *rnic) error {
		b := r.encode((&frame{op: opSend, msn: 1, data: make([]byte, 1000)}).ulpdu())
		if _, err := r.c.Write(b[:300]); err != nil {
			return err
		}
		return r.c.(*net.TCPConn).CloseWrite()
	}, silent)},
	{"fpdu: a wrong CRC", onQP(bytesOf(func(r *rnic) []byte {
		b := r.encode((&frame{op: opSend, msn: 1, data: make([]byte, 100)}).ulpdu())
		b[len(b)-1] ^= 1
		return b
	}), llpCRC)},
	{"fpdu: a wrong bit in the payload", onQP(bytesOf(func(r *rnic) []byte {
		b := r.encode((&frame{op: opSend, msn: 1, data: make([]byte, 100)}).ulpdu())
		b[60] ^= 0x20
		return b
	}), llpCRC)},
	{"fpdu: noise", onQP(bytesOf(func(*rnic) []byte { return bytes.Repeat([]byte{0xde, 0xad, 0xbe, 0xef, 0x55}, 20_000) }), llpCRC)},
}

// rdmapPeers break RFC 5041 and RFC 5040, and guess.
var rdmapPeers = []Peer{
	{"ddp: version 2, untagged", onQP(one(frame{op: opSend, msn: 1, data: make([]byte, 8), ctrl: 0x0300}), ddpVersion)},
	{"ddp: version 2, tagged", onQP(one(frame{op: opWrite, tagged: true, stag: 1, data: make([]byte, 8), ctrl: 0x0300}), ddpTaggedVer)},
	{"ddp: queue 7", onQP(one(frame{op: opSend, qn: 7, msn: 1, data: make([]byte, 8)}), ddpQN)},
	{"ddp: MSN 5 first", onQP(one(frame{op: opSend, msn: 5, data: make([]byte, 8)}), ddpMSN, ddpNoBuffer)},
	{"ddp: MSN 0", onQP(one(frame{op: opSend, msn: 0, data: make([]byte, 8)}), ddpMSN, ddpNoBuffer)},
	{"ddp: begins at offset 8", onQP(one(frame{op: opSend, msn: 1, mo: 8, data: make([]byte, 8)}), ddpMO)},
	{"ddp: a segment that leaves a hole", onQP(func(r *rnic) error {
		return r.put(frame{op: opSend, msn: 1, more: true, data: make([]byte, 8)}, frame{op: opSend, msn: 1, mo: 16, data: make([]byte, 8)})
	}, ddpMO)},
	{"ddp: longer than the receive", onQP(one(frame{op: opSend, msn: 1, data: make([]byte, 40_000)}), ddpTooLong)},
	{"ddp: without end", onQP(func(r *rnic) error {
		for mo := uint32(0); mo < 1<<20; mo += 8000 {
			if err := r.put(frame{op: opSend, msn: 1, mo: mo, more: true, data: make([]byte, 8000)}); err != nil {
				return err
			}
		}
		return nil
	}, ddpTooLong)},
	{"ddp: more messages than receives", onQP(func(r *rnic) error {
		var frames []frame
		for i := range uint32(300) {
			frames = append(frames, frame{op: opSend, msn: i + 1, more: i == 299})
		}
		return r.put(frames...)
	}, ddpNoBuffer)},
	{"rdmap: version 0", onQP(one(frame{op: opSend, msn: 1, data: make([]byte, 8), ctrl: 0x0040}), rdmapVersion)},
	{"rdmap: opcode 9", onQP(one(frame{op: 9, msn: 1, data: make([]byte, 8)}), rdmapOpcode)},
	{"rdmap: a Write that is untagged", onQP(one(frame{op: opWrite, msn: 1, data: make([]byte, 8)}), rdmapOpcode)},
	{"rdmap: a Send that is tagged", onQP(one(frame{op: opSend, tagged: true, stag: 1, data: make([]byte, 8)}), rdmapOpcode)},
	{"rdmap: a Write to STag 0", onQP(one(frame{op: opWrite, tagged: true, data: make([]byte, 8)}), ddpSTag)},
	{"rdmap: a Write to a guessed STag", onQP(one(frame{op: opWrite, tagged: true, stag: 0x12345678, to: 0x1000, data: make([]byte, 8)}), ddpSTag)},
	{"rdmap: a Write at the end of all offsets", onQP(one(frame{op: opWrite, tagged: true, stag: 0x12345678, to: 1<<64 - 4, data: make([]byte, 8)}), ddpSTag, cause{1, 1, 3}, cause{1, 1, 1})},
	{"rdmap: a Read of a guessed STag", onQP(func(r *rnic) error { return r.put(r.readReq(4096, 0x12345678, 0)) }, rdmapSTag)},
	{"rdmap: a Read of 4 GiB", onQP(func(r *rnic) error { return r.put(r.readReq(1<<32-1, 1, 1<<63)) }, rdmapSTag)},
	{"rdmap: a Read Request cut short", onQP(func(r *rnic) error {
		f := r.readReq(4096, 1, 0)
		f.data = f.data[:20]
		return r.put(f)
	}, ddpTooLong)},
	{"rdmap: a Read Request too long", onQP(func(r *rnic) error {
		f := r.readReq(4096, 1, 0)
		f.data = append(f.data, make([]byte, 100)...)
		return r.put(f)
	}, ddpTooLong)},
	{"rdmap: Reads beyond the depth", onQP(func(r *rnic) error {
		var frames []frame
		for range 500 {
			frames = append(frames, r.readReq(0, 1, 0))
		}
		frames = append(frames, frame{op: 9, msn: 1}) // an end of its own, should all be answered
		return r.put(frames...)
	}, ddpNoBuffer, ddpMSN, rdmapStream, rdmapOther, rdmapOpcode)},
	{"rdmap: a Read Response that nobody asked for", onQP(one(frame{op: opReadResp, tagged: true, stag: 7, data: make([]byte, 64)}), rdmapOpcode)},
	{"rdmap: an invalidate of a guessed STag", onQP(one(frame{op: opSendInv, msn: 1, stag: 0x12345678, data: make([]byte, 76)}), rdmapInv, rdmapInv1, rdmapSTag)},
	{"rdmap: a Terminate, and more", onQP(func(r *rnic) error {
		return r.put(frame{op: opTerminate, qn: qnTerm, msn: 1, data: []byte{0, 0, 0, 0}}, frame{op: opSend, msn: 1, data: make([]byte, 76)})
	}, silent)},
	{"rdmap: a Terminate that is empty", onQP(one(frame{op: opTerminate, qn: qnTerm, msn: 1}), silent)},
	{"rdmap: two messages woven into one another", onQP(func(r *rnic) error {
		return r.put(frame{op: opSend, msn: 1, more: true, data: make([]byte, 8)}, frame{op: opSend, msn: 2, data: make([]byte, 8)})
	}, ddpMSN)},
}

// onISER runs do in the full-feature phase of an iSER session, and wants the target to end the connection.
func onISER(do func(s *session, rig *Rig) error) func(context.Context, *Rig) error {
	return func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, true)
		if err != nil {
			return err
		}
		if err := do(s, rig); err != nil && !gone(err) {
			s.close()
			return err
		}
		return s.ended()
	}
}

// advertise is an iSER header that names memory of ours which is not there.
func advertise(write, read bool) iscsi.ISERHeader {
	return iscsi.ISERHeader{WriteValid: write, WriteSTag: 0x1111, WriteBase: 0x10000, ReadValid: read, ReadSTag: 0x2222, ReadBase: 0x20000}
}

// control is an iSER header that names no memory.
func control() []byte {
	h := iscsi.ISERHeader{}
	return h.Append(nil)
}

// writeCommand sends a WRITE whose data the target must fetch, and returns its RDMA Read Request.
func (s *session) writeCommand(rig *Rig, blocks uint32) (*iscsi.SCSICommand, []byte, error) {
	q := s.command(rig, cdb(cdbWrite16, 0, blocks))
	q.Write, q.EDTL = true, blocks*sector
	if err := s.put(s.pdu(q), nil, advertise(true, false)); err != nil {
		return nil, nil, err
	}
	for {
		p, err := s.hear()
		if err != nil {
			return nil, nil, err
		}
		if p.bhs == nil {
			return q, p.data, nil
		}
	}
}

// iserPeers break RFC 7145, most of them after a good login.
var iserPeers = []Peer{
	{"iser: a first Send of 10 bytes", onQP(func(r *rnic) error { return r.send(make([]byte, 10)) }, rdmapOther)},
	{"iser: an empty Send", onQP(func(r *rnic) error { return r.send(nil) }, rdmapOther)},
	// No exchange of Hellos was agreed on; LIO logs one and goes on.
	{"iser: Hello", inSession(true, ignores, func(s *session, _ *Rig) error {
		return s.r.send(append([]byte{0x20, 0x10, 0, 0}, make([]byte, 24)...))
	})}, {"iser: a header of no type", onISER(func(s *session, rig *Rig) error {
		b := control()
		b[0] = 0xf0
		return s.r.send(append(b, s.pdu(s.command(rig, cdb(0, 0, 0)))...))
	})},
	{"iser: a short Send", onISER(func(s *session, _ *Rig) error { return s.r.send([]byte{0x10, 0, 0, 0}) })},
	{"iser: a data segment that is not there", onISER(func(s *session, rig *Rig) error {
		q := s.command(rig, cdb(cdbWrite16, 0, 8))
		q.Write, q.EDTL, q.DataLen = true, 4096, 4096
		return s.r.send(append(control(), s.pdu(q)...))
	})},
	{"iser: a data segment of 16 MiB that is not there", onISER(func(s *session, rig *Rig) error {
		q := s.command(rig, cdb(cdbWrite16, 0, 8))
		q.Write, q.EDTL, q.DataLen = true, 4096, 1<<24-1
		return s.r.send(append(control(), s.pdu(q)...))
	})},
	{"iser: additional headers that are not there", onISER(func(s *session, rig *Rig) error {
		q := s.command(rig, cdb(0, 0, 0))
		q.AHSLen = 255 * 4
		return s.r.send(append(control(), s.pdu(q)...))
	})},
	{"iser: Data-Out that nobody asked for", inSession(true, ignores, func(s *session, rig *Rig) error {
		d := &iscsi.DataOut{Final: true, LUN: uint64(rig.LUN) << 48, ITT: 77, TTT: iscsi.Reserved, DataLen: 512, Offset: 1 << 31}
		return s.put(s.pdu(d), make([]byte, 512), iscsi.ISERHeader{})
	})},
	{"iser: more commands than the window", onISER(func(s *session, rig *Rig) error {
		for range 2000 {
			q := s.command(rig, cdb(cdbRead16, 0, 8))
			q.Read, q.EDTL = true, 4096
			if err := s.put(s.pdu(q), nil, advertise(false, true)); err != nil {
				return err
			}
		}
		return nil
	})},
	{"iser: a Read Response to another STag", onISER(func(s *session, rig *Rig) error {
		_, _, err := s.writeCommand(rig, 8)
		if err != nil {
			return err
		}
		return s.r.put(frame{op: opReadResp, tagged: true, stag: 0x0badcafe, data: make([]byte, 4096)})
	})},
	{"iser: a Read Response that is too long", onISER(func(s *session, rig *Rig) error {
		_, req, err := s.writeCommand(rig, 8)
		if err != nil {
			return err
		}
		stag, to := be32(req), be64(req[4:])
		return s.r.put(frame{op: opReadResp, tagged: true, stag: stag, to: to, more: true, data: make([]byte, 4096)},
			frame{op: opReadResp, tagged: true, stag: stag, to: to + 4096, data: make([]byte, 4096)})
	})},
	{"iser: a Read Response that is too short", onISER(func(s *session, rig *Rig) error {
		_, req, err := s.writeCommand(rig, 8)
		if err != nil {
			return err
		}
		return s.r.put(frame{op: opReadResp, tagged: true, stag: be32(req), to: be64(req[4:]), data: make([]byte, 512)})
	})},
	{"iser: a Write into the sink of a Read", onISER(func(s *session, rig *Rig) error {
		_, req, err := s.writeCommand(rig, 8)
		if err != nil {
			return err
		}
		return s.r.put(frame{op: opWrite, tagged: true, stag: be32(req), to: be64(req[4:]), data: make([]byte, 4096)})
	})},
	{"iser: gone while the target reads", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, true)
		if err != nil {
			return err
		}
		defer s.reset()
		for range 4 {
			if _, _, err = s.writeCommand(rig, 2048); err != nil {
				return err
			}
		}
		return nil
	}},
	{"iser: gone while the target writes", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, true)
		if err != nil {
			return err
		}
		defer s.reset()
		for range 4 {
			q := s.command(rig, cdb(cdbRead16, 0, 2048))
			q.Read, q.EDTL = true, 2048*sector
			if err := s.put(s.pdu(q), nil, advertise(false, true)); err != nil {
				return err
			}
		}
		_, err = s.r.hear()
		return err
	}},
	{"iser: 4 GiB expected of one block", wants(true, 0x88, func(q *iscsi.SCSICommand) {
		q.Read, q.EDTL, q.CDB = true, 1<<32-1, cdb(cdbRead16, 0, 1)
	}, func(s *status) bool { return s.status == 0 && s.under && s.residual == 1<<32-1-512 && s.dataIn == 512 })},
	{"iser: a block beyond the end", wants(true, 0x88, func(q *iscsi.SCSICommand) {
		q.Read, q.EDTL, q.CDB = true, 512, cdb(cdbRead16, 1<<40, 1)
	}, func(s *status) bool { return s.status == 2 && s.key == 5 && s.asc == 0x21 && s.dataIn == 0 })},
	{"iser: a write beyond the end", wants(true, 0x8a, func(q *iscsi.SCSICommand) {
		q.Write, q.EDTL, q.CDB = true, 512, cdb(cdbWrite16, 1<<63, 1)
	}, func(s *status) bool { return s.status == 2 && s.key == 5 && s.asc == 0x21 })},
	{"iser: an operation code that is none", wants(true, 0xff, nil, func(s *status) bool { return s.status == 2 && s.key == 5 && s.asc == 0x20 })},
	{"iser: a PDU opcode that is none", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, true)
		if err != nil {
			return err
		}
		defer s.close()
		return s.unknownPDU(rig)
	}},
}

func be32(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}
func be64(b []byte) uint64 { return uint64(be32(b))<<32 | uint64(be32(b[4:])) }

// wants sends one command on a good session, and compares its end. The session lives on and can log out.
func wants(iser bool, op byte, shape func(q *iscsi.SCSICommand), good func(*status) bool) func(context.Context, *Rig) error {
	return func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, iser)
		if err != nil {
			return err
		}
		defer s.close()
		q := s.command(rig, cdb(op, 0, 0))
		if shape != nil {
			shape(q)
		}
		h := iscsi.ISERHeader{}
		if iser {
			h = advertise(q.Write, q.Read)
		}
		st, err := s.do(rig, q, nil, h)
		if err != nil {
			return err
		}
		if !good(st) {
			return fmt.Errorf("the command ended with %v", st)
		}
		return s.still(rig)
	}
}

// still checks that the session goes on.
func (s *session) still(rig *Rig) error {
	st, err := s.do(rig, s.command(rig, cdb(0, 0, 0)), nil, iscsi.ISERHeader{})
	if err != nil {
		return fmt.Errorf("the session should have gone on: %w", err)
	}
	if st.status != 0 {
		return fmt.Errorf("the session should have gone on: %v", st)
	}
	return nil
}

// unknownPDU sends a PDU of a reserved opcode: RFC 7143 section 11.17.1 has a Reject for it, and the session goes on.
func (s *session) unknownPDU(rig *Rig) error {
	b := s.pdu(s.command(rig, cdb(0, 0, 0)))
	b[0] = 0x1b
	s.cmdSN-- // whether it counts is the target's: it is sent as immediate
	b[0] |= 0x40
	if err := s.put(b, nil, iscsi.ISERHeader{}); err != nil {
		return err
	}
	p, err := s.hear()
	if err != nil {
		return err
	}
	if p.bhs == nil || p.bhs.Opcode() != iscsi.OpReject {
		return fmt.Errorf("a PDU of a reserved opcode was answered by %v", p.bhs)
	}
	return s.still(rig)
}
