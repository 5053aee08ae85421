package main

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-storage/sluice/test/lib/stat"
)

var (
	rowOf  = regexp.MustCompile(`^(read|write) +(\d+) KiB +depth (\d+) +(.*)$`)
	rateOf = regexp.MustCompile(`(\d+)/s [\d.]+ GB/s`)
)

// sections are the benchmark's tables, by how their titles begin, and which of a row's rates is Sluice's.
var sections = []struct {
	title, name string
	ours        int
}{
	{"iSER on loopback", "iser", 1},
	{"fio's NBD engine", "nbd", 0},
	{"NFS over TCP", "nfs_tcp", 1},
	{"NFS over RDMA", "nfs_rdma", 1},
}

// rows reads the tables as they are printed: those of an older commit have no other form that holds all of them.
func rows(text string) map[string]float64 {
	got := map[string]float64{}
	name, ours := "", 0
	for line := range strings.Lines(text) {
		for _, s := range sections {
			if strings.HasPrefix(line, s.title) {
				name, ours = s.name, s.ours
			}
		}
		m := rowOf.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || name == "" {
			continue
		}
		rates := rateOf.FindAllStringSubmatch(m[4], -1)
		if len(rates) <= ours {
			continue
		}
		if v, err := strconv.ParseFloat(rates[ours][1], 64); err == nil && v > 0 {
			got[fmt.Sprintf("%-8s %-5s %4s KiB  depth %s", name, m[1], m[2], m[3])] = v
		}
	}
	return got
}

// table holds the logarithms of new over old, by row and round.
type table struct {
	logs map[string][]float64
}

func newTable() *table { return &table{logs: map[string][]float64{}} }

// add takes a pair; both have to have the same rows, and those of the pairs before.
func (t *table) add(old, now map[string]float64) error {
	if a, b := slices.Sorted(maps.Keys(old)), slices.Sorted(maps.Keys(now)); !slices.Equal(a, b) {
		return fmt.Errorf("the old one has the rows %q, the new one %q", a, b)
	}
	if len(t.logs) > 0 && !slices.Equal(slices.Sorted(maps.Keys(old)), slices.Sorted(maps.Keys(t.logs))) {
		return fmt.Errorf("the rows %q are not those of the pairs before", slices.Sorted(maps.Keys(old)))
	}
	for row, v := range old {
		t.logs[row] = append(t.logs[row], math.Log(now[row]/v))
	}
	return nil
}

// last is the geometric mean over the rows of the newest pair.
func (t *table) last() float64 {
	sum, n := 0.0, 0
	for _, l := range t.logs {
		sum, n = sum+l[len(l)-1], n+1
	}
	return math.Exp(sum / float64(max(n, 1)))
}

// mean is the geometric mean over all rows and pairs.
func (t *table) mean() float64 {
	sum := 0.0
	for _, l := range t.logs {
		m, _, _ := stat.Interval(l)
		sum += math.Log(m)
	}
	return math.Exp(sum / float64(max(len(t.logs), 1)))
}

func (t *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-36s %-8s %-16s %s\n", "row", "new/old", "95 % interval", "rounds")
	rounds := 0
	for _, row := range slices.Sorted(maps.Keys(t.logs)) {
		m, low, high := stat.Interval(t.logs[row])
		fmt.Fprintf(&b, "%-36s %.3f    %.3f to %.3f  ", row, m, low, high)
		for _, v := range t.logs[row] {
			fmt.Fprintf(&b, " %.2f", math.Exp(v))
		}
		b.WriteByte('\n')
		rounds = max(rounds, len(t.logs[row]))
	}
	fmt.Fprintf(&b, "geometric mean over %d rows and %d pairs: %.3f\n", len(t.logs), rounds, t.mean())
	return b.String()
}

// judge holds the table against the bars.
func (t *table) judge(mean, row float64) error {
	var errs []error
	if m := t.mean(); m < mean {
		errs = append(errs, fmt.Errorf("the geometric mean is %.3f, the bar is %.2f", m, mean))
	}
	for _, name := range slices.Sorted(maps.Keys(t.logs)) {
		if _, low, high := stat.Interval(t.logs[name]); high < row {
			errs = append(errs, fmt.Errorf("%s: the interval %.3f to %.3f lies below %.2f", name, low, high, row))
		}
	}
	return errors.Join(errs...)
}
