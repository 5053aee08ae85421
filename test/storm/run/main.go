// Command run is "make storm": it runs the random tools in turn, each round from the next seed, for as long as it is told, and
// adds up what they did. With -state it goes on where the run before has ended.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/test/storm"
)

// tool is a test function that obeys package storm.
type tool struct {
	name, pkg, test string
	rounds          int           // of one run of its binary, about a minute
	limit           time.Duration // of one run
}

// tools are all there are; a new one adds its line.
var tools = []tool{
	{"operator", "./test/operator", "TestStormOperator", 10, 15 * time.Minute},
	{"powercut", "./test/powercut", "TestStormPowerCut", 10, 15 * time.Minute},
	{"twohosts", "./test/twohosts", "TestStormTwoHosts", 12, 15 * time.Minute},
	{"failfiles", "./test/failonce/files", "TestStormFiles", 1, 15 * time.Minute},
	{"dry memory", "./test/drymemory", "TestStormDryMemory", 12, 15 * time.Minute},
	{"attachments", "./test/attachments", "TestStormAttachments", 12, 15 * time.Minute},
}

// state is what a run leaves for the next.
type state struct {
	Seed     uint64                    `json:"seed"`
	Runs     map[string]int            `json:"runs"`
	Counts   map[string]map[string]int `json:"counts"`
	Failures []string                  `json:"failures"`
}

func main() {
	minutes := flag.Float64("minutes", 10, "how long to run; the run that is under way then ends first")
	seed := flag.Uint64("seed", 1, "where the random choices begin; of no effect where a state file has one")
	only := flag.String("tools", "", "names of tools, separated by commas (default: all)")
	file := flag.String("state", "", "file to go on from and to leave the counts in")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *seed, time.Duration(*minutes*float64(time.Minute)), *only, *file); err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, seed uint64, long time.Duration, only, file string) error {
	chosen := tools
	if only != "" {
		names := strings.Split(only, ",")
		chosen = slices.DeleteFunc(slices.Clone(tools), func(t tool) bool { return !slices.Contains(names, t.name) })
		if len(chosen) == 0 {
			return fmt.Errorf("no tool is called %s", only)
		}
	}
	st := &state{Seed: seed, Runs: map[string]int{}, Counts: map[string]map[string]int{}}
	if b, err := os.ReadFile(file); file != "" && err == nil {
		if err := json.Unmarshal(b, st); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	} else if file != "" && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	dir, err := os.MkdirTemp("", "storm")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // binaries in the system's temporary directory
	for _, t := range chosen {
		if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", filepath.Join(dir, t.name), t.pkg).CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", t.pkg, err, out)
		}
	}
	failed := 0
	for begin := time.Now(); time.Since(begin) < long && ctx.Err() == nil; {
		for _, t := range chosen {
			if time.Since(begin) >= long || ctx.Err() != nil {
				break
			}
			if err := st.once(ctx, t, dir); err != nil {
				failed++
				fmt.Println(err)
			}
			if err := st.save(file); err != nil {
				return err
			}
		}
	}
	st.print()
	if failed > 0 {
		return fmt.Errorf("%d runs failed; what they said is above", failed)
	}
	return nil
}

// once runs a tool's binary for its rounds, from a seed of its own.
func (st *state) once(ctx context.Context, t tool, dir string) error {
	n := st.Runs[t.name]
	st.Runs[t.name]++
	seed := st.Seed*1_000_003 + uint64(n) + 1
	counts := filepath.Join(dir, t.name+".counts")
	ctx, cancel := context.WithTimeout(ctx, t.limit+time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(dir, t.name), "-test.run", "^"+t.test+"$", "-test.timeout", t.limit.String(), "-test.v")
	c.Dir = t.pkg
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", storm.EnvRounds, t.rounds), fmt.Sprintf("%s=%d", storm.EnvSeed, seed), storm.EnvCounts+"="+counts)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	start := time.Now()
	err := c.Run()
	if cerr := st.add(t.name, counts); cerr != nil {
		return cerr
	}
	what := fmt.Sprintf("%s run %d seed %d", t.name, n, seed)
	if err == nil && !strings.Contains(out.String(), "--- PASS: "+t.test) {
		err = errors.New("it did not run")
	}
	if err != nil {
		st.Failures = append(st.Failures, what)
		return fmt.Errorf("FAIL %s: %w\n%s", what, err, out.String())
	}
	fmt.Printf("ok %s in %.0f s\n", what, time.Since(start).Seconds())
	return nil
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
	for _, f := range st.Failures {
		fmt.Println("failed:", f)
	}
}
