package captures

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 60 * time.Second
	recvSize = 76 + 8192 // iSER's login buffers, the largest of both captures
	slabSize = 16 << 20
)

// stage is our half of a connection, and the socket of the one who plays Linux.
type stage struct {
	*testing.T
	ctx  context.Context
	dev  *iwarp.Device
	qp   transport.QP
	slab *mem.Slab
	used int
	raw  net.Conn

	wcs      chan transport.WC
	pending  []transport.WC
	tagged   chan *message // what our half sends
	untagged chan *message
	recvs    []mem.Span
	nextRecv int
}

func newStage(t *testing.T, recvs int) *stage {
	t.Helper()
	slab, err := mem.NewSlab(slabSize)
	if err != nil {
		t.Fatal(err)
	}
	dev := iwarp.New(iwarp.Options{CRC: iwarp.CRCPeer, FPDU: iwarp.FPDUSegment, Nudge: -1})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	st := &stage{T: t, ctx: ctx, dev: dev, slab: slab, wcs: make(chan transport.WC, 4096),
		tagged: make(chan *message, 1024), untagged: make(chan *message, 1024)}
	t.Cleanup(func() {
		cancel()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
	})
	st.check(dev.Register(slab))
	st.qp, err = dev.NewQP(transport.QPOptions{Sends: 64, Recvs: recvs})
	st.check(err)
	for i := range recvs {
		buf := st.span(recvSize)
		st.recvs = append(st.recvs, buf)
		n, err := st.qp.PostRecv([]transport.Recv{{Token: uint64(i), Buf: buf}})
		if n != 1 || err != nil {
			t.Fatalf("post a receive: %v", err)
		}
	}
	return st
}

func (st *stage) check(err error) {
	st.Helper()
	if err != nil {
		st.Fatal(err)
	}
}

func (st *stage) span(n int) mem.Span {
	st.Helper()
	if st.used+n > slabSize {
		st.Fatal("the replay needs a larger slab")
	}
	s := mem.Span{Slab: st.slab, Off: st.used, Len: n}
	st.used += n
	return s
}

// run starts the queue pair's owner and the reader of what it sends.
func (st *stage) run(fromClient bool) {
	owner, reader := make(chan struct{}), make(chan struct{})
	st.Cleanup(func() {
		st.check(st.qp.Close(transport.Reason{}))
		st.check(st.raw.Close())
		<-owner
		<-reader
	})
	go func() {
		defer close(owner)
		var wc [32]transport.WC
		for {
			n, err := st.qp.Poll(wc[:])
			for _, c := range wc[:n] {
				st.wcs <- c
			}
			if err != nil || n == 0 && st.qp.Wait(st.ctx) != nil {
				return
			}
		}
	}()
	go func() {
		defer close(reader)
		var j join
		var rest []byte
		buf := make([]byte, 64<<10)
		for {
			n, err := st.raw.Read(buf)
			rest = append(rest, buf[:n]...)
			for {
				f, k, perr := parseFPDU(rest)
				if perr != nil {
					st.Errorf("our half sent what is no FPDU: %v", perr)
					return
				}
				if k == 0 {
					break
				}
				f.raw, f.payload = nil, bytes.Clone(f.payload)
				f.fromClient = fromClient
				if f.crc != 0 {
					st.Errorf("our half sent CRC %08x on a connection without (%+v)", f.crc, f)
				}
				rest = rest[k:]
				m, jerr := j.add(f)
				switch {
				case jerr != nil:
					st.Error(jerr)
					return
				case m != nil && m.tagged:
					st.tagged <- m
				case m != nil:
					st.untagged <- m
				}
			}
			if err != nil {
				return
			}
		}
	}()
}

func (st *stage) want(op transport.Op, token uint64) transport.WC {
	st.Helper()
	for i, c := range st.pending {
		if c.Op == op && c.Token == token {
			st.pending = append(st.pending[:i:i], st.pending[i+1:]...)
			return c
		}
	}
	for {
		select {
		case c := <-st.wcs:
			if c.Err != nil {
				st.Fatalf("operation %d, token %d: %v", c.Op, c.Token, c.Err)
			}
			if c.Op == op && c.Token == token {
				return c
			}
			st.pending = append(st.pending, c)
		case <-st.ctx.Done():
			st.Fatalf("operation %d, token %d never completed", op, token)
		}
	}
}

