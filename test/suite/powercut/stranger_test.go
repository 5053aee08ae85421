package powercut

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"sync/atomic"
)

// stranger is qemu-io, whose iSCSI is libiscsi's: each run logs in, writes one sector with FUA or with a flush after it, and
// says by its exit code that both are done.
type stranger struct {
	*writer
	url  string
	runs atomic.Int64 // that ended well
}

func newStranger(w *writer, url string) *stranger {
	w.bytes = func(step uint64) []byte { return bytes.Repeat([]byte{mark(step)}, sector) }
	return &stranger{writer: w, url: url}
}

// mark is the byte that a write repeats; 0 is that of a new volume.
func mark(step uint64) byte {
	if step == 0 {
		return 0
	}
	return byte(step%251) + 1
}

// work writes until it is stopped. Who is killed has not said that its write is done, nor has a run that fails: its login may have been
// given up, or a flush may have told of a loss. The next one writes elsewhere, for what a run has left behind may come later.
func (s *stranger) work(ctx context.Context, stop *atomic.Bool) {
	open := make([]bool, len(s.places))
	for left := len(open); !stop.Load() && left > 0; {
		k := s.rng.IntN(len(s.places))
		if open[k] {
			continue
		}
		s.step++
		p := &s.places[k]
		p.newer = append(p.newer, s.step)
		at := fmt.Sprintf("-P %d %d %d", mark(s.step), (s.first+int64(k))*sector, sector)
		args := []string{"-f", "raw", "-t", "writeback", s.url, "-c", "write -f " + at}
		if s.rng.IntN(2) == 0 {
			args = []string{"-f", "raw", "-t", "writeback", s.url, "-c", "write " + at, "-c", "flush"}
		}
		if exec.CommandContext(ctx, "qemu-io", args...).Run() != nil {
			open[k] = true
			left--
			continue
		}
		s.runs.Add(1)
		p.acked = s.step
		p.settle()
	}
}
