// Command conformance runs every SCSI and iSCSI test of libiscsi's iscsi-test-cu against sluiced, one process a test,
// over volumes of several kinds, and judges the outcome: no failure, no hang, and exactly the skips that skips.txt
// explains. For the record it runs the same tests against tgt, where that is installed.
//
//	go run ./test/tool/conformance            # a summary
//	go run ./test/tool/conformance --output json
package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed skips.txt
var skipList string

// outcome of one test on one kind of volume.
type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	skipped outcome = "skip"
	hung    outcome = "hang"
)

// kind is one sort of volume that the tests run over.
type kind struct {
	Name string   `json:"name"`
	URLs []string `json:"urls"`
	// group: kinds of one group run one after the other, groups beside each other.
	group int
	// only restricts the kind to some tests.
	only *regexp.Regexp
}

type result struct {
	Kind    string  `json:"kind"`
	Test    string  `json:"test"`
	Outcome outcome `json:"outcome"`
	Seconds float64 `json:"seconds"`
	Output  string  `json:"output,omitempty"` // of what did not pass
}

type score struct {
	Target string `json:"target"`
	Tests  int    `json:"tests"` // distinct ones
	Pass   int    `json:"pass"`  // passed somewhere and failed nowhere
	Fail   int    `json:"fail"`
	Skip   int    `json:"skip"` // skipped on every kind
	Hang   int    `json:"hang"`
}

func (s score) String() string {
	return fmt.Sprintf("%-8s %d tests: %d pass, %d fail, %d skip, %d hang", s.Target, s.Tests, s.Pass, s.Fail, s.Skip, s.Hang)
}

type report struct {
	Scores  []score  `json:"scores"`
	Results []result `json:"results"`
	Errors  []string `json:"errors,omitempty"`
}

func main() {
	var o options
	flag.StringVar(&o.daemon, "sluiced", "", "sluiced binary; built from this tree when empty")
	flag.StringVar(&o.run, "run", "", "only tests that match this regular expression")
	flag.StringVar(&o.kinds, "kinds", "", "only these kinds of volume, comma-separated")
	flag.StringVar(&o.output, "output", "text", "text or json")
	flag.DurationVar(&o.timeout, "timeout", 100*time.Second, "for one test")
	flag.BoolVar(&o.tgt, "tgt", true, "run tgt too, for the record")
	flag.BoolVar(&o.verbose, "v", false, "say every result")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.conform(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		stop()
		os.Exit(1)
	}
}

type options struct {
	daemon, run, output string
	kinds               string
	timeout             time.Duration
	tgt, verbose        bool
	except              []exception
}

// exception is a kind of volume that some tests are not run on.
type exception struct {
	kind  string
	tests *regexp.Regexp
}

func (o *options) excepted(kind, test string) bool {
	return slices.ContainsFunc(o.except, func(e exception) bool { return e.kind == kind && e.tests.MatchString(test) })
}

func (o *options) conform(ctx context.Context) error {
	if _, err := exec.LookPath("iscsi-test-cu"); err != nil {
		return errors.New("iscsi-test-cu is missing: apt-get install libiscsi-bin")
	}
	tests, err := listTests(ctx, o.run)
	if err != nil {
		return err
	}
	expected, except, err := parseSkips(skipList)
	if err != nil {
		return err
	}
	o.except = except
	dir, err := os.MkdirTemp("", "sluice-conformance-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	d, err := startSluiced(ctx, dir, o.daemon)
	if err != nil {
		return err
	}
	if o.kinds != "" {
		only := strings.Split(o.kinds, ",")
		d.kinds = slices.DeleteFunc(d.kinds, func(k kind) bool { return !slices.Contains(only, k.Name) })
	}
	var tgt score
	var tgtErr error
	var beside sync.WaitGroup
	if o.tgt {
		// Beside the rest: its hangs would be waited for alone.
		beside.Go(func() { tgt, tgtErr = o.scoreTgt(ctx, tests) })
	}
	rep := report{Results: o.runAll(ctx, d.kinds, tests)}
	beside.Wait()
	for _, err := range []error{d.stop(), d.defects()} {
		if err != nil {
			rep.Errors = append(rep.Errors, "sluiced: "+err.Error())
		}
	}
	sum, per := tally("sluiced", rep.Results, tests)
	rep.Scores = append(rep.Scores, sum)
	rep.Errors = append(rep.Errors, judge(per, expected, tests)...)
	if o.tgt && tgtErr != nil {
		fmt.Fprintln(os.Stderr, "conformance: tgt not measured:", tgtErr)
	} else if o.tgt {
		rep.Scores = append(rep.Scores, tgt)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return o.print(&rep)
}

func (o *options) print(rep *report) error {
	if o.output == "json" {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(rep); err != nil {
			return err
		}
	} else {
		for _, r := range rep.Results {
			if r.Outcome == failed || r.Outcome == hung {
				fmt.Printf("--- %s %s on %s\n%s\n", strings.ToUpper(string(r.Outcome)), r.Test, r.Kind, indent(r.Output))
			}
		}
		for _, e := range rep.Errors {
			fmt.Println("ERROR:", e)
		}
		for _, s := range rep.Scores {
			fmt.Println(s)
		}
	}
	if n := len(rep.Errors); n > 0 {
		return fmt.Errorf("%d findings", n)
	}
	return nil
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ")
}

// listTests asks the suite for its tests, those of family ALL.
func listTests(ctx context.Context, match string) ([]string, error) {
	re, err := regexp.Compile(match)
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "iscsi-test-cu", "--list").CombinedOutput()
	if len(out) == 0 && err != nil {
		return nil, err
	}
	var tests []string
	for line := range strings.Lines(string(out)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "ALL.")
		if ok && strings.Contains(name, ".") && re.MatchString(name) {
			tests = append(tests, name)
		}
	}
	if len(tests) == 0 {
		return nil, errors.New("no test matches")
	}
	return tests, nil
}

