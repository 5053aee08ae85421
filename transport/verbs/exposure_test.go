package verbs

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/transport"
)

// An adapter whose Reads open all registered memory to the peer's writes is used only where the configuration says so; others of the
// machine, and siw, which needs no such right, are used all the same.
func TestAnAdapterThatExposesMemoryOfATargetIsLeftAloneUnlessConfigured(t *testing.T) {
	s := newSim(t)
	s.add("chelsio", "cxgb4", "10.0.0.1")
	var shut *ExposureError
	if d, err := open(s, Options{}); !errors.As(err, &shut) || !slices.Equal(shut.Devices, []string{"chelsio"}) || !strings.Contains(err.Error(), "exposure") {
		if err == nil {
			_ = d.Close()
		}
		t.Fatalf("the only adapter: %v", err)
	}
	good := []*simNIC{s.add("mellanox", "mlx5", "10.0.0.2"), s.add("soft", "siw", "10.0.0.3")}
	for _, names := range [][]string{nil, {"chelsio", "mellanox", "soft"}} {
		core, lines := observer.New(zap.WarnLevel)
		d, err := open(s, Options{Devices: names, Log: zap.New(core)})
		if err != nil {
			t.Fatalf("%v: %v", names, err)
		}
		// A listener at every address hears of requests that come by the adapter, too.
		if _, err := d.adapterOf(s.nics[0].dev); !errors.As(err, &shut) || !slices.Equal(shut.Devices, []string{"chelsio"}) {
			t.Errorf("%v: a connection over the adapter: %v", names, err)
		}
		for _, n := range good {
			if _, err := d.adapterOf(n.dev); err != nil {
				t.Errorf("%v: a connection over %s: %v", names, n.name, err)
			}
		}
		if l := lines.FilterMessageSnippet("not used").All(); len(l) != 1 || !strings.Contains(l[0].ContextMap()["error"].(string), "chelsio") {
			t.Errorf("%v: said %v", names, lines.All())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// With it the adapter is used, and that is said: in the log, of the connection, in the list.
func TestAnAdapterThatExposesMemoryIsUsedAndToldOfWhereConfigured(t *testing.T) {
	s := newSim(t)
	s.add("one", "cxgb4", "10.0.0.1")
	s.add("two", "cxgb4", "10.0.0.2")
	core, lines := observer.New(zap.InfoLevel)
	mk := func(name string) *side {
		d, err := open(s, Options{Devices: []string{name}, WholeSlab: true, Log: zap.New(core)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return newSide(t, d)
	}
	a, b := mk("one"), mk("two")
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	if l := lines.FilterMessageSnippet("open to writes").All(); len(l) != 2 || l[0].Level != zap.WarnLevel || l[0].ContextMap()["device"] != "one" {
		t.Errorf("said %v", lines.All())
	}
	if p := b.qp.(transport.Pather).Path(); !strings.Contains(p.Exposure, "all registered memory") || !strings.Contains(p.Exposure, "writ") {
		t.Errorf("the path: %+v", p)
	}
}

func TestTheListSaysWhatIsUsedForWhat(t *testing.T) {
	s := newSim(t)
	for _, kind := range []string{"mlx5", "rxe", "bnxt", "siw", "cxgb4"} {
		s.add(kind, kind)
	}
	for _, c := range []struct {
		whole             bool
		target, initiator []string // that are used
	}{
		{false, []string{"mlx5", "rxe", "bnxt", "siw"}, []string{"mlx5", "rxe"}},
		{true, []string{"mlx5", "rxe", "bnxt", "siw", "cxgb4"}, []string{"mlx5", "rxe", "bnxt", "siw", "cxgb4"}},
	} {
		l, err := list(s, Options{WholeSlab: c.whole})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range l {
			if i.UsedByTarget != slices.Contains(c.target, i.Name) || i.UsedExposing != slices.Contains(c.initiator, i.Name) {
				t.Errorf("whole slabs %v, %s: target %v (%s), initiator %v (%s)", c.whole, i.Name, i.UsedByTarget, i.Target, i.UsedExposing, i.Exposure)
			}
			if i.UsedByTarget && i.Name != "cxgb4" && i.Target != "nothing" {
				t.Errorf("whole slabs %v: a target on %s exposes %s", c.whole, i.Name, i.Target)
			}
		}
	}
}
