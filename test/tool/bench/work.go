package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// work is one line of the table.
type work struct {
	write bool
	size  int
	depth int
	bar   float64 // the ratio to raw that is asked for
}

const volumeSize = 256 << 20 // fits the page cache of any machine, does not fit a CPU's

var works = []work{
	{false, 4 << 10, 32, 0.6},
	{true, 4 << 10, 32, 0.6},
	{false, 128 << 10, 16, 0.9},
	{true, 128 << 10, 16, 0.8},
}

func (w work) String() string {
	what := "read"
	if w.write {
		what = "write"
	}
	return fmt.Sprintf("%-5s %4d KiB  depth %d", what, w.size>>10, w.depth)
}

// offset is the place of the i-th request: all over the volume, the same for everybody who is measured.
func (w work) offset(i int) int64 { return w.offsetIn(volumeSize, i) }

func (w work) offsetIn(area int64, i int) int64 {
	blocks := uint64(area) / uint64(w.size)
	return int64(uint64(i)*0x9E3779B1%blocks) * int64(w.size)
}

// runner can do the work.
type runner interface {
	run(w work, d time.Duration) (n int, took time.Duration, err error)
	pids() []int // the processes whose time it costs, this one among them if it works for it
}

// cpuCount sums the processor time of client and server: what a figure costs, whatever else runs on the machine.
type cpuCount struct {
	from, sum time.Duration
	n         int
}

func (c *cpuCount) start(pids []int) { c.from = cpuTimes(pids) }
func (c *cpuCount) stop(pids []int, n int) {
	c.sum += cpuTimes(pids) - c.from
	c.n += n
}

func cpuTimes(pids []int) (sum time.Duration) {
	for _, p := range pids {
		sum += cpuTime(p)
	}
	return sum
}

func (c *cpuCount) perIO() float64 { return float64(c.sum.Microseconds()) / float64(max(c.n, 1)) }

// cpuTime is the user and system time of a process (proc(5), fields 14 and 15, in ticks of 10 ms).
func cpuTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64) // the kernel writes numbers
	sys, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+sys) * 10 * time.Millisecond
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}
