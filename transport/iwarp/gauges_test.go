package iwarp

import (
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// A bound window and an outstanding Read are STags; both are gone with their connection.
func TestGaugesFallWithTheConnection(t *testing.T) {
	a, b := pair(t, pairOptions{})
	m := slab(t, 8192)
	w := b.window()
	b.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{m.Cut(0, 4096)}, Access: transport.RemoteWrite},
		transport.WR{Op: transport.OpRead, Token: 1, Flags: transport.Signaled, Local: []mem.Span{m.Cut(4096, 4096)}, Remote: transport.Remote{STag: 3}})
	b.recv(7, m.Cut(0, 64))
	if g := b.dev.Gauges(); g.Connections != 1 || g.Windows != 1 || g.ReadSinks != 1 || g.Receives != 1 || g.Sends == 0 {
		t.Errorf("while they are there: %+v", g)
	}
	if err := a.qp.Close(transport.Reason{}); err != nil {
		t.Fatal(err)
	}
	if err := b.drain(); err == nil {
		t.Fatal("the connection goes on")
	}
	if g := b.dev.Gauges(); g.Windows != 0 || g.ReadSinks != 0 {
		t.Errorf("after the end: %+v", g)
	}
}
