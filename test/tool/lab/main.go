// Command lab runs the kernel lab: a stock Debian kernel in QEMU, without KVM, uses Sluice through its own RDMA
// drivers, and Sluice's initiator uses the kernel's own targets. README.md says how to add a scenario.
//
//	go run ./test/tool/lab [-list] [-class gate|short|long|soak|reference|every|all] [-scenario NAME[,NAME]] [-o DIR]
//	go run ./test/tool/lab -script FILE [ARG...]
//
// The exit status is 0 when every scenario passed, 1 when one did not, 2 for a mistake in the call.
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
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

type options struct {
	class, names, out, script, second, kernel string
	list, build, systemd, verbs               bool
	jobs                                      int
}

func run(ctx context.Context, args []string) int {
	var o options
	fs := flag.NewFlagSet("lab", flag.ContinueOnError)
	fs.BoolVar(&o.list, "list", false, "list the scenarios and stop")
	fs.BoolVar(&o.build, "build", false, "build the guest and stop")
	fs.StringVar(&o.class, "class", every, "gate (short, and two of the long ones in turn), short, long (what takes minutes), every (both), soak (more of the same), reference (kernel against kernel) or all")
	fs.StringVar(&o.names, "scenario", "", "run only these scenarios, comma separated, and keep a pcap")
	fs.StringVar(&o.script, "script", "", "run this script instead, in a guest with all binaries in /lab/files; the other arguments are its own")
	fs.StringVar(&o.second, "second", "", "with -script: the script of a second guest at the other end of a wire")
	fs.BoolVar(&o.verbs, "verbs", false, "with -script: binaries with the verbs provider, and its suite")
	fs.StringVar(&o.kernel, "kernel", "", "with -script: the kernel, e.g. 6.12 (default: the stock one)")
	fs.BoolVar(&o.systemd, "systemd", false, "with -script: the guest boots with systemd")
	fs.IntVar(&o.jobs, "j", 2, "guests at a time")
	fs.StringVar(&o.out, "o", "", "directory of the logs (default dist/lab)")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	chosen, err := choose(ctx, scenarios, o.class, o.names)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 2
	}
	if o.script != "" {
		files := []string{"sluice", "sluiced", "exchange", "logreplay", "fsx"}
		if o.verbs {
			files = append(files, "verbs.test")
		}
		chosen = []Scenario{{Name: "script", About: o.script, Script: o.script, Second: o.second, Limit: 10 * time.Minute, Kernel: o.kernel, Systemd: o.systemd,
			Files: files, Verbs: o.verbs, Prepare: func(r *Run) error { r.Args = fs.Args(); return nil }}}
	}
	if o.list {
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		for _, s := range chosen {
			fmt.Fprintf(w, "%s\t%s\t%s\n", s.Name, s.Class, s.About)
		}
		_ = w.Flush()
		return 0
	}
	l, err := newLab(ctx, o, chosen)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	if o.build {
		return 0
	}
	return l.runAll(ctx, chosen, max(o.jobs, 1))
}

// choose returns the scenarios of a class, or those named, in the registry's order.
func choose(ctx context.Context, all []Scenario, class, names string) ([]Scenario, error) {
	var got []Scenario
	if names != "" {
		for _, n := range strings.Split(names, ",") {
			i := find(all, n)
			if i < 0 {
				return nil, fmt.Errorf("there is no scenario %q; -list -class all names them", n)
			}
			got = append(got, all[i])
		}
		return got, nil
	}
	switch class {
	case gated:
		return chooseGate(ctx, all)
	case short, long, soak, reference, every, "all":
	default:
		return nil, fmt.Errorf("there is no class %q: gate, short, long, every, soak, reference or all", class)
	}
	for _, s := range all {
		if class == "all" || s.Class == class || class == every && (s.Class == short || s.Class == long) {
			got = append(got, s)
		}
	}
	return got, nil
}