// received takes the next receive and compares it with a Send of the capture.
func (st *stage) received(m *message, inv uint32) {
	st.Helper()
	c := st.want(transport.OpRecv, uint64(st.nextRecv))
	if got := st.recvs[st.nextRecv].Bytes()[:c.Len]; !bytes.Equal(got, m.data) {
		st.Fatalf("%v arrived as %d other bytes", m, len(got))
	}
	if c.Inv != inv {
		st.Fatalf("%v arrived as one that invalidates %08x, want %08x", m, c.Inv, inv)
	}
	st.nextRecv++
}

// sent takes the next message of our half from the wire.
func (st *stage) sent(m *message) *message {
	st.Helper()
	from := st.untagged
	if m.tagged {
		from = st.tagged
	}
	select {
	case got := <-from:
		return got
	case <-st.ctx.Done():
		st.Fatalf("our half never sent %v", m)
		return nil
	}
}

// sameSend compares a message that our half sent with Linux's, field by field.
func (st *stage) sameSend(m *message) {
	st.Helper()
	got := st.sent(m)
	if got.op != m.op || got.tagged != m.tagged || got.stag != m.stag || got.to != m.to || got.qn != m.qn || got.msn != m.msn {
		st.Fatalf("our half sent %v (TO %x)\nLinux sent    %v (TO %x)", got, got.to, m, m.to)
	}
	if !bytes.Equal(got.data, m.data) {
		st.Fatalf("our half sent %v with other bytes than Linux", got)
	}
}

// post sends a Send, Send with Invalidate or Write of the capture through our half, and compares the wire.
func (st *stage) post(m *message) {
	st.Helper()
	buf := st.span(len(m.data))
	copy(buf.Bytes(), m.data)
	wr := transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: uint64(m.index), Local: []mem.Span{buf}}
	switch m.op {
	case opWrite:
		wr.Op, wr.Remote = transport.OpWrite, transport.Remote{STag: m.stag, Off: m.to}
	case opSendSEInv, opSendInv:
		wr.Op, wr.Inv = transport.OpSendInv, m.stag
	}
	if m.op == opSendSE || m.op == opSendSEInv {
		wr.Flags |= transport.Solicited
	}
	n, err := st.qp.Post([]transport.WR{wr})
	if n != 1 || err != nil {
		st.Fatalf("post %v: %v", m, err)
	}
	st.want(wr.Op, wr.Token)
	st.sameSend(m)
	st.used -= buf.Len
}

func (st *stage) write(f fpdu, change func(b []byte)) {
	st.Helper()
	b := bytes.Clone(f.raw)
	if change != nil {
		change(b)
	}
	_, err := st.raw.Write(b)
	st.check(err)
}

func readMPA(t *testing.T, c net.Conn) []byte {
	t.Helper()
	b := make([]byte, mpaHeader)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	b = append(b, make([]byte, binary.BigEndian.Uint16(b[18:]))...)
	if _, err := io.ReadFull(c, b[mpaHeader:]); err != nil {
		t.Fatal(err)
	}
	return b
}

// depths are IRD and ORD of an enhanced MPA frame (RFC 6581 section 9.1).
func depths(mpa []byte) (ird, ord int) {
	return int(binary.BigEndian.Uint16(mpa[20:]) & 0x3fff), int(binary.BigEndian.Uint16(mpa[22:]) & 0x3fff)
}

// sameMPA compares MPA frames, our first. We set siw's private bit 0x08, which says that FPDUs may be larger than a
// segment; siw itself sets it only where it was built to.
func sameMPA(t *testing.T, ours, linux []byte) {
	t.Helper()
	ours = bytes.Clone(ours)
	ours[16] &^= 0x08
	if !bytes.Equal(ours, linux) {
		t.Fatalf("our MPA frame   % x\nthat of Linux   % x", ours[16:], linux[16:])
	}
}

