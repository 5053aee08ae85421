package iscsi

import (
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/test/lib/race"
)

// lean is an initiator that allocates nothing: one command at a time from fixed buffers.
type lean struct {
	nc    net.Conn
	out   []byte
	in    []byte
	cmdSN uint32
	itt   uint32
}

func (l *lean) do(t testing.TB, write bool, blocks int, imm int) {
	n := blocks * 512
	l.itt++
	c := iscsi.SCSICommand{Final: true, Attr: iscsi.Simple, Read: !write, Write: write, ITT: l.itt, CmdSN: l.cmdSN, EDTL: uint32(n), DataLen: imm}
	l.cmdSN++
	c.CDB[0] = 0x28
	if write {
		c.CDB[0] = 0x2a
	}
	c.CDB[7], c.CDB[8] = byte(blocks>>8), byte(blocks)
	c.Put(iscsi.BHS(l.out))
	if _, err := l.nc.Write(l.out[:48+imm]); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := io.ReadFull(l.nc, l.in[:48]); err != nil {
			t.Fatal(err)
		}
		b := iscsi.BHS(l.in[:48])
		if d := b.DataLen(); d > 0 {
			if _, err := io.ReadFull(l.nc, l.in[48:48+d]); err != nil {
				t.Fatal(err)
			}
		}
		switch b.Opcode() {
		case iscsi.OpDataIn:
			if b.Flags()&iscsi.FlagStatus != 0 {
				return
			}
		case iscsi.OpR2T:
			d := iscsi.DataOut{Final: true, ITT: b.ITT(), TTT: b.TTT(), Offset: b.Offset(), DataLen: int(b.Residual())}
			d.Put(iscsi.BHS(l.out))
			if _, err := l.nc.Write(l.out[:48+d.DataLen]); err != nil {
				t.Fatal(err)
			}
		case iscsi.OpSCSIResponse:
			if b[3] != 0 {
				t.Fatalf("status %x", b[3])
			}
			return
		}
	}
}

func newLean(t testing.TB, f *fixture) *lean {
	p := f.dial()
	p.login("MaxRecvDataSegmentLength=262144", "InitialR2T=Yes")
	p.ready()
	return &lean{nc: p.w.(*tcpWire).nc, out: make([]byte, 1<<20), in: make([]byte, 1<<20), cmdSN: p.cmdSN, itt: 1000}
}

// No allocation per I/O in steady state, initiator and target together.
func TestNoAllocationPerIO(t *testing.T) {
	f := newFixture(t)
	l := newLean(t, f)
	for _, c := range []struct {
		name   string
		write  bool
		blocks int
		imm    int
	}{{"read 4 KiB", false, 8, 0}, {"write 4 KiB", true, 8, 4096}, {"read 128 KiB", false, 256, 0}, {"write 128 KiB", true, 256, 0}} {
		warm, n, limit := 200, 2000, 0.1
		if race.Enabled {
			warm, n, limit = 20, 100, 5
		}
		for range warm {
			l.do(t, c.write, c.blocks, c.imm)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range n {
			l.do(t, c.write, c.blocks, c.imm)
		}
		runtime.ReadMemStats(&after)
		if per := float64(after.Mallocs-before.Mallocs) / float64(n); per > limit {
			t.Errorf("%s: %.2f allocations an I/O", c.name, per)
		}
	}
}

// Bulk payload is never staged: at 128 KiB and above no byte is copied in user space.
func TestNoCopyAt128KiB(t *testing.T) {
	f := newFixture(t)
	l := newLean(t, f)
	for range 20 {
		l.do(t, true, 256, 0) // lets the receive side notice what is coming
	}
	before := f.srv.Sessions()[0].Copied
	for range 50 {
		l.do(t, true, 256, 0)
		l.do(t, false, 256, 0)
		l.do(t, true, 1024, 0)
	}
	if n := f.srv.Sessions()[0].Copied - before; n != 0 {
		t.Errorf("%d bytes were copied", n)
	}
}

func BenchmarkTCP(b *testing.B) {
	for _, c := range []struct {
		name   string
		write  bool
		blocks int
		imm    int
	}{{"read4K", false, 8, 0}, {"write4K", true, 8, 4096}, {"read128K", false, 256, 0}, {"write128K", true, 256, 0}} {
		b.Run(c.name, func(b *testing.B) {
			f := newFixture(b)
			l := newLean(b, f)
			b.SetBytes(int64(c.blocks * 512))
			b.ReportAllocs()
			for b.Loop() {
				l.do(b, c.write, c.blocks, c.imm)
			}
		})
	}
}
