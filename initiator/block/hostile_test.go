package block

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/logging"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// rdmaFake is the other end of one iSER connection, driven by a test step by step.
type rdmaFake struct {
	t    *testing.T
	qp   transport.QP
	slab *mem.Slab
	next int
	n    *iscsi.Negotiator
	stat uint32
	cmd  uint32
}

const fakeRecv = 9 << 10

// newRDMAFake accepts one connection on the in-memory fabric and answers logins, INQUIRY and the like until script takes
// a command.
func newRDMAFake(t *testing.T, private []byte, script func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) bool) (*Initiator, string) {
	t.Helper()
	near, far := transporttest.Twin()
	slab, err := mem.NewSlab(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := far.Register(slab); err != nil {
		t.Fatal(err)
	}
	l, err := far.Listen(context.Background(), "fake:3260")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return
			}
			qp, err := far.NewQP(transport.QPOptions{Sends: 64, Recvs: 16})
			if err != nil {
				t.Error(err)
				return
			}
			f := &rdmaFake{t: t, qp: qp, slab: slab, n: iscsi.NewNegotiator(iscsi.NegotiatorOptions{Target: true, ISER: true})}
			f.serve(ctx, r, private, script)
		}
	}()
	i, err := New(Options{Device: near, MinBackoff: time.Hour, MaxBackoff: time.Hour, ReconnectLimit: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		<-done
		if err := errors.Join(i.Close(), l.Close(), near.Close(), far.Close(), slab.Close()); err != nil {
			t.Error(err)
		}
	})
	return i, "iser://" + l.Addr().String() + "/iqn.2026-01.org.example:fake/0"
}

func (f *rdmaFake) serve(ctx context.Context, r transport.Request, private []byte, script func(*rdmaFake, iscsi.ISERHeader, iscsi.BHS) bool) {
	recv := func(k uint64) {
		_, _ = f.qp.PostRecv([]transport.Recv{{Token: k, Buf: mem.Span{Slab: f.slab, Off: int(k) * fakeRecv, Len: fakeRecv}}})
	}
	for k := range uint64(16) {
		recv(k)
	}
	if err := r.Accept(ctx, f.qp, transport.ConnParams{Private: private, ReadsIn: 1, ReadsOut: 1}); err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = f.qp.Close(transport.Reason{}) })
	defer stop()
	var wc [8]transport.WC
	for {
		n, err := f.qp.Poll(wc[:])
		for _, c := range wc[:n] {
			if c.Op != transport.OpRecv || c.Err != nil {
				continue
			}
			b := append([]byte(nil), f.slab.Bytes()[int(c.Token)*fakeRecv:][:c.Len]...)
			recv(c.Token)
			var h iscsi.ISERHeader
			if _, err := h.Parse(b); err != nil {
				f.t.Error(err)
			}
			bhs := iscsi.BHS(b[iscsi.ISERHeaderLen:])
			if !script(f, h, bhs) {
				f.answer(h, bhs, b[iserHead:])
			}
		}
		if err != nil {
			return
		}
		if n == 0 {
			_ = f.qp.Wait(context.Background()) // Poll tells why
		}
	}
}

// send posts a PDU; inv is an STag to invalidate, 0 for none.
func (f *rdmaFake) send(p iscsi.PDU, data []byte, inv uint32) {
	b := iscsi.Append((&iscsi.ISERHeader{}).Append(nil), p)
	iscsi.BHS(b[iscsi.ISERHeaderLen:]).SetDataLen(len(data))
	f.raw(append(b, data...), inv)
}

func (f *rdmaFake) raw(b []byte, inv uint32) {
	f.next = (f.next + 1) % 16
	sp := mem.Span{Slab: f.slab, Off: 16*fakeRecv + f.next*fakeRecv, Len: len(b)}
	copy(sp.Bytes(), b)
	op := transport.OpSend
	if inv != 0 {
		op = transport.OpSendInv
	}
	_, _ = f.qp.Post([]transport.WR{{Op: op, Local: []mem.Span{sp}, Inv: inv}})
}

func (f *rdmaFake) numbers() iscsi.Numbers {
	f.stat++
	return iscsi.Numbers{StatSN: f.stat, ExpCmdSN: f.cmd, MaxCmdSN: f.cmd + 15}
}

