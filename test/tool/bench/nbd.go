package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// Bars for fio through our NBD face, which reaches a file volume over iSER, beside the faster of qemu-nbd and nbdkit, which
// have the file before them. Ours has two more processes' worth of copies to make: the fabric's.
var nbdWorks = []work{
	{false, 4 << 10, 32, 0.75},
	{true, 4 << 10, 32, 0.7},
	{false, 128 << 10, 16, 0.65},
	{true, 128 << 10, 16, 0.65},
}

// nbdPeer serves NBD on a unix socket.
type nbdPeer struct {
	name   string
	socket string
	pids   []int
	rates  []float64
	cpu    cpuCount
	end    func() error
}

// nbdResult is one line of the table, for -json too.
type nbdResult struct {
	Work   string             `json:"work"`
	Rates  map[string]float64 `json:"per_second"`
	CPU    map[string]float64 `json:"cpu_us_per_io"`
	Faster string             `json:"faster_peer"`
	Ratio  float64            `json:"ratio"`
	Bar    float64            `json:"bar"`
	Rounds []float64          `json:"round_ratios"`
	work   work
}

func benchNBD(dir string, o options, report map[string]any) (missed []error, err error) {
	if err := tools("the comparison of NBD servers", map[string]string{"fio": "fio", "nbdkit": "nbdkit", "qemu-nbd": "qemu-utils"}); err != nil {
		return nil, err
	}
	volume, direct := filepath.Join(dir, "nbd-volume"), filepath.Join(dir, "nbd-direct")
	for _, p := range []string{volume, direct} {
		if err := fill(p); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.Remove(p)) }()
	}
	var peers []*nbdPeer
	defer func() {
		for _, p := range peers {
			err = errors.Join(err, p.end())
		}
	}()
	for _, start := range []func() (*nbdPeer, error){
		func() (*nbdPeer, error) { return nbdOurs(dir, volume, o) },
		func() (*nbdPeer, error) {
			s := filepath.Join(dir, "nbdkit.sock")
			return nbdProgram("nbdkit", s, "nbdkit", "--foreground", "--unix", s, "file", direct)
		},
		func() (*nbdPeer, error) {
			s := filepath.Join(dir, "qemu.sock")
			return nbdProgram("qemu-nbd", s, "qemu-nbd", "--format=raw", "--persistent", "--shared=16", "--cache=writeback", "--aio=threads", "--socket="+s, direct)
		},
	} {
		p, err := start()
		if err != nil {
			return nil, err
		}
		peers = append(peers, p)
	}
	var results []*nbdResult
	for _, w := range nbdWorks {
		if !strings.Contains(w.String(), o.only) {
			continue
		}
		r, err := measureNBD(dir, w, peers, o)
		if err != nil {
			return nil, fmt.Errorf("NBD, %s: %w", w, err)
		}
		results = append(results, r)
		if r.Ratio < r.Bar {
			missed = append(missed, fmt.Errorf("NBD, %s: %.2f of %s, %.2f is the bar", r.Work, r.Ratio, r.Faster, r.Bar))
		}
	}
	report["nbd"] = results
	printNBD(results, peers)
	return missed, nil
}

// nbdOurs is sluiced and an attachment of its volume: two processes.
func nbdOurs(dir, volume string, o options) (*nbdPeer, error) {
	s, err := startSluice(dir, volume, o)
	if err != nil {
		return nil, err
	}
	p := &nbdPeer{name: "Sluice", socket: filepath.Join(dir, "sluice.sock"), pids: []int{s.cmd.Process.Pid}}
	env := append(os.Environ(), "SLUICE_RUNTIME_DIR="+filepath.Join(dir, "run"))
	sluice := func(args ...string) ([]byte, error) {
		c := exec.Command(o.sluice, args...)
		c.Env = env
		out, err := c.Output()
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			err = fmt.Errorf("sluice %s: %s", args[0], ee.Stderr)
		}
		return out, err
	}
	out, err := sluice("attach", s.url, "--face", "socket", "--socket", p.socket, "--name", "bench", "-o", "json")
	var rec struct{ PID int }
	if err == nil {
		err = json.Unmarshal(out, &rec)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	p.pids = append(p.pids, rec.PID)
	p.end = func() error {
		_, err := sluice("detach", "bench")
		return errors.Join(err, s.close())
	}
	return p, nil
}

