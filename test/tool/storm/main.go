// Command run is "make storm": it runs the random tools in turn, each round from the next seed, for as long as it is told, and
// adds up what they did. With -state it goes on where the run before has ended; runs that have failed are done again first.
package main

import (
	"context"
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
)

// tool is a test function that obeys package storm.
type tool struct {
	name, pkg, test string
	rounds          int           // of one run of its binary, about a minute
	limit           time.Duration // of one run
}

// tools are all there are; a new one adds its line.
var tools = []tool{
	{"operator", "./test/suite/operator", "TestStormOperator", 10, 15 * time.Minute},
	{"powercut", "./test/suite/powercut", "TestStormPowerCut", 10, 15 * time.Minute},
	{"twohosts", "./test/suite/twohosts", "TestStormTwoHosts", 12, 15 * time.Minute},
	{"failfiles", "./test/suite/failonce/files", "TestStormFiles", 1, 30 * time.Minute},
	{"failsaves", "./test/suite/failonce/saves", "TestStormSaves", 1, 45 * time.Minute},
	{"drymemory", "./test/suite/drymemory", "TestStormDryMemory", 12, 15 * time.Minute},
	{"attachments", "./test/suite/attachments", "TestStormAttachments", 12, 15 * time.Minute},
	{"gateways", "./target/internal/gateway", "TestStormGateways", 200, 15 * time.Minute},
	{"failonce", "./test/suite/failonce", "TestEveryCallFailsOnce", 1, 15 * time.Minute},
}

func main() {
	minutes := flag.Float64("minutes", 10, "how long to run; the run that is under way then ends first")
	seed := flag.Uint64("seed", 1, "where the random choices begin; of no effect where a state file has one")
	only := flag.String("tools", "", "names of tools, separated by commas (default: all)")
	file := flag.String("state", "", "file to go on from and to leave the counts in")
	counts := flag.Bool("counts", false, "print what the state file has counted, and end")
	flag.Parse()
	if *counts {
		st, err := load(*file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "storm:", err)
			os.Exit(1)
		}
		st.print()
		return
	}
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
	st, err := load(file)
	if errors.Is(err, os.ErrNotExist) {
		st, err = newState(seed), nil
	}
	if err != nil {
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
	failed, err := st.again(ctx, chosen, dir)
	if err = errors.Join(err, st.save(file)); err != nil {
		return err
	}
	for begin := time.Now(); time.Since(begin) < long && ctx.Err() == nil; {
		for _, t := range chosen {
			if time.Since(begin) >= long || ctx.Err() != nil {
				break
			}
			ok, err := st.next(t, dir)
			if !ok {
				failed++
			}
			if err := errors.Join(err, st.save(file)); err != nil {
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
