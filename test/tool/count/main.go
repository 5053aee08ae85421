// Command count runs a `go test` command line with -json added, shows packages and failures as people want to read
// them, and ends with one line of counts. A run in which no test ran fails.
//
//	count [-again FILE] -- go test [flags] packages
//
// A test that FILE names with the cause of its unsteadiness is done once more, alone, where it fails; every other failure is one.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sort"
	"strings"
	"time"
)

// event is one line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

func main() {
	again := flag.String("again", "", "file of tests that may be done twice")
	flag.Parse()
	args := flag.Args()
	if len(args) < 2 || args[1] != "test" {
		fmt.Fprintln(os.Stderr, "count: usage: count [-again FILE] -- go test [flags] packages")
		os.Exit(2)
	}
	causes, err := readCauses(*again)
	if err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(2)
	}
	os.Exit(run(args, causes))
}

func run(args []string, causes causes) int {
	start := time.Now()
	c, err := goTest(args)
	if err != nil && c.passed > 0 {
		err = c.again(args, causes, err)
	}
	c.report(time.Since(start))
	if err != nil || c.failed > 0 || c.passed == 0 {
		return 1
	}
	return 0
}

// goTest runs the command line and counts what it says.
func goTest(args []string) (*counter, error) {
	c := newCounter()
	argv := append([]string{"test", "-json"}, args[2:]...)
	cmd := exec.Command(args[0], argv...) //nolint:gosec // the command line is the Makefile's
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return c, err
	}
	if err := cmd.Start(); err != nil {
		return c, err
	}
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			c.line(line)
		}
		if err != nil {
			break
		}
	}
	return c, cmd.Wait()
}

type counter struct {
	passed, failed, skipped int
	output                  map[string][]string // by package and test, dropped when it passes
	skips, fails            []string
	tests                   []failure // that failed as a whole
	broken                  bool      // a package failed otherwise: it did not build, or its process died
}

func newCounter() *counter { return &counter{output: map[string][]string{}} }

func (c *counter) line(b []byte) {
	var e event
	if json.Unmarshal(b, &e) != nil {
		fmt.Print(string(b)) // a build error, in go's own words
		return
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		if e.Action == "build-output" {
			fmt.Print(e.Output)
			return
		}
		if len(c.output[key]) < 2000 {
			c.output[key] = append(c.output[key], e.Output)
		}
	case "pass", "fail", "skip":
		c.end(e, key)
	}
}

func (c *counter) end(e event, key string) {
	if e.Test == "" {
		if e.Action != "skip" {
			fmt.Printf("%-4s %s %.1fs\n", e.Action, e.Package, e.Elapsed)
		}
		if e.Action == "fail" {
			c.fails = append(c.fails, e.Package)
			died := c.unfinished(e.Package)
			c.broken = c.broken || died || !slices.ContainsFunc(c.tests, func(f failure) bool { return f.pkg == e.Package })
		}
		delete(c.output, key)
		return
	}
	switch e.Action {
	case "pass":
		c.passed++
	case "fail":
		c.failed++
		c.fails = append(c.fails, key)
		if !strings.Contains(e.Test, "/") {
			c.tests = append(c.tests, failure{e.Package, e.Test})
		}
		fmt.Printf("FAIL %s\n%s", key, strings.Join(c.output[key], ""))
	case "skip":
		c.skipped++
		c.skips = append(c.skips, key+": "+strings.TrimSpace(strings.Join(c.output[key], " ")))
	}
	delete(c.output, key)
}

// unfinished prints what a package's tests said that never ended, the traces of a process that timed out or died, and reports
// whether there are such.
func (c *counter) unfinished(pkg string) (any bool) {
	for key, out := range c.output {
		if strings.HasPrefix(key, pkg+" ") {
			any = any || key != pkg+" "
			fmt.Print(strings.Join(out, ""))
			delete(c.output, key)
		}
	}
	return any
}

func (c *counter) report(d time.Duration) {
	sort.Strings(c.skips)
	for _, s := range c.skips {
		fmt.Println("skipped:", s)
	}
	for _, f := range c.fails {
		fmt.Println("failed:", f)
	}
	fmt.Printf("in %s\n%d passed, %d failed, %d skipped\n", d.Round(time.Second), c.passed, c.failed, c.skipped)
}
