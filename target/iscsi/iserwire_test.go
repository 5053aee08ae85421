package iscsi

import (
	"context"
	"errors"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// iserWire is a raw iSER initiator: receives as small as Linux posts them, Sends and windows as told.
type iserWire struct {
	qp    transport.QP
	pool  *mem.Pool
	bufs  map[uint64]*mem.Buf
	next  uint64
	in    []pdu
	err   error
	size  int // of the receives posted from now on
	reply []byte
	// reader is closed when the goroutine that owns the queue pair has ended; nil while the test itself owns it.
	reader chan struct{}
}

const (
	wireRecv = 1 << 32
	wireSend = 2 << 32
	wireBind = 3 << 32
)

func (f *fixture) dialISER(private []byte) *peer {
	f.t.Helper()
	return f.dialDevice(f.far, f.farM, f.rdma, private)
}

func (f *fixture) dialDevice(d transport.Device, pool *mem.Pool, addr string, private []byte) *peer {
	f.t.Helper()
	qp, err := d.NewQP(transport.QPOptions{Sends: 256, Recvs: 256})
	must(f.t, err)
	w := &iserWire{qp: qp, pool: pool, bufs: map[uint64]*mem.Buf{}, size: loginISER}
	w.post(4)
	must(f.t, w.err)
	peer, err := d.Dial(context.Background(), addr, qp, transport.ConnParams{Private: private, ReadsIn: 16, ReadsOut: 1})
	must(f.t, err)
	w.reply = peer.Private
	p := newPeer(f.t, w)
	f.t.Cleanup(w.close)
	return p
}

func (w *iserWire) get(n int) (*mem.Buf, uint64) {
	b, err := w.pool.Get(n)
	if err != nil {
		panic(err)
	}
	w.next++
	return b, w.next
}

func (w *iserWire) post(n int) {
	for range n {
		b, i := w.get(w.size)
		w.bufs[wireRecv|i] = b
		if _, err := w.qp.PostRecv([]transport.Recv{{Token: wireRecv | i, Buf: b.Span()}}); err != nil {
			w.err = err
			return
		}
	}
}

// full posts receives of the size that Linux has after login: headers and 128 bytes.
func (w *iserWire) full(n int) {
	w.size = iscsi.ISERHeaderLen + iscsi.BHSLen + iscsi.SafeISERData
	w.post(n)
}

func (w *iserWire) send(h *iscsi.ISERHeader, b iscsi.BHS, ahs, data []byte) error {
	if h == nil {
		h = &iscsi.ISERHeader{}
	}
	m := h.Append(nil)
	m = append(append(append(m, b...), ahs...), data...)
	return w.raw(m)
}

func (w *iserWire) raw(m []byte) error {
	buf, i := w.get(len(m))
	copy(buf.Bytes(), m)
	w.bufs[wireSend|i] = buf
	_, err := w.qp.Post([]transport.WR{{Op: transport.OpSend, Flags: transport.Signaled, Token: wireSend | i, Local: []mem.Span{buf.Span()}}})
	return err
}

func (w *iserWire) poll() bool {
	var wc [16]transport.WC
	n, err := w.qp.Poll(wc[:])
	for _, c := range wc[:n] {
		b := w.bufs[c.Token]
		delete(w.bufs, c.Token)
		if c.Token&wireRecv != 0 && c.Token&wireSend == 0 {
			if c.Err == nil {
				m := append([]byte(nil), b.Bytes()[:c.Len]...)
				p := pdu{inv: c.Inv}
				if len(m) >= iscsi.ISERHeaderLen+iscsi.BHSLen {
					p.b = m[iscsi.ISERHeaderLen : iscsi.ISERHeaderLen+iscsi.BHSLen]
					p.data = m[iscsi.ISERHeaderLen+iscsi.BHSLen:]
				}
				w.in = append(w.in, p)
				w.post(1)
			}
		}
		if b != nil {
			b.Release()
		}
	}
	if err != nil {
		w.err = err
	}
	return err == nil
}

func (w *iserWire) recv() (pdu, error) {
	for len(w.in) == 0 {
		if w.err != nil && !w.poll() {
			return pdu{}, w.err
		}
		ok := w.poll()
		if len(w.in) > 0 {
			break
		}
		if !ok {
			return pdu{}, w.err
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := w.qp.Wait(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return pdu{}, err
		}
	}
	p := w.in[0]
	w.in = w.in[1:]
	return p, nil
}

func (w *iserWire) close() {
	_ = w.qp.Close(transport.Reason{})
	if w.reader != nil {
		<-w.reader
	}
	for {
		var wc [16]transport.WC
		n, err := w.qp.Poll(wc[:])
		for _, c := range wc[:n] {
			if b := w.bufs[c.Token]; b != nil {
				b.Release()
				delete(w.bufs, c.Token)
			}
		}
		if err != nil {
			return
		}
		if n == 0 {
			_ = w.qp.Wait(context.Background())
		}
	}
}

// expose makes n bytes remotely accessible and returns them.
func (p *peer) expose(n int, a transport.Access) (*mem.Buf, transport.Remote, transport.Window) {
	p.t.Helper()
	w := p.w.(*iserWire)
	win, err := w.qp.NewWindow()
	must(p.t, err)
	buf, err := w.pool.Get(n)
	must(p.t, err)
	p.t.Cleanup(buf.Release)
	_, err = w.qp.Post([]transport.WR{{Op: transport.OpBind, Token: wireBind, Window: win, Access: a, Local: []mem.Span{buf.Span()}}})
	must(p.t, err)
	return buf, win.Remote(), win
}

func (p *peer) loginISER(kv ...string) []byte {
	p.t.Helper()
	w := p.w.(*iserWire)
	w.full(64)
	return p.login(append([]string{"InitialR2T=No", "ImmediateData=Yes", "InitiatorRecvDataSegmentLength=262144", "TargetRecvDataSegmentLength=8192",
		"RDMAExtensions=Yes"}, kv...)...)
}

// readISER reads by RDMA Write and checks the invalidation.
func (p *peer) readISER(lba, blocks int, inv bool) []byte {
	p.t.Helper()
	buf, rem, win := p.expose(blocks*512, transport.RemoteWrite)
	c := p.command(read10(lba, blocks))
	c.Read, c.EDTL = true, uint32(blocks*512)
	p.sendISER(&iscsi.ISERHeader{ReadValid: true, ReadSTag: rem.STag, ReadBase: rem.Off}, c, nil, nil)
	r := p.want(iscsi.OpSCSIResponse)
	if r.b[3] != 0 || r.b.ITT() != c.ITT {
		p.t.Fatalf("read: % x %x", []byte(r.b), r.data)
	}
	p.checkInv(r, rem, win, inv)
	return append([]byte(nil), buf.Bytes()...)
}

func (p *peer) checkInv(r pdu, rem transport.Remote, win transport.Window, inv bool) {
	p.t.Helper()
	if inv && (r.inv != rem.STag || win.Valid()) {
		p.t.Fatalf("the response invalidated %08x (window valid: %v), expected %08x", r.inv, win.Valid(), rem.STag)
	}
	if !inv && r.inv != 0 {
		p.t.Fatalf("the response invalidated %08x, expected none", r.inv)
	}
	if !inv {
		_, err := p.w.(*iserWire).qp.Post([]transport.WR{{Op: transport.OpInvalidate, Token: wireBind, Window: win}})
		must(p.t, err)
	}
}

// writeISER writes with imm immediate bytes as Linux does: the base counts them.
func (p *peer) writeISER(lba int, data []byte, imm int, wholeBase, inv bool) pdu {
	p.t.Helper()
	c := p.command(write10(lba, len(data)/512))
	c.Write, c.EDTL = true, uint32(len(data))
	if imm == len(data) {
		// Linux sets WSV with nothing behind it here.
		p.sendISER(&iscsi.ISERHeader{WriteValid: true}, c, nil, data)
		r := p.want(iscsi.OpSCSIResponse)
		if r.inv != 0 {
			p.t.Fatalf("invalidation of %08x for a command without an STag", r.inv)
		}
		return r
	}
	buf, rem, win := p.expose(len(data), transport.RemoteRead)
	copy(buf.Bytes(), data)
	h := &iscsi.ISERHeader{WriteValid: true, WriteSTag: rem.STag, WriteBase: rem.Off}
	if !wholeBase {
		h.WriteBase += uint64(imm)
	}
	p.sendISER(h, c, nil, data[:imm])
	r := p.want(iscsi.OpSCSIResponse)
	p.checkInv(r, rem, win, inv)
	return r
}

func (p *peer) wire() *iserWire { return p.w.(*iserWire) }
