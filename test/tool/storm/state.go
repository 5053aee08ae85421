package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/test/lib/storm"
)

// state is what a run leaves for the next.
type state struct {
	Seed     uint64                    `json:"seed"`
	Runs     map[string]int            `json:"runs"`
	Counts   map[string]map[string]int `json:"counts"`
	Failures []part                    `json:"failures"` // that have not passed since
	Mended   []part                    `json:"mended"`   // failures that have passed when they were run again
}

// part is one run of a tool's binary, whole.
type part struct {
	Tool   string `json:"tool"`
	Run    int    `json:"run"`
	Seed   uint64 `json:"seed"`
	Rounds int    `json:"rounds"`
}

func (p part) String() string {
	return fmt.Sprintf("%s run %d, seed %d, %d rounds", p.Tool, p.Run, p.Seed, p.Rounds)
}

// UnmarshalJSON reads what earlier runners wrote, too: a line without the rounds.
func (p *part) UnmarshalJSON(b []byte) error {
	var line string
	if json.Unmarshal(b, &line) != nil {
		type plain part
		return json.Unmarshal(b, (*plain)(p))
	}
	name, numbers, _ := strings.Cut(line, " run ")
	p.Tool = name
	if _, err := fmt.Sscanf(numbers, "%d seed %d", &p.Run, &p.Seed); err != nil {
		return fmt.Errorf("a failure %q: %w", line, err)
	}
	for _, t := range tools {
		if t.name == p.Tool {
			p.Rounds = t.rounds
		}
	}
	return nil
}

func newState(seed uint64) *state {
	return &state{Seed: seed, Runs: map[string]int{}, Counts: map[string]map[string]int{}}
}

func load(file string) (*state, error) {
	if file == "" {
		return nil, os.ErrNotExist
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	st := newState(0)
	if err := json.Unmarshal(b, st); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return st, nil
}

// seedOf is far from that of every other run: rapid takes its sequences from the numbers after a seed, and those of two runs must
// not be the same ones.
func (st *state) seedOf(tool string, n int) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", st.Seed, tool, n)
	return h.Sum64()
}

// next does the run after the last one.
func (st *state) next(t tool, dir string) (ok bool, err error) {
	n := st.Runs[t.name]
	st.Runs[t.name]++
	p := part{t.name, n, st.seedOf(t.name, n), t.rounds}
	if ok, err = st.do(t, p, dir); err == nil && !ok {
		st.Failures = append(st.Failures, p)
	}
	return ok, err
}

// again does what has failed once more, as it was. What passes has passed.
func (st *state) again(ctx context.Context, chosen []tool, dir string) (failed int, err error) {
	var still []part
	for _, p := range st.Failures {
		passed := false
		for _, t := range chosen {
			if t.name != p.Tool || ctx.Err() != nil {
				continue
			}
			if passed, err = st.do(t, p, dir); err != nil {
				return failed, err
			}
			if !passed {
				failed++
			}
		}
		if passed {
			st.Mended = append(st.Mended, p)
		} else {
			still = append(still, p)
		}
	}
	st.Failures = still
	return failed, nil
}

// do runs a tool's binary for a part. A signal ends the runner after it, not it: its daemons and mounts would stay.
func (st *state) do(t tool, p part, dir string) (ok bool, err error) {
	counts := filepath.Join(dir, t.name+".counts")
	limit, cancel := context.WithTimeout(context.Background(), t.limit+time.Minute)
	defer cancel()
	c := exec.CommandContext(limit, filepath.Join(dir, t.name), "-test.run", "^"+t.test+"$", "-test.timeout", t.limit.String(), "-test.v")
	c.Dir, c.SysProcAttr = t.pkg, &syscall.SysProcAttr{Setpgid: true}
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", storm.EnvRounds, p.Rounds), fmt.Sprintf("%s=%d", storm.EnvSeed, p.Seed), fmt.Sprintf("%s=%d", storm.EnvRun, p.Run),
		storm.EnvCounts+"="+counts)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	start := time.Now()
	err = c.Run()
	if cerr := st.add(t.name, counts); cerr != nil {
		return false, cerr
	}
	if err == nil && !strings.Contains(out.String(), "--- PASS: "+t.test) {
		err = errors.New("it did not run")
	}
	if err != nil {
		fmt.Printf("FAIL %v: %v\n%s\n", p, err, out.String())
		return false, nil
	}
	fmt.Printf("ok %v in %.0f s\n", p, time.Since(start).Seconds())
	return true, nil
}

func (st *state) add(name, file string) error {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Counts[name] == nil {
		st.Counts[name] = map[string]int{}
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		var line map[string]int
		if json.Unmarshal(s.Bytes(), &line) == nil { // a killed run may leave half a line
			for k, n := range line {
				st.Counts[name][k] += n
			}
		}
	}
	return errors.Join(s.Err(), os.Remove(file))
}

func (st *state) save(file string) error {
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", b, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func (st *state) print() {
	for _, t := range tools {
		if st.Runs[t.name] > 0 {
			b, _ := json.Marshal(st.Counts[t.name]) // a map of numbers
			fmt.Printf("%s: %d runs, %s\n", t.name, st.Runs[t.name], b)
		}
	}
	for _, p := range st.Mended {
		fmt.Println("failed and passed since:", p)
	}
	for _, p := range st.Failures {
		fmt.Println("failed:", p)
	}
}