func (f *rdmaFake) answer(h iscsi.ISERHeader, b iscsi.BHS, data []byte) {
	switch b.Opcode() {
	case iscsi.OpLoginRequest:
		var p iscsi.LoginRequest
		p.Parse(b)
		if _, err := f.n.Receive(p.CSG, data[:p.DataLen], p.Continue); err != nil {
			f.t.Error(err)
		}
		f.cmd = p.CmdSN
		text, _ := f.n.Fill(nil, 8192)
		f.send(&iscsi.LoginResponse{Transit: true, CSG: p.CSG, NSG: p.NSG, ISID: p.ISID, TSIH: 7, ITT: p.ITT, Numbers: f.numbers()}, text, 0)
	case iscsi.OpLogoutReq:
		f.send(&iscsi.LogoutResponse{ITT: b.ITT(), Numbers: f.numbers()}, nil, 0)
	case iscsi.OpSCSICommand:
		f.cmd = b.CmdSN() + 1
		var out []byte
		switch b.CDB()[0] {
		case opInquiry:
			if b.CDB()[1] == 0 {
				out = append(make([]byte, 8), "FAKE    A DISK          1   "...)
			} else {
				out = make([]byte, 4)
			}
		case opServiceIn16:
			out = make([]byte, 32)
			out[6], out[7], out[10] = 8, 0, 2
		case opModeSense6:
			f.send(&iscsi.SCSIResponse{ITT: b.ITT(), Status: statusCheck, Numbers: f.numbers()}, append([]byte{0, 18}, fixedSense(keyIllegalRequest, 0x20, 0)...), 0)
			return
		}
		residual := b.EDTL() - uint32(len(out))
		if len(out) > 0 {
			sp := mem.Span{Slab: f.slab, Off: 40 * fakeRecv, Len: len(out)}
			copy(sp.Bytes(), out)
			_, _ = f.qp.Post([]transport.WR{{Op: transport.OpWrite, Local: []mem.Span{sp}, Remote: transport.Remote{STag: h.ReadSTag, Off: h.ReadBase}}})
		}
		f.send(&iscsi.SCSIResponse{ITT: b.ITT(), Underflow: residual > 0, Residual: residual, Numbers: f.numbers()}, nil, 0)
	}
}

// An STag that dies must be the command's own, and only if that was agreed; a message is as long as it says. Anything
// else ends the session: memory is not what it is thought to be.
func TestISERTargetsThatBreakRules(t *testing.T) {
	agree := iscsi.CMPrivate(true)
	good := func(f *rdmaFake, b iscsi.BHS) *iscsi.SCSIResponse {
		f.cmd = b.CmdSN() + 1
		return &iscsi.SCSIResponse{ITT: b.ITT(), Numbers: f.numbers()}
	}
	for name, c := range map[string]struct {
		private []byte
		say     func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS)
		clause  string // of RFC 7145; empty: the fabric itself ends the connection
	}{
		"not agreed":      {iscsi.CMPrivate(false), func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) { f.send(good(f, b), nil, h.ReadSTag) }, "7.3.2"},
		"no private data": {nil, func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) { f.send(good(f, b), nil, h.ReadSTag) }, "7.3.2"},
		"with another PDU": {agree, func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) {
			f.send(&iscsi.NopIn{ITT: iscsi.Reserved, TTT: iscsi.Reserved, Numbers: f.numbers()}, nil, h.ReadSTag)
		}, "7.3.2"},
		"a guess": {agree, func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) { f.send(good(f, b), nil, h.ReadSTag^0x100) }, ""},
		"a lie about the length": {agree, func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) {
			m := iscsi.Append((&iscsi.ISERHeader{}).Append(nil), good(f, b))
			iscsi.BHS(m[iscsi.ISERHeaderLen:]).SetDataLen(500)
			f.raw(m, 0)
		}, "9.2"},
		"no PDU":     {agree, func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) { f.raw(make([]byte, 40), 0) }, "9.1"},
		"too little": {agree, func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) { f.raw([]byte{0x10}, 0) }, "9.2"},
		"a Hello": {agree, func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) {
			f.raw(append([]byte{0x20}, make([]byte, 75)...), 0)
		}, "9.2"},
		"too long": {agree, func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) { f.send(good(f, b), make([]byte, 2*recvData), 0) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			i, url := newRDMAFake(t, c.private, func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) bool {
				if b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opRead16 {
					return false
				}
				c.say(f, h, b)
				return true
			})
			v, err := i.Open(context.Background(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			}()
			s := v.paths[0].sess.Load()
			if _, err := v.ReadAt(make([]byte, 4096), 0); !errors.Is(err, ErrNoPath) {
				t.Fatalf("the read ends with %v", err)
			}
			<-s.ended
			var pe *iscsi.ProtocolError
			if err := s.reason(); c.clause != "" && (!errors.As(err, &pe) || pe.RFC != 7145 || pe.Clause != c.clause) {
				t.Fatal(err)
			} else if c.clause == "" && errors.As(err, &pe) {
				t.Fatal(err)
			}
		})
	}
}

