package main

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

const printed = `iSER on loopback, sluiced (engine file) and this client as two processes; CRC off (loopback) on both sides of every ratio
work                      raw pread           Sluice              ratio  bar  CPU us/IO raw  Sluice  allocs/IO client  sluiced
read     4 KiB  depth 32  100000/s 0.41 GB/s  50000/s 0.20 GB/s   0.50   0.4  5.0            9.0     0.0000            0.0000
fio's NBD engine, one connection: our NBD face over iSER to a file volume, beside servers of the file itself
work                      Sluice             nbdkit             qemu-nbd           ratio to the faster  bar
write  128 KiB  depth 16  7000/s 0.92 GB/s   8000/s 1.05 GB/s   9000/s 1.18 GB/s   0.78                 0.6
NFS over TCP on loopback, one libnfs client for both, a process each
read  1024 KiB  depth 8  3000/s 3.15 GB/s  4000/s 4.19 GB/s  1.33   0.9  300.0                200.0
`

func TestRowsAreReadAsTheBenchmarkPrintsThem(t *testing.T) {
	got := rows(printed)
	want := map[string]float64{"iser     read     4 KiB  depth 32": 50000, "nbd      write  128 KiB  depth 16": 7000, "nfs_tcp  read  1024 KiB  depth 8": 4000}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func logs(ratios ...float64) []float64 {
	for i := range ratios {
		ratios[i] = math.Log(ratios[i])
	}
	return ratios
}

func TestTheBarsFailWhatIsSlower(t *testing.T) {
	for name, c := range map[string]struct {
		rows map[string][]float64
		says []string
	}{
		"as fast":              {map[string][]float64{"a": logs(1, 1.02, 0.99), "b": logs(0.98, 1, 1.01)}, nil},
		"all a little slower":  {map[string][]float64{"a": logs(0.96, 0.97, 0.95), "b": logs(0.96, 0.96, 0.97)}, []string{"geometric mean"}},
		"one row much slower":  {map[string][]float64{"a": logs(0.9, 0.91, 0.9), "b": logs(1.1, 1.1, 1.1)}, []string{"a: the interval"}},
		"one row, but unsure":  {map[string][]float64{"a": logs(0.6, 1.3, 0.9), "b": logs(1.1, 1.1, 1.1)}, nil},
		"one pair has no rows": {map[string][]float64{"a": logs(0.5), "b": logs(2)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&table{logs: c.rows}).judge(0.97, 0.95)
			if (err != nil) != (c.says != nil) || slices.ContainsFunc(c.says, func(s string) bool { return !strings.Contains(err.Error(), s) }) {
				t.Errorf("%v, want it to say %q", err, c.says)
			}
		})
	}
}

func TestRowsThatOneSideLacksAreAnError(t *testing.T) {
	tb := newTable()
	if tb.add(map[string]float64{"a": 1}, map[string]float64{"a": 1, "b": 1}) == nil {
		t.Error("a row without its partner is taken")
	}
}