func find(all []Scenario, name string) int {
	for i := range all {
		if all[i].Name == name {
			return i
		}
	}
	return -1
}

// lab is what all scenarios of one call share.
type lab struct {
	top   string // the source tree
	src   string // test/tool/lab in it
	cache string // where the guest is kept
	bin   string // the binaries under test
	out   string // one directory a scenario
	pcap  bool
}

func newLab(ctx context.Context, o options, chosen []Scenario) (*lab, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module's root: %w", err)
	}
	top := strings.TrimSpace(string(root))
	l := &lab{top: top, src: filepath.Join(top, "test/tool/lab"), out: o.out, pcap: o.names != "" || o.script != ""}
	if l.cache, err = cacheDir(); err != nil {
		return nil, err
	}
	if l.out == "" {
		l.out = filepath.Join(top, "dist/lab")
	}
	if l.out, err = filepath.Abs(l.out); err != nil {
		return nil, err
	}
	for _, k := range kernels(chosen) {
		build := exec.CommandContext(ctx, filepath.Join(l.src, "guest/build.sh"))
		build.Env = append(os.Environ(), "LAB_CACHE="+l.cache, "LAB_KERNEL="+k)
		build.Stdout, build.Stderr = os.Stdout, os.Stderr
		if err := build.Run(); err != nil {
			return nil, fmt.Errorf("build the guest with kernel %s: %w", k, err)
		}
	}
	if o.build {
		return l, nil
	}
	return l, l.build(ctx, top, chosen)
}

// kernels are those that the scenarios run on.
func kernels(chosen []Scenario) []string {
	var got []string
	for _, s := range chosen {
		if k := s.kernel(); !slices.Contains(got, k) {
			got = append(got, k)
		}
	}
	return got
}

func cacheDir() (string, error) {
	if d := os.Getenv("LAB_CACHE"); d != "" {
		return filepath.Abs(d)
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory: %w; set LAB_CACHE", err)
	}
	return filepath.Join(d, "sluice-lab"), nil
}

type result struct {
	name    string
	err     error
	elapsed time.Duration
	cpu     time.Duration // of the guest's emulator: what a scenario costs on a busy machine
}

func (l *lab) runAll(ctx context.Context, chosen []Scenario, jobs int) int {
	begin := time.Now()
	results := make([]result, len(chosen))
	slots := make(chan struct{}, jobs)
	var wg sync.WaitGroup
	for i := range chosen {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			s := &chosen[i]
			fmt.Printf("lab: %s begins (%d of %d): %s\n", s.Name, i+1, len(chosen), s.About)
			t0 := time.Now()
			cpu, err := l.runOne(ctx, s)
			results[i] = result{s.Name, err, time.Since(t0), cpu}
			if err != nil {
				fmt.Printf("lab: %s FAILED: %v\n     logs in %s\n", s.Name, err, filepath.Join(l.out, s.Name))
			} else {
				fmt.Printf("lab: %s ok in %.1f s\n", s.Name, results[i].elapsed.Seconds())
			}
		})
	}
	wg.Wait()
	results = slices.DeleteFunc(results, func(r result) bool { return r.name == "" })
	return report(results, len(chosen), time.Since(begin))
}

func report(results []result, wanted int, all time.Duration) int {
	bad := 0
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "\nscenario\tresult\tseconds\tCPU seconds\n")
	for _, r := range results {
		verdict := "ok"
		if r.err != nil {
			verdict, bad = "FAILED", bad+1
			if errors.Is(r.err, errKernel) {
				verdict = "KERNEL COMPLAINS"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.1f\n", r.name, verdict, r.elapsed.Seconds(), r.cpu.Seconds())
	}
	_ = w.Flush()
	fmt.Printf("%d of %d scenarios passed in %.0f s\n", len(results)-bad, wanted, all.Seconds())
	if bad > 0 || len(results) < wanted {
		return 1
	}
	return 0
}