var captured = []string{"iser-siw-lio.pcap", "nfs3-siw-knfsd.pcap"}

// Our half answers the kernel's initiator, and says what LIO and knfsd said.
func TestWeInThePlaceOfTheServer(t *testing.T) {
	for _, name := range captured {
		t.Run(name, func(t *testing.T) {
			s := load(t, name)
			all, _ := s.messages(t)
			sends := 0
			for _, m := range all {
				if m.fromClient && !m.tagged {
					sends++
				}
			}
			st := newStage(t, sends)
			l, err := st.dev.Listen(st.ctx, "127.0.0.1:0")
			st.check(err)
			st.raw, err = net.Dial("tcp", l.Addr().String())
			st.check(err)
			_, err = st.raw.Write(s.request)
			st.check(err)
			r, err := l.Accept(st.ctx)
			st.check(err)
			ird, ord := depths(s.request)
			if p := r.Peer(); !p.Named || p.ReadsIn != ird || p.ReadsOut != ord || !bytes.Equal(p.Private, s.request[24:]) {
				t.Fatalf("the request of Linux was read as %+v", p)
			}
			ird, ord = depths(s.reply)
			st.check(r.Accept(st.ctx, st.qp, transport.ConnParams{Private: s.reply[24:], ReadsIn: ird, ReadsOut: ord}))
			sameMPA(t, readMPA(t, st.raw), s.reply)
			st.check(l.Close())
			st.run(false)
			st.serve(s, all)
		})
	}
}

// read is a Read that our half posted in the place of Linux.
type read struct {
	captured readReq
	ours     readReq
	sink     mem.Span
	token    uint64
}

func (st *stage) serve(s *session, all []*message) {
	st.Helper()
	var reads []read // outstanding, oldest first
	for _, f := range s.fpdus {
		var m *message
		if len(all) > 0 && all[0].frames[len(all[0].frames)-1].index == f.index {
			m, all = all[0], all[1:]
		}
		if f.fromClient {
			st.write(f, func(b []byte) {
				if f.op != opReadResp {
					return
				}
				r := reads[0]
				binary.BigEndian.PutUint32(b[4:], r.ours.sinkSTag)
				binary.BigEndian.PutUint64(b[8:], r.ours.sinkTO+f.to-r.captured.sinkTO)
			})
		}
		switch {
		case m == nil:
		case m.fromClient && m.op == opReadResp:
			r := reads[0]
			reads = reads[1:]
			st.want(transport.OpRead, r.token)
			if !bytes.Equal(r.sink.Bytes(), m.data) {
				st.Fatalf("%v was placed as something else", m)
			}
		case m.fromClient:
			st.received(m, 0)
		case m.op == opReadReq:
			want := parseReadReq(m.data)
			sink := st.span(int(want.size))
			n, err := st.qp.Post([]transport.WR{{Op: transport.OpRead, Flags: transport.Signaled, Token: uint64(m.index), Local: []mem.Span{sink},
				Remote: transport.Remote{STag: want.srcSTag, Off: want.srcTO}}})
			if n != 1 || err != nil {
				st.Fatalf("post %v: %v", m, err)
			}
			got := st.sent(m)
			if got.op != opReadReq || got.qn != m.qn || got.msn != m.msn || len(got.data) != len(m.data) {
				st.Fatalf("our half sent %v\nLinux sent    %v", got, m)
			}
			ours := parseReadReq(got.data)
			if ours.size != want.size || ours.srcSTag != want.srcSTag || ours.srcTO != want.srcTO || ours.sinkSTag == 0 {
				st.Fatalf("our half asked for %+v\nLinux asked for   %+v", ours, want)
			}
			reads = append(reads, read{captured: want, ours: ours, sink: sink, token: uint64(m.index)})
		default:
			st.post(m)
		}
	}
}

