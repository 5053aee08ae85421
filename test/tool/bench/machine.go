package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// wakes are wake-ups an I/O: how often a thread of the client or of the server slept, of its own accord, and had to be woken. That is the
// kernel's count of voluntary context switches, which no load of others changes. A thread that ended meanwhile is not in it.
type wakes struct {
	Client float64 `json:"client"`
	Server float64 `json:"server"`
}

// switches are the voluntary context switches of all threads, by process (proc(5), /proc/PID/task/TID/status).
func switches(pids []int) []uint64 {
	l := make([]uint64, len(pids))
	for i, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid)) // the pattern is a good one
		for _, t := range tasks {
			if b, err := os.ReadFile(t); err == nil { // the thread may have ended
				l[i] += voluntary(b)
			}
		}
	}
	return l
}

// voluntary reads the count in a thread's status, 0 where there is none.
func voluntary(status []byte) uint64 {
	_, rest, _ := bytes.Cut(status, []byte("\nvoluntary_ctxt_switches:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, _ := strconv.ParseUint(string(bytes.TrimSpace(line)), 10, 64) // none is 0
	return n
}

// ticks is the time of all processors so far, and what of it the machine below gave to others (proc(5), /proc/stat).
type ticks struct{ stolen, all uint64 }

func readTicks() (ticks, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}, err
	}
	return parseTicks(string(b))
}

// parseTicks reads the first line: user, nice, system, idle, iowait, irq, softirq, steal. Guests' time behind it is in user's already.
func parseTicks(stat string) (t ticks, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return t, errors.New("/proc/stat does not begin with the time of all processors")
	}
	for i, s := range f[1:9] {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return t, fmt.Errorf("/proc/stat: %w", err)
		}
		t.all += n
		if i == 7 {
			t.stolen = n
		}
	}
	return t, nil
}

// stolenSince is the share of the processors' time that was stolen since then.
func (t ticks) stolenSince(then ticks) float64 {
	if t.all <= then.all || t.stolen < then.stolen {
		return 0
	}
	return float64(t.stolen-then.stolen) / float64(t.all-then.all)
}

const (
	maxStolen = 0.05 // of a round: more is repeated
	maxAgain  = 3    // times a round is repeated: a machine that is never quiet is told of
)

// machine is what the rounds of a result suffered.
type machine struct {
	Stolen   float64 `json:"stolen"`   // the most of the rounds that count
	Repeated int     `json:"repeated"` // rounds
}

func (m machine) String() string {
	s := fmt.Sprintf("%.0f %% stolen", 100*m.Stolen)
	if m.Repeated > 0 {
		s += fmt.Sprintf(", %d repeated", m.Repeated)
	}
	return s
}

// quiet runs a round, and again where much time was stolen; undo takes back what the round has left.
func (m *machine) quiet(round func() error, undo func()) error {
	return m.quietBy(readTicks, round, undo)
}

func (m *machine) quietBy(now func() (ticks, error), round func() error, undo func()) error {
	for again := 0; ; again++ {
		from, err := now()
		if err != nil {
			return err
		}
		if err := round(); err != nil {
			return err
		}
		to, err := now()
		if err != nil {
			return err
		}
		stolen := to.stolenSince(from)
		if stolen <= maxStolen || again == maxAgain {
			m.Stolen = max(m.Stolen, stolen)
			return nil
		}
		m.Repeated++
		undo()
	}
}
