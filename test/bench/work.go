package main

import (
	"fmt"
	"slices"
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
	{false, 4 << 10, 32, 0.4},
	{true, 4 << 10, 32, 0.4},
	{false, 128 << 10, 16, 0.7},
	{true, 128 << 10, 16, 0.7},
}

func (w work) String() string {
	what := "read"
	if w.write {
		what = "write"
	}
	return fmt.Sprintf("%-5s %3d KiB  depth %d", what, w.size>>10, w.depth)
}

// offset is the place of the i-th request: all over the volume, the same for everybody who is measured.
func (w work) offset(i int) int64 {
	blocks := uint64(volumeSize / w.size)
	return int64(uint64(i)*0x9E3779B1%blocks) * int64(w.size)
}

// runner is somebody who can do the work.
type runner interface {
	run(w work, d time.Duration) (n int, took time.Duration, err error)
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