func nbdProgram(name, socket string, argv ...string) (*nbdPeer, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	end := func() error {
		err := cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // nbdkit and qemu-nbd differ in what they call a good end
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			return &nbdPeer{name: name, socket: socket, pids: []int{cmd.Process.Pid}, end: end}, c.Close()
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%s does not answer", name), end())
		}
	}
}

// measureNBD lets the peers take turns, so that what else the machine does meets all of them.
func measureNBD(dir string, w work, peers []*nbdPeer, o options) (*nbdResult, error) {
	for _, p := range peers {
		p.rates, p.cpu = nil, cpuCount{}
		if _, err := runFIO(dir, w, p, o.each/2); err != nil { // warm up
			return nil, err
		}
	}
	for range o.rounds {
		for _, p := range peers {
			rate, err := runFIO(dir, w, p, o.each)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			p.rates = append(p.rates, rate)
		}
	}
	r := &nbdResult{Work: w.String(), Bar: w.bar, work: w, Rates: map[string]float64{}, CPU: map[string]float64{}}
	var best *nbdPeer
	for i, p := range peers {
		r.Rates[p.name], r.CPU[p.name] = median(p.rates), p.cpu.perIO()
		if i > 0 && (best == nil || median(p.rates) > median(best.rates)) {
			best = p
		}
	}
	for i, rate := range peers[0].rates {
		r.Rounds = append(r.Rounds, rate/best.rates[i])
	}
	r.Faster, r.Ratio = best.name, median(peers[0].rates)/median(best.rates)
	if o.profile != "" {
		return r, profileNBD(dir, w, peers[0], o)
	}
	return r, nil
}

// runFIO is one fio with one connection.
func runFIO(dir string, w work, p *nbdPeer, d time.Duration) (float64, error) {
	before := p.time()
	rate, n, err := fio(dir, w, volumeSize, d, "--ioengine=nbd", "--uri=nbd+unix:///?socket="+p.socket)
	if err != nil {
		return 0, err
	}
	p.cpu.sum += p.time() - before
	p.cpu.n += n
	return rate, nil
}

// time is what the peer's processes have used.
func (p *nbdPeer) time() time.Duration {
	var d time.Duration
	for _, pid := range p.pids {
		d += cpuTime(pid)
	}
	return d
}

// profileNBD has perf look at the helper's and the daemon's processor time under the load, where perf is.
func profileNBD(dir string, w work, p *nbdPeer, o options) error {
	if _, err := exec.LookPath("perf"); err != nil {
		fmt.Println("no profile of the NBD face: there is no perf")
		return nil
	}
	out := filepath.Join(o.profile, "nbd-"+strings.Join(strings.Fields(w.String()), "-")+".perf")
	perf := exec.Command("perf", "record", "-q", "-g", "-o", out, "-p", fmt.Sprintf("%d,%d", p.pids[0], p.pids[1]), "--", "sleep", "2")
	if err := perf.Start(); err != nil {
		return err
	}
	_, err := runFIO(dir, w, p, 2500*time.Millisecond)
	return errors.Join(err, perf.Wait())
}

func printNBD(results []*nbdResult, peers []*nbdPeer) {
	fmt.Println("fio's NBD engine, one connection: our NBD face over iSER to a file volume, beside servers of the file itself")
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	head, cpus := "work", ""
	for _, p := range peers {
		head, cpus = head+"\t"+p.name, cpus+"\tCPU us/IO "+p.name
	}
	fmt.Fprintln(t, head+"\tratio to the faster\tbar"+cpus)
	for _, r := range results {
		line, cpu := r.Work, ""
		for _, p := range peers {
			line += "\t" + show(r.Rates[p.name], r.work)
			cpu += fmt.Sprintf("\t%.1f", r.CPU[p.name])
		}
		fmt.Fprintf(t, "%s\t%.2f\t%.2f%s\n", line, r.Ratio, r.Bar, cpu)
	}
	_ = t.Flush() // a terminal that is gone wants no table
}
