package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Blocks over TCP beside tgt, the target daemon of Debian: libiscsi's iscsi-perf is the client of both, in a process of its own each time. It
// reads only. The processor time is that of the target's process, for a gigabyte (10^9 bytes).
var tgtWorks = []work{
	{false, 4 << 10, 32, 0},
	{false, 128 << 10, 16, 0},
}

// maxTgtCPU is the bar for our processor time a gigabyte at 128 KiB, as a share of tgt's.
const maxTgtCPU = 0.6

// tgtResult is one line of the table.
type tgtResult struct {
	Work      string    `json:"work"`
	Tgt       float64   `json:"tgt_per_second"`
	Sluice    float64   `json:"sluice_per_second"`
	Ratio     float64   `json:"ratio"`
	Rounds    []float64 `json:"round_ratios"`
	TgtCPU    float64   `json:"tgt_cpu_s_per_gb"`
	SluiceCPU float64   `json:"sluice_cpu_s_per_gb"`
	CPURatio  float64   `json:"cpu_ratio"`
	CPURounds []float64 `json:"cpu_round_ratios"`
	CPUBar    float64   `json:"cpu_bar"` // at most
	Machine   machine   `json:"machine"`
	work      work
}

func benchTgt(dir string, o options, report map[string]any) (missed []error, err error) {
	if os.Geteuid() != 0 {
		return []error{errors.New("tgt is not measured: tgtd needs root")}, nil
	}
	if err := tools("the comparison with tgt", map[string]string{"tgtd": "tgt", "iscsi-perf": "libiscsi-bin"}); err != nil {
		return nil, err
	}
	volume, theirs := filepath.Join(dir, "tgt-volume"), filepath.Join(dir, "tgt-theirs")
	for _, p := range []string{volume, theirs} {
		if err := fill(p); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.Remove(p)) }()
	}
	s, err := startSluice(dir, volume, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	g, err := startTgt(dir, theirs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	ours := &perf{strings.Replace(s.url, "iser://", "iscsi://", 1), s.cmd.Process.Pid}
	var results []*tgtResult
	for _, w := range tgtWorks {
		if !strings.Contains(w.String(), o.only) {
			continue
		}
		r := &tgtResult{Work: w.String(), work: w}
		if err := r.measure(&perf{g.url, g.cmd.Process.Pid}, ours, o); err != nil {
			return nil, fmt.Errorf("%s: %w", w, err)
		}
		results = append(results, r)
		if r.CPUBar > 0 && r.CPURatio > r.CPUBar {
			missed = append(missed, fmt.Errorf("TCP, %s: %.2f of the processor time that tgt takes for a gigabyte, %.1f is the bar", r.Work, r.CPURatio, r.CPUBar))
		}
	}
	printTgt(results)
	report["tgt"] = results
	return missed, nil
}

func (r *tgtResult) measure(theirs, ours *perf, o options) error {
	var rates, cpus [2][]float64
	who := []*perf{theirs, ours}
	for range o.rounds {
		err := r.Machine.quiet(func() error {
			for i, p := range who {
				rate, cpu, err := p.run(r.work, o.each)
				if err != nil {
					return err
				}
				rates[i], cpus[i] = append(rates[i], rate), append(cpus[i], cpu)
			}
			return nil
		}, func() {
			for i := range who {
				rates[i], cpus[i] = rates[i][:len(rates[i])-1], cpus[i][:len(cpus[i])-1]
			}
		})
		if err != nil {
			return err
		}
	}
	r.Tgt, r.Sluice, r.Rounds = median(rates[0]), median(rates[1]), ratios(rates[1], rates[0])
	r.Ratio = over(r.Sluice, r.Tgt)
	r.TgtCPU, r.SluiceCPU, r.CPURounds = median(cpus[0]), median(cpus[1]), ratios(cpus[1], cpus[0])
	r.CPURatio = over(r.SluiceCPU, r.TgtCPU)
	if r.work.size == 128<<10 {
		r.CPUBar = maxTgtCPU
	}
	return nil
}

func printTgt(results []*tgtResult) {
	fmt.Println("\nblocks over TCP, iscsi-perf as the client of both: random reads of a cached file")
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "work\ttgt\tSluice\tratio\tCPU s/GB tgt\tSluice\tratio\tat most\tmachine")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%.3f\t%.3f\t%.2f\t%.1f\t%s\n", r.Work, show(r.Tgt, r.work), show(r.Sluice, r.work), r.Ratio, r.TgtCPU, r.SluiceCPU, r.CPURatio, r.CPUBar, r.Machine)
	}
	t.Flush()
}

