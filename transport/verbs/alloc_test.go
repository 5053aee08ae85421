package verbs

import (
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/race"
	"github.com/sluice-storage/sluice/transport"
)

// An exchange is what an I/O of iSER is: a window, a command, data, and an answer that ends the window.
func exchange(t testing.TB, a, b *side, w transport.Window) func() {
	bind := []transport.WR{
		{Op: transport.OpBind, Window: w, Access: transport.RemoteWrite | transport.RemoteRead, Local: []mem.Span{b.at(0, 4096)}},
		{Op: transport.OpSend, Local: []mem.Span{b.at(8192, 96)}}}
	data := []transport.WR{
		{Op: transport.OpWrite, Local: []mem.Span{a.at(0, 2048), a.at(4096, 2048)}},
		{Op: transport.OpRead, Token: 7, Flags: transport.Signaled, Local: []mem.Span{a.at(16384, 4096)}},
		{Op: transport.OpSendInv, Token: 8, Flags: transport.Signaled, Local: []mem.Span{a.at(8192, 48)}}}
	ra, rb := []transport.Recv{{Token: 1, Buf: a.at(20480, 128)}}, []transport.Recv{{Token: 2, Buf: b.at(20480, 128)}}
	return func() {
		if _, err := a.qp.PostRecv(ra); err != nil {
			t.Fatal(err)
		}
		if _, err := b.qp.PostRecv(rb); err != nil {
			t.Fatal(err)
		}
		if _, err := b.qp.Post(bind); err != nil {
			t.Fatal(err)
		}
		a.must(transport.OpRecv, 1)
		r := w.Remote()
		data[0].Remote, data[1].Remote, data[2].Inv = r, r, r.STag
		if _, err := a.qp.Post(data); err != nil {
			t.Fatal(err)
		}
		b.must(transport.OpRecv, 2)
		a.must(transport.OpRead, 7)
		a.must(transport.OpSendInv, 8)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	_, a, b := connected(t, "mlx5", Options{})
	w, err := b.qp.NewWindow()
	if err != nil {
		t.Fatal(err)
	}
	one := exchange(t, a, b, w)
	for range 100 {
		one()
	}
	if n := testing.AllocsPerRun(500, one); n != 0 && !race.Enabled {
		t.Errorf("%v allocations in an exchange", n)
	}
}

func BenchmarkExchange(b *testing.B) {
	_, x, y := connected(b, "mlx5", Options{})
	w, err := y.qp.NewWindow()
	if err != nil {
		b.Fatal(err)
	}
	one := exchange(b, x, y, w)
	b.ReportAllocs()
	for b.Loop() {
		one()
	}
}
