// Command fuzz runs every fuzz target of the module for a while and prints how many there were. A target that finds
// something leaves its input under testdata/fuzz of its package, and the command fails.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

var (
	each = flag.Duration("time", 5*time.Second, "how long each target runs")
	only = flag.String("run", "", "only targets whose package or name matches this expression")
)

type target struct{ pkg, name string }

func main() {
	flag.Parse()
	targets, err := list()
	if err != nil || len(targets) == 0 {
		fmt.Fprintf(os.Stderr, "fuzz: %d targets found, %v\n", len(targets), err)
		os.Exit(1)
	}
	failed := 0
	for i, t := range targets {
		start := time.Now()
		out, err := run(t)
		state := "ok"
		if err != nil {
			state, failed = "FAIL", failed+1
		}
		fmt.Printf("%3d/%d %-4s %-40s %s %.0fs\n", i+1, len(targets), state, t.name, t.pkg, time.Since(start).Seconds())
		if err != nil {
			fmt.Println(tail(out, 6000))
		}
	}
	fmt.Printf("fuzz: %d passed, %d failed\n", len(targets)-failed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

// list finds the targets by their declarations: `go test -list` would link every package of the module for nothing.
func list() ([]target, error) {
	out, err := exec.Command("git", "grep", "-nE", `^func Fuzz[A-Za-z0-9_]*\(`, "--", "*_test.go").Output()
	if err != nil {
		return nil, fmt.Errorf("git grep: %w", err)
	}
	re := regexp.MustCompile(`^(.*)/[^/]*_test\.go:\d+:func (Fuzz\w*)\(`)
	want, err := regexp.Compile(*only)
	if err != nil {
		return nil, err
	}
	var ts []target
	for _, l := range strings.Split(string(out), "\n") {
		if m := re.FindStringSubmatch(l); m != nil && want.MatchString("./"+m[1]+" "+m[2]) {
			ts = append(ts, target{pkg: "./" + m[1], name: m[2]})
		}
	}
	return ts, nil
}

// run fuzzes one target. The engine sometimes reports its own deadline as an error ("context deadline exceeded" with
// no failing input); that is no finding.
func run(t target) ([]byte, error) {
	cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), "-timeout", (*each + 10*time.Minute).String(), "-parallel", "2", t.pkg) //nolint:gosec // names come from the tree
	out, err := cmd.CombinedOutput()
	if err != nil && onlyDeadline(out) {
		err = nil
	}
	return out, err
}

// harmless are the lines of a run whose only fault is the engine's own deadline.
var harmless = regexp.MustCompile(`^(fuzz: .*|--- FAIL: Fuzz\w+ \([0-9.]+s\)|\s*context deadline exceeded|FAIL|FAIL\t.*|exit status 1|)$`)

// onlyDeadline reports that the engine's deadline is all that a run complains of. A panic, a race, a failing input or any
// other word beside it is a finding.
func onlyDeadline(out []byte) bool {
	seen := false
	for l := range bytes.Lines(out) {
		l = bytes.TrimRight(l, "\r\n")
		if !harmless.Match(l) {
			return false
		}
		seen = seen || bytes.Contains(l, []byte("context deadline exceeded"))
	}
	return seen
}

func tail(b []byte, n int) string {
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return string(b)
}