// perf is iscsi-perf at a target, of whose process the time is counted.
type perf struct {
	url string
	pid int
}

// run returns I/Os a second and seconds of processor time a gigabyte. iscsi-perf knows whole seconds.
func (p *perf) run(w work, d time.Duration) (rate, cpu float64, err error) {
	secs := max(1, int(d.Round(time.Second)/time.Second))
	before := cpuTime(p.pid)
	out, err := child("iscsi-perf", "-r", "-m", strconv.Itoa(w.depth), "-b", strconv.Itoa(w.size/512), "-t", strconv.Itoa(secs), p.url).CombinedOutput()
	took := cpuTime(p.pid) - before
	if err != nil {
		return 0, 0, fmt.Errorf("iscsi-perf: %w: %s", err, out)
	}
	if rate, err = perfRate(string(out)); err != nil {
		return 0, 0, err
	}
	return rate, took.Seconds() / (rate * float64(secs) * float64(w.size) / 1e9), nil
}

var perfAverage = regexp.MustCompile(`iops average (\d+) `)

// perfRate is the last average that iscsi-perf prints.
func perfRate(out string) (float64, error) {
	l := perfAverage.FindAllStringSubmatch(out, -1)
	if len(l) == 0 {
		return 0, fmt.Errorf("iscsi-perf says no rate:\n%s", out)
	}
	rate, err := strconv.ParseFloat(l[len(l)-1][1], 64)
	if err == nil && rate == 0 {
		err = fmt.Errorf("iscsi-perf did nothing:\n%s", out)
	}
	return rate, err
}

// tgt is tgtd with one unit on a file.
type tgt struct {
	*daemonProcess
	url, control string
}

func startTgt(dir, file string) (*tgt, error) {
	at, err := freePort()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll("/var/run/tgtd", 0o755); err != nil {
		return nil, err
	}
	control := fmt.Sprint(1 + at%32000) // tgtd takes no more; distinct nearly as the port is
	p, err := startProcess(filepath.Join(dir, "tgtd.log"), "tgtd", "-f", "-C", control, "--iscsi", fmt.Sprintf("portal=127.0.0.1:%d", at))
	if err != nil {
		return nil, err
	}
	g := &tgt{p, fmt.Sprintf("iscsi://127.0.0.1:%d/%s-tgt/1", at, iqn), control}
	err = waitFor("tcp", fmt.Sprintf("127.0.0.1:%d", at))
	for _, args := range [][]string{
		{"--op", "new", "--mode", "target", "--tid", "1", "-T", iqn + "-tgt"},
		{"--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", file},
		{"--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"},
	} {
		if err != nil {
			break
		}
		var out []byte
		if out, err = exec.Command("tgtadm", append([]string{"-C", control, "--lld", "iscsi"}, args...)...).CombinedOutput(); err != nil {
			err = fmt.Errorf("tgtadm %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (g *tgt) close() error {
	err := g.end()
	for _, f := range []string{"/var/run/tgtd/socket." + g.control, "/var/run/tgtd/socket." + g.control + ".lock"} {
		_ = os.Remove(f) // it may not have come so far
	}
	return err
}

// daemonProcess is a peer's process and what it says.
type daemonProcess struct {
	cmd *exec.Cmd
	log *os.File
}

func startProcess(log, name string, args ...string) (*daemonProcess, error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	p := &daemonProcess{child(name, args...), f}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

func (p *daemonProcess) end() error { return errors.Join(kill(p.cmd), p.log.Close()) }
