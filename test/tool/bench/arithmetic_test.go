package main

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAStepThatFallsOffIsACliff(t *testing.T) {
	line := func(l ...float64) *sweepLine {
		s := &sweepLine{Depth: 8}
		for i, v := range l {
			s.Points = append(s.Points, &result{Work: string(rune('a' + i)), Ratio: v})
		}
		return s
	}
	for _, c := range []struct {
		line *sweepLine
		want []string
	}{
		{line(0.5, 0.46, 0.42, 0.9, 0.82), nil},
		{line(0.5, 0.44, 0.6), []string{"b"}},
		{line(0.9, 0.8, 0.7), []string{"b", "c"}},
		{line(0.1), nil},
	} {
		var got []string
		for _, err := range cliffs(c.line) {
			name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "sweep, "), ":")
			got = append(got, name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: cliffs at %v, want %v", c.line.Points, got, c.want)
		}
	}
}

func TestTimeThatWasStolen(t *testing.T) {
	a, err := parseTicks("cpu  100 0 100 700 50 0 40 10 5 0\ncpu0 1 2 3\n")
	if err != nil || a.all != 1000 || a.stolen != 10 {
		t.Fatalf("%+v, %v", a, err)
	}
	b, err := parseTicks("cpu  150 0 120 710 50 0 40 30 5 0\n")
	if err != nil {
		t.Fatal(err)
	}
	if s := b.stolenSince(a); s != 0.2 {
		t.Errorf("20 of 100 ticks are a share of %v", s)
	}
	if s := a.stolenSince(b); s != 0 {
		t.Errorf("a clock that went back has stolen %v", s)
	}
	for _, bad := range []string{"", "cpu 1 2 3\n", "intr 1 2 3 4 5 6 7 8 9\n", "cpu 1 2 3 4 5 x 7 8\n"} {
		if _, err := parseTicks(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if now, err := readTicks(); err != nil || now.all == 0 {
		t.Errorf("this machine's: %+v, %v", now, err)
	}
}

// A round of which much was stolen is measured again, and leaves nothing. One that cannot be had is kept and told of.
func TestARoundThatWasDisturbedIsRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		stolen   []uint64 // of 100 ticks, by attempt
		kept     int
		most     float64
		repeated int
	}{
		"quiet":        {[]uint64{0}, 1, 0, 0},
		"at the limit": {[]uint64{5}, 1, 0.05, 0},
		"once":         {[]uint64{50, 1}, 1, 0.01, 1},
		"never quiet":  {[]uint64{50, 60, 70, 20}, 1, 0.2, 3},
	} {
		var m machine
		var at ticks
		rounds, calls, looks := 0, 0, 0
		now := func() (ticks, error) {
			if looks++; looks%2 == 0 { // behind the round
				at.all += 100
				at.stolen += c.stolen[(looks-1)/2]
			}
			return at, nil
		}
		if err := m.quietBy(now, func() error { rounds++; calls++; return nil }, func() { rounds-- }); err != nil {
			t.Fatal(err)
		}
		if rounds != c.kept || calls != len(c.stolen) || m.Stolen != c.most || m.Repeated != c.repeated {
			t.Errorf("%s: %d rounds kept of %d, %+v", name, rounds, calls, m)
		}
	}
	var m machine
	broken := errors.New("broken")
	if err := m.quiet(func() error { return broken }, func() { t.Error("undone") }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestWakeUpsOfAThreadAreCounted(t *testing.T) {
	if n := voluntary([]byte("Name:\tx\nvoluntary_ctxt_switches:\t123\nnonvoluntary_ctxt_switches:\t7\n")); n != 123 {
		t.Errorf("%d", n)
	}
	if n := voluntary([]byte("Name:\tx\nnonvoluntary_ctxt_switches:\t7\n")); n != 0 {
		t.Errorf("%d of a thread that has no count", n)
	}
	sleeper := exec.Command("cat") // which sleeps until it is told something
	in, err := sleeper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := sleeper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	pids := []int{sleeper.Process.Pid, 1 << 30}
	var first, last []uint64
	b := make([]byte, 1)
	for i := range 20 {
		if _, err := in.Write([]byte{'x'}); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(b); err != nil {
			t.Fatal(err)
		}
		if last = switches(pids); i == 0 {
			first = last
		}
	}
	if last[0] == first[0] || last[1] != 0 {
		t.Errorf("from %v to %v in 19 exchanges", first, last)
	}
	if err := errors.Join(in.Close(), sleeper.Wait()); err != nil {
		t.Fatal(err)
	}
}

func TestCostsAddUp(t *testing.T) {
	var c cost
	c.add(cost{n: 100, cpu: time.Millisecond, sums: [2]uint64{10, 20}})
	c.add(cost{n: 300, cpu: 3 * time.Millisecond, sums: [2]uint64{30, 0}})
	if got := c.cpuPerIO(); got != 10 {
		t.Errorf("%v us an I/O", got)
	}
	if got := c.wakesPerIO(); got != (wakes{0.1, 0.05}) {
		t.Errorf("%+v wake-ups an I/O", got)
	}
	if got := new(cost).wakesPerIO(); got != (wakes{}) {
		t.Errorf("%+v wake-ups of nothing", got)
	}
}

func TestLatencyIsTheRateTurnedRound(t *testing.T) {
	l := latencyOf(&result{Raw: 50_000, Sluice: 20_000, Rounds: []float64{0.5, 0.4, 0.2}, work: work{size: 4 << 10}})
	if l.Raw != 20 || l.Sluice != 50 || l.Ratio != 2.5 || l.Bar != maxLatency {
		t.Errorf("%+v", l)
	}
	if l := latencyOf(&result{Raw: 1, Sluice: 1, work: work{size: 128 << 10}}); l.Bar != 0 {
		t.Errorf("%+v has a bar", l)
	}
}

func TestProcessorTimeOfAGigabyte(t *testing.T) {
	s := stagingOf(&result{RawCPU: 100, SluiceCPU: 50, Raw: 1, Sluice: 2, Rounds: []float64{2}, work: work{size: 100_000}})
	if s.StagedCPU != 1 || s.PlacedCPU != 0.5 || s.CPURatio != 0.5 || s.Ratio != 2 {
		t.Errorf("%+v", s)
	}
	if s := stagingOf(&result{work: work{size: 1}}); s.CPURatio != 0 {
		t.Errorf("a ratio of nothing: %v", s.CPURatio)
	}
}

func TestTheRateOfISCSIPerf(t *testing.T) {
	said := "capacity is 524288 blocks\nlba 1, iops current 5 (1 MB/s), iops average 100 (1 MB/s), in_flight 3, busy 0\riops average 34567 (135 MB/s)     \n"
	if r, err := perfRate(said); err != nil || r != 34567 {
		t.Errorf("%v, %v", r, err)
	}
	for _, bad := range []string{"", "iops average 0 (0 MB/s) "} {
		if _, err := perfRate(bad); err == nil {
			t.Errorf("%q is a rate", bad)
		}
	}
}

func TestPartsAreMeasuredInTheirOrder(t *testing.T) {
	names := func(l []part) (s []string) {
		for _, p := range l {
			s = append(s, p.name)
		}
		return s
	}
	l, err := wantedParts("tgt,block")
	if err != nil || !slices.Equal(names(l), []string{"block", "tgt"}) {
		t.Errorf("%v, %v", names(l), err)
	}
	if l, err = wantedParts("all"); err != nil || len(l) != len(parts) {
		t.Errorf("%v, %v", names(l), err)
	}
	for _, bad := range []string{"", "blocks", "block,", "block,none"} {
		if _, err := wantedParts(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestABaselineJudgesARatioOfRatios(t *testing.T) {
	path := filepath.Join(t.TempDir(), "baseline.json")
	steady := func(v float64) []float64 { return []float64{v, v * 1.01, v * 0.99, v, v} }
	if err := keep(path, "then", map[string]baseRow{"same": newRow(steady(0.5)), "slower": newRow(steady(0.5)), "noisy": newRow([]float64{0.5, 0.1, 0.9}),
		"once": newRow([]float64{0.5}), "gone": newRow(steady(1))}); err != nil {
		t.Fatal(err)
	}
	b, err := readBaseline(path)
	if err != nil {
		t.Fatal(err)
	}
	now := map[string]baseRow{"same": newRow(steady(0.49)), "slower": newRow(steady(0.4)), "noisy": newRow([]float64{0.2, 0.1, 0.3}), "once": newRow(steady(0.1)), "new": newRow(steady(1))}
	var worse, all []string
	for _, c := range b.against(now) {
		if all = append(all, c.Row); c.Worse {
			worse = append(worse, c.Row)
		}
		if c.Row == "slower" && (math.Abs(c.Ratio-0.8) > 0.01 || c.Noise < 0.005 || c.Noise > 0.03) {
			t.Errorf("%+v", c)
		}
	}
	if !slices.Equal(all, []string{"noisy", "once", "same", "slower"}) || !slices.Equal(worse, []string{"slower"}) {
		t.Errorf("compared %v, worse %v", all, worse)
	}
	// Rows that were not measured this time stay.
	if err := keep(path, "now", map[string]baseRow{"same": newRow(steady(0.6))}); err != nil {
		t.Fatal(err)
	}
	if b, err = readBaseline(path); err != nil || b.Made != "now" || len(b.Rows) != 5 || math.Abs(b.Rows["same"].Ratio-0.6) > 0.01 {
		t.Errorf("%+v, %v", b, err)
	}
	if err := os.WriteFile(path, []byte("no"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := keep(path, "now", nil); err == nil {
		t.Error("what is no baseline is written over")
	}
}

// A page has what the report has, read back as a program reads it.
func TestAPageShowsEveryPart(t *testing.T) {
	rounds := []float64{0.5, 0.6, 0.4}
	r := &result{Work: "read     4 KiB  depth 32", Size: 4096, Raw: 2, Sluice: 1, Ratio: 0.5, Rounds: rounds}
	report := map[string]any{
		"crc": "on", "results": []*result{r}, "nfs_rdma": []*result{r}, "nfs_tcp": []*result{r},
		"sweep":   []*sweepLine{{8, []*result{r, r}}, {32, []*result{r, r}}},
		"latency": []*latency{{Work: "one", Raw: 1, Sluice: 2, Ratio: 2, Rounds: rounds}},
		"direct":  []*directResult{{Work: "disk", Rounds: rounds}},
		"scale":   []*scalePoint{{Of: "sessions", Count: 1, Rate: 5, Rounds: rounds}, {Of: "sessions", Count: 1000, Rate: 4, Rounds: rounds}},
		"tgt":     []*tgtResult{{Work: "tcp", Rounds: rounds, CPURounds: rounds}},
		"staging": []*stagingResult{{Work: "read   128 KiB  depth 16", Size: 128 << 10, Rounds: rounds}},
		"nbd":     []*nbdResult{{Work: "fio", Rates: map[string]float64{"Sluice": 1}, Rounds: rounds}},
		"missed":  []string{"a bar & more"},
	}
	f, err := figuresOf(report)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(f.rows()); n != 10 {
		t.Errorf("%d rows for a baseline: %v", n, f.rows())
	}
	dir := t.TempDir()
	if err := f.page(dir, report); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Blocks over iSER", "depth 8", "depth 32", "One request at a time", "fio with io_uring", "Many sessions", "beside tgt", "a copy of all payload",
		"NBD face", "nfs-ganesha", "Files over RDMA", "a bar & more"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	for line := range strings.Lines(string(b)) {
		if _, rest, some := strings.Cut(line, "]("); some {
			name, _, _ := strings.Cut(rest, ")")
			if svg, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.HasPrefix(string(svg), "<svg") {
				t.Errorf("the page shows %s: %v", name, err)
			}
		}
	}
	if strings.Contains(string(b), "%!") {
		t.Errorf("a row is not as long as its head:\n%s", b)
	}
}
