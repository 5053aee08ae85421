package verbs

import (
	"runtime"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// What an adapter has done stays counted when a connection has ended, and what it holds does not.
func TestAnAdapterIsCounted(t *testing.T) {
	s, a, b := connected(t, "mlx5", Options{})
	b.mustRecv(1, b.at(0, 64))
	a.mustPost(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 2, Local: []mem.Span{a.at(0, 64)}})
	a.must(transport.OpSend, 2)
	b.must(transport.OpRecv, 1)
	is := func(d *Device, when string, connections int, completions uint64, registered int64) {
		t.Helper()
		l := d.Adapters()
		if len(l) != 1 || l[0].Name != "one" || l[0].Connections != connections || l[0].Completions != completions || l[0].Registered != registered || l[0].Exposed != 0 || l[0].WholeSlabs || l[0].OpenSinks {
			t.Errorf("%s: %+v", when, l)
		}
	}
	is(a.d, "connected", 1, 1, 1<<20)
	_ = a.qp.Close(transport.Reason{})
	a.drain()
	if l := a.d.Adapters(); l[0].Completions == 0 {
		t.Errorf("after the end: %+v", l)
	}
	s.lose(s.nics[0], true)
	s.lose(s.nics[0], false)
	for ctx := within(t); ; runtime.Gosched() { // an event loop of the device's takes them
		l := a.d.Adapters()
		if l[0].Events["port_error"] == 1 && l[0].Events["port_active"] == 1 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(l)
		}
	}
}

// Where whole slabs are exposed, their bytes are.
func TestExposedMemoryIsCounted(t *testing.T) {
	for kind, want := range map[string]transport.AdapterInfo{"siw": {WholeSlabs: true}, "cxgb4": {WholeSlabs: true, OpenSinks: true, Exposed: 1 << 20}, "mlx5": {}} {
		_, a, _ := connected(t, kind, Options{WholeSlab: true})
		if i := a.d.Adapters()[0]; i.WholeSlabs != want.WholeSlabs || i.OpenSinks != want.OpenSinks || i.Exposed != want.Exposed {
			t.Errorf("%s: %+v", kind, i)
		}
	}
}