// A target that leaves an STag alive, and one that invalidates it: both reads are complete only with a dead STag.
func TestSTagsAreDeadAtCompletion(t *testing.T) {
	inv := false
	i, url := newRDMAFake(t, iscsi.CMPrivate(true), func(f *rdmaFake, h iscsi.ISERHeader, b iscsi.BHS) bool {
		if b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opRead16 {
			return false
		}
		f.cmd = b.CmdSN() + 1
		stag := uint32(0)
		if inv = !inv; inv {
			stag = h.ReadSTag
		}
		f.send(&iscsi.SCSIResponse{ITT: b.ITT(), Numbers: f.numbers()}, nil, stag)
		return true
	})
	v, err := i.Open(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := v.ReadAt(make([]byte, 4096), 0); err != nil {
			t.Fatal(err)
		}
		s := v.paths[0].sess.Load()
		s.mu.Lock()
		for k := range s.tasks {
			if s.tasks[k].win.Valid() {
				t.Error("an STag outlives its command")
			}
		}
		s.mu.Unlock()
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}

// stream is a connection that has been told everything already.
type stream struct {
	net.Conn
	b []byte
}

func (s *stream) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.b[:min(len(s.b), 700)])
	s.b = s.b[n:]
	return n, nil
}
func (s *stream) Write(p []byte) (int, error) { return len(p), nil }
func (s *stream) Close() error                { return nil }

// Whatever comes from a target, the receive side ends with an error and every request is accounted for.
func FuzzReceive(f *testing.F) {
	f.Add(iscsi.Append(nil, &iscsi.SCSIResponse{ITT: 1 << taskIndexBits}), false)
	f.Add(append(iscsi.Append(nil, &iscsi.DataIn{ITT: 1 << taskIndexBits, DataLen: 4096, HasStatus: true}), make([]byte, 4096)...), false)
	f.Add(iscsi.Append(nil, &iscsi.R2T{ITT: 1<<taskIndexBits | 1, Length: 512}), true)
	f.Add(iscsi.Append(nil, &iscsi.Async{Event: iscsi.AsyncLogout}), true)
	slab, err := mem.NewSlab(1 << 20)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, digests bool) {
		i := &Initiator{o: Options{Keepalive: time.Hour, Log: logging.OrNone(nil)}, zero: mem.Span{Slab: slab, Len: 4096}}
		c := &tcpConn{conn: &stream{b: b}, ahead: make([]byte, aheadSize), arena: make([]byte, 0, arenaSize), wake: make(chan struct{}, 1)}
		s := &session{ini: i, log: i.o.Log, dm: c, params: iscsi.Params{MaxRecv: 64 << 10, MaxSend: 8192, MaxBurst: 64 << 10, MaxOutstandingR2T: 1,
			HeaderDigest: digests, DataDigest: digests}, cmdSN: 1, maxCmdSN: 8, limits: limits{}}
		c.hdrDig, c.datDig, c.maxTx = digests, digests, 8192
		slots := make([]mem.Span, 4)
		for k := range slots {
			slots[k] = mem.Span{Slab: slab, Off: 8192 + k*slotSize, Len: slotSize}
		}
		s.open(4, slots)
		s.limits = limits{block: 512, piece: 64 << 10, maxUnmap: 1 << 20, maxWriteSame: 1 << 20}
		done := 0
		reqs := []*blockdev.Request{{Op: blockdev.Read, Length: 4096, Data: []mem.Span{{Slab: slab, Off: 32 << 10, Len: 4096}}},
			{Op: blockdev.Write, Length: 4096, Data: []mem.Span{{Slab: slab, Off: 40 << 10, Len: 4096}}}}
		for _, r := range reqs {
			r.Done = func(*blockdev.Request) { done++ }
			st := stateOf(r)
			st.begin()
			if !s.submit(st) {
				t.Fatal("refused")
			}
		}
		left := 0
		s.start(func(_ *session, l reqList, err error) {
			if err == nil {
				t.Error("no reason")
			}
			for r := l.pop(); r != nil; r = l.pop() {
				left++
			}
		})
		<-s.ended
		if done+left != len(reqs) {
			t.Fatalf("%d done, %d left, of %d", done, left, len(reqs))
		}
	})
}

// A target that ends a connection over RDMA in place of an answer to the login cannot be reached there.
func TestALoginOverRDMAThatHasNoAnswer(t *testing.T) {
	i, url := newRDMAFake(t, iscsi.CMPrivate(true), func(f *rdmaFake, _ iscsi.ISERHeader, b iscsi.BHS) bool {
		if b.Opcode() != iscsi.OpLoginRequest {
			return false
		}
		_ = f.qp.Close(transport.Reason{})
		return true
	})
	var ce *ConnectError
	if _, err := i.Open(t.Context(), url); !errors.Is(err, ErrNoPath) || !errors.As(err, &ce) {
		t.Errorf("%v", err)
	}
}

// A command that costs the session each time it is sent is given up after the limit, although every login succeeds.
func TestARequestThatKillsEverySessionIsGivenUp(t *testing.T) {
	i, url := newRDMAFake(t, iscsi.CMPrivate(true), func(f *rdmaFake, _ iscsi.ISERHeader, b iscsi.BHS) bool {
		if b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opRead16 {
			return false
		}
		f.raw(make([]byte, 40), 0)
		return true
	})
	i.o.MinBackoff, i.o.MaxBackoff = time.Millisecond, time.Millisecond
	v, err := i.Open(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.ReadAt(make([]byte, 4096), 0); !errors.Is(err, ErrNoPath) {
		t.Errorf("the read ends with %v", err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}