// Our half connects to what LIO and knfsd said, and says what the kernel's client said.
func TestWeInThePlaceOfTheClient(t *testing.T) {
	for _, name := range captured {
		t.Run(name, func(t *testing.T) {
			s := load(t, name)
			all, lives := s.messages(t)
			sends := 0
			for _, m := range all {
				if !m.fromClient && !m.tagged && m.op != opReadReq {
					sends++
				}
			}
			st := newStage(t, sends)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			st.check(err)
			ird, ord := depths(s.request)
			dialled := make(chan error, 1)
			var peer transport.Peer
			go func() {
				var err error
				peer, err = st.dev.Dial(st.ctx, l.Addr().String(), st.qp, transport.ConnParams{Private: s.request[24:], ReadsIn: ird, ReadsOut: ord})
				dialled <- err
			}()
			st.raw, err = l.Accept()
			st.check(err)
			st.check(l.Close())
			sameMPA(t, readMPA(t, st.raw), s.request)
			_, err = st.raw.Write(s.reply)
			st.check(err)
			st.check(<-dialled)
			ird, ord = depths(s.reply)
			if !peer.Named || peer.ReadsIn != ird || peer.ReadsOut != ord || !bytes.Equal(peer.Private, s.reply[24:]) {
				t.Fatalf("the reply of Linux was read as %+v", peer)
			}
			st.run(true)
			st.connect(s, all, lives)
		})
	}
}

// exposed is the window that stands for a life of the client's memory.
type exposed struct {
	w   transport.Window
	at  transport.Remote
	mem mem.Span
}

func (st *stage) expose(l *life) *exposed {
	st.Helper()
	w, err := st.qp.NewWindow()
	st.check(err)
	x := &exposed{w: w, mem: st.span(int(l.end - l.low))}
	copy(x.mem.Bytes(), l.before)
	n, err := st.qp.Post([]transport.WR{{Op: transport.OpBind, Flags: transport.Signaled, Token: 1 << 40, Window: w,
		Access: transport.RemoteRead | transport.RemoteWrite, Local: []mem.Span{x.mem}}})
	if n != 1 || err != nil {
		st.Fatalf("bind: %v", err)
	}
	st.want(transport.OpBind, 1<<40)
	x.at = w.Remote()
	return x
}

func (st *stage) connect(s *session, all []*message, lives []*life) {
	st.Helper()
	live := make(map[*life]*exposed)
	for _, f := range s.fpdus {
		var m *message
		if len(all) > 0 && all[0].frames[len(all[0].frames)-1].index == f.index {
			m, all = all[0], all[1:]
		}
		if !f.fromClient {
			l, known := s.lives[f.index]
			if !known {
				return // a message whose end the capture does not have
			}
			var x *exposed
			if l != nil {
				if live[l] == nil {
					live[l] = st.expose(l)
				}
				x = live[l]
			}
			st.write(f, func(b []byte) {
				switch {
				case x == nil:
				case f.op == opWrite:
					binary.BigEndian.PutUint32(b[4:], x.at.STag)
					binary.BigEndian.PutUint64(b[8:], x.at.Off+f.to-l.low)
				case f.op == opReadReq:
					r := parseReadReq(f.payload)
					binary.BigEndian.PutUint32(b[36:], x.at.STag)
					binary.BigEndian.PutUint64(b[40:], x.at.Off+r.srcTO-l.low)
				default:
					binary.BigEndian.PutUint32(b[4:], x.at.STag)
				}
			})
		}
		switch {
		case m == nil:
		case m.fromClient && m.op == opReadResp:
			st.sameSend(m)
		case m.fromClient:
			st.post(m)
		case m.op == opSend || m.op == opSendSE:
			st.received(m, 0)
		case m.op == opSendInv || m.op == opSendSEInv:
			x := live[m.life]
			st.received(m, x.at.STag)
			if x.w.Valid() {
				st.Fatalf("%v left its window alive", m)
			}
		}
	}
	for _, l := range lives {
		x := live[l]
		if x == nil {
			st.Fatalf("STag %08x was never used", l.stag)
		}
		for i, is := range l.new {
			if is && x.mem.Bytes()[i] != l.after[i] {
				st.Fatalf("byte %d of the memory that was STag %08x is not what the server wrote", i, l.stag)
			}
		}
	}
}