// runAll runs every test over every kind, the groups beside each other.
func (o *options) runAll(ctx context.Context, kinds []kind, tests []string) []result {
	var mu sync.Mutex
	var all []result
	var wg sync.WaitGroup
	groups := map[int][]kind{}
	for _, k := range kinds {
		groups[k.group] = append(groups[k.group], k)
	}
	for _, group := range groups {
		wg.Go(func() {
			for _, k := range group {
				for _, t := range tests {
					if ctx.Err() != nil {
						return
					}
					if o.excepted(k.Name, t) || k.only != nil && !k.only.MatchString(t) {
						continue
					}
					r := o.runOne(ctx, k, t)
					mu.Lock()
					all = append(all, r)
					if o.verbose {
						fmt.Fprintf(os.Stderr, "%-4s %-10s %s (%.2fs)\n", r.Outcome, r.Kind, r.Test, r.Seconds)
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	slices.SortStableFunc(all, func(a, b result) int {
		return strings.Compare(a.Kind+" "+a.Test, b.Kind+" "+b.Test)
	})
	return all
}

func (o *options) runOne(ctx context.Context, k kind, test string) result {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	args := append([]string{"--dataloss", "--allow-sanitize", "--ignore", "--verbose", "--test=ALL." + test}, k.URLs...)
	cmd := exec.CommandContext(ctx, "iscsi-test-cu", args...)
	cmd.WaitDelay = time.Second
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	r := result{Kind: k.Name, Test: test, Seconds: time.Since(begin).Seconds(), Outcome: passed}
	text := string(out)
	// The judge is CUnit: what a test prints between attempts, to clear a unit attention for example, decides nothing.
	tests := summary.FindStringSubmatch(text)
	switch {
	case ctx.Err() != nil:
		r.Outcome = hung
	case err != nil, tests == nil, tests[1] != "0":
		r.Outcome = failed
	case onlySkips(text):
		r.Outcome = skipped
	}
	if r.Outcome != passed {
		r.Output = text
		if err != nil {
			r.Output += err.Error()
		}
	}
	return r
}

// summary finds the number of failed tests in CUnit's summary: total, ran, passed, failed, inactive.
var summary = regexp.MustCompile(`(?m)^\s*tests\s+\d+\s+1\s+\d+\s+(\d+)\s`)

// onlySkips reports whether a test asserted nothing but that it is skipped: one that skips a detail and checks the rest
// has been run.
func onlySkips(text string) bool {
	skips := strings.Count(text, "[SKIPPED]")
	if skips == 0 {
		return false
	}
	m := asserts.FindStringSubmatch(text)
	if m == nil {
		return true
	}
	n, err := strconv.Atoi(m[1])
	return err != nil || n <= skips
}

var asserts = regexp.MustCompile(`(?m)^\s*asserts\s+(\d+)\s`)

// tally sums up: a test fails if it fails anywhere and is skipped if it is skipped everywhere.
func tally(name string, results []result, tests []string) (score, map[string]outcome) {
	per := map[string]outcome{}
	rank := map[outcome]int{"": 0, skipped: 1, passed: 2, failed: 3, hung: 4}
	for _, r := range results {
		if rank[r.Outcome] > rank[per[r.Test]] {
			per[r.Test] = r.Outcome
		}
	}
	s := score{Target: name, Tests: len(tests)}
	for _, o := range per {
		switch o {
		case passed:
			s.Pass++
		case failed:
			s.Fail++
		case skipped:
			s.Skip++
		case hung:
			s.Hang++
		}
	}
	return s, per
}

// expectation is a line of skips.txt.
type expectation struct {
	outcome outcome
	reason  string
}

// parseSkips reads lines "skip Test.Name reason", "fail Test.Name reason" and "except kind regexp reason"; # begins a
// comment.
func parseSkips(text string) (map[string]expectation, []exception, error) {
	m, except := map[string]expectation{}, []exception(nil)
	s := bufio.NewScanner(strings.NewReader(text))
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		if len(f) > 3 && f[0] == "except" {
			re, err := regexp.Compile("^(" + f[2] + ")$")
			if err != nil {
				return nil, nil, fmt.Errorf("skips.txt:%d: %w", n, err)
			}
			except = append(except, exception{f[1], re})
			continue
		}
		if len(f) < 3 || f[0] != string(skipped) && f[0] != string(failed) || m[f[1]].reason != "" {
			return nil, nil, fmt.Errorf("skips.txt:%d: want \"skip|fail Test.Name reason\", each test once", n)
		}
		m[f[1]] = expectation{outcome(f[0]), strings.Join(f[2:], " ")}
	}
	return m, except, s.Err()
}

// judge compares what happened with what skips.txt expects.
func judge(per map[string]outcome, expected map[string]expectation, tests []string) []string {
	var errs []string
	for _, t := range tests {
		got, want := per[t], expected[t]
		switch {
		case got == passed && want.reason != "":
			errs = append(errs, fmt.Sprintf("%s passes: take it off skips.txt", t))
		case got == passed, got == want.outcome:
		case got == skipped:
			errs = append(errs, fmt.Sprintf("%s is skipped on every kind of volume and not in skips.txt", t))
		default:
			errs = append(errs, fmt.Sprintf("%s: %s", t, got))
		}
	}
	return errs
}
