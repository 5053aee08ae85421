package srp

import (
	"context"
	"runtime"
	"testing"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/race"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
	"github.com/sluice-storage/sluice/transport"
)

// lean is an initiator that allocates nothing: one command at a time, from memory that is exposed once.
type lean struct {
	t    testing.TB
	qp   transport.QP
	wcs  [8]transport.WC
	wr   [1]transport.WR
	one  [1]mem.Span
	recv [1]transport.Recv
	unit *mem.Buf
	in   *mem.Buf
	data transport.Remote
	list [wire.MemoryLen]byte
	cdb  [16]byte
}

func newLean(t testing.TB, f *fixture) *lean {
	l := &lean{t: t}
	var err error
	l.qp, err = f.far.NewQP(transport.QPOptions{Sends: 64, Recvs: 8})
	must(t, err)
	l.unit, err = f.farM.Get(16 << 10)
	must(t, err)
	l.in, err = f.farM.Get(4096)
	must(t, err)
	data, err := f.farM.Get(1 << 20)
	must(t, err)
	l.post()
	private := make([]byte, wire.LoginReqLen)
	req := f.request(7)
	req.Put(private)
	_, err = f.far.Dial(context.Background(), f.addr, l.qp, transport.ConnParams{Private: private, ReadsIn: 4})
	must(t, err)
	w, err := l.qp.NewWindow()
	must(t, err)
	_, err = l.qp.Post([]transport.WR{{Op: transport.OpBind, Window: w, Access: transport.RemoteRead | transport.RemoteWrite, Local: []mem.Span{data.Span()}}})
	must(t, err)
	l.data = w.Remote()
	t.Cleanup(func() {
		_ = l.qp.Close(transport.Reason{})
		for {
			if n, err := l.qp.Poll(l.wcs[:]); err != nil {
				break
			} else if n == 0 {
				_ = l.qp.Wait(context.Background())
			}
		}
		for _, b := range []*mem.Buf{l.unit, l.in, data} {
			b.Release()
		}
	})
	l.do([]byte{0}, 0, 0, 0) // takes the unit attention
	return l
}

func (l *lean) post() {
	l.recv[0] = transport.Recv{Token: 1, Buf: l.in.Span()}
	if _, err := l.qp.PostRecv(l.recv[:]); err != nil {
		l.t.Fatal(err)
	}
}

// do executes a command and returns its status.
func (l *lean) do(cdb []byte, in, out, imm int) uint8 {
	clear(l.cdb[:])
	copy(l.cdb[:], cdb)
	c := wire.Cmd{Tag: 1, CDB: l.cdb[:]}
	b := wire.Buffer{Format: wire.Direct, Len: uint32(in + out), List: l.list[:]}
	wire.Memory{VA: l.data.Off, Key: l.data.STag, Len: b.Len}.Put(l.list[:])
	switch {
	case imm > 0:
		c.Out = wire.Buffer{Format: wire.Immediate, Len: uint32(imm), Data: l.unit.Bytes()[srpinit.ImmOffset : srpinit.ImmOffset+imm]}
	case out > 0:
		c.Out = b
	case in > 0:
		c.In = b
	}
	l.one[0] = l.unit.Span().Cut(0, c.Put(l.unit.Bytes(), srpinit.ImmOffset))
	l.wr[0] = transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 2, Local: l.one[:]}
	if _, err := l.qp.Post(l.wr[:]); err != nil {
		l.t.Fatal(err)
	}
	for sent, status := false, -1; ; {
		n, err := l.qp.Poll(l.wcs[:])
		if err != nil {
			l.t.Fatal(err)
		}
		for _, wc := range l.wcs[:n] {
			switch wc.Token {
			case 1:
				r, err := wire.ParseRsp(l.in.Bytes()[:wc.Len])
				if err != nil {
					l.t.Fatal(err)
				}
				status = int(r.Status)
				l.post()
			case 2:
				sent = true
			}
		}
		if sent && status >= 0 {
			return uint8(status)
		}
		if n == 0 {
			if err := l.qp.Wait(context.Background()); err != nil {
				l.t.Fatal(err)
			}
		}
	}
}

var transfers = []struct {
	name         string
	cdb          []byte
	in, out, imm int
}{
	{"read 4 KiB", read10(0, 4096), 4096, 0, 0}, {"write 4 KiB", write10(0, 4096), 0, 4096, 0}, {"write 4 KiB at once", write10(0, 4096), 0, 0, 4096},
	{"read 128 KiB", read10(0, 128<<10), 128 << 10, 0, 0}, {"write 128 KiB", write10(0, 128<<10), 0, 128 << 10, 0},
}

// No allocation per I/O in steady state, initiator and target together; and nothing but immediate data is copied.
func TestNoAllocationPerIO(t *testing.T) {
	f := newFixture(t, "iwarp")
	l := newLean(t, f)
	for _, x := range transfers {
		warm, n, limit := 200, 2000, 0.1
		if race.Enabled {
			warm, n, limit = 20, 100, 5
		}
		for range warm {
			l.do(x.cdb, x.in, x.out, x.imm)
		}
		copied := f.srv.Sessions()[0].Copied
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range n {
			if status := l.do(x.cdb, x.in, x.out, x.imm); status != 0 {
				t.Fatalf("%s: status %02X", x.name, status)
			}
		}
		runtime.ReadMemStats(&after)
		if per := float64(after.Mallocs-before.Mallocs) / float64(n); per > limit {
			t.Errorf("%s: %.2f allocations an I/O", x.name, per)
		}
		if got := f.srv.Sessions()[0].Copied - copied; got != uint64(n*x.imm) {
			t.Errorf("%s: %d bytes copied", x.name, got)
		}
	}
}

func BenchmarkIO(b *testing.B) {
	for _, x := range transfers {
		b.Run(x.name, func(b *testing.B) {
			l := newLean(b, newFixture(b, "iwarp"))
			b.SetBytes(int64(x.in + x.out + x.imm))
			b.ReportAllocs()
			for b.Loop() {
				l.do(x.cdb, x.in, x.out, x.imm)
			}
		})
	}
}
