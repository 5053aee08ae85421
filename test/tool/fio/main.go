// Command fio runs the job files of configs/fio against one volume in every way that a program on this machine can reach
// it: fio's own NBD client on the socket, and the file that FUSE shows, both over iSER to a sluiced of ours. It leaves one
// report, dist/fio/report.md and report.json, and what fio itself wrote beside it. The lab's scenario "fio" makes the
// same report of the kernel's iSER and NFS over RDMA.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/test/lib/fioreport"
)

const iqn = "iqn.2026-11.io.sluice:fio"

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "where sluiced and sluice are")
	flag.StringVar(&o.out, "o", "dist/fio", "where the report goes")
	flag.StringVar(&o.size, "size", "128m", "size of the region worked on")
	flag.StringVar(&o.runtime, "runtime", "2s", "length of one measurement")
	flag.StringVar(&o.jobs, "jobs", "random-4k,sequential-128k,sequential-1m,mixed-70-30,sync-writes,verify", "job files of configs/fio")
	flag.StringVar(&o.places, "places", "socket,file", "socket (NBD), file (FUSE)")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "fio:", err)
		os.Exit(1)
	}
}

type options struct{ bin, out, size, runtime, jobs, places string }

// place is a face of the volume.
type place struct{ name, title, env, engine string }

var places = map[string]place{
	"socket": {"socket", "NBD socket over iSER (engine nbd)", "SOCKET", ""},
	"file":   {"file", "FUSE file over iSER (engine libaio, past the page cache)", "DEVICE", "libaio"},
}

func run(ctx context.Context, o options) (err error) {
	if _, err := exec.LookPath("fio"); err != nil {
		return fmt.Errorf("%w; install Debian's package fio", err)
	}
	dir, err := os.MkdirTemp("", "fio")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := errors.Join(os.RemoveAll(o.out), os.MkdirAll(o.out, 0o755)); err != nil {
		return err
	}
	machine := fioreport.Machine(runtime.NumCPU())
	addr, stop, err := serve(o.bin, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	names := map[string]string{}
	var order []string
	for _, p := range strings.Split(o.places, ",") {
		pl, ok := places[p]
		if !ok {
			return fmt.Errorf("-places %q is none of socket, file", p)
		}
		if err := measure(ctx, o, dir, addr, pl); err != nil {
			return fmt.Errorf("%s: %w", pl.title, err)
		}
		names[p] = pl.title
		order = append(order, p)
	}
	results, err := fioreport.ParseDir(o.out, order, names)
	if err != nil {
		return err
	}
	r := fioreport.Report{Title: "fio through the faces of a volume", When: time.Now(), Machine: machine, Results: results, Notes: []string{
		"One sluiced with a file volume of 256 MiB in the page cache, reached over iSER on loopback (CRC off there, as fabric.crc: on has it) by sluice attach. " +
			"Job files: configs/fio, SIZE=" + o.size + ", RUNTIME=" + o.runtime + ". Latencies are fio's completion latencies. Machines are noisy: compare within one report."}}
	if err := r.Write(o.out); err != nil {
		return err
	}
	r.Print()
	fmt.Printf("report: %s\n", filepath.Join(o.out, "report.md"))
	return r.Check()
}

// serve starts sluiced with one volume.
func serve(bin, dir string) (addr string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	if err := l.Close(); err != nil {
		return "", nil, err
	}
	conf := filepath.Join(dir, "sluiced.yaml")
	text := fmt.Sprintf("state_dir: %s\nlog: {level: warn}\nportals: [{address: %q}]\nvolumes: [{name: v, size: 256MiB}]\ntargets: [{name: %q, luns: [{lun: 0, volume: v}]}]\ntimeouts: {drain: 1s}\n", dir, addr, iqn)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return "", nil, err
	}
	img := filepath.Join(dir, "v.img") // the daemon makes no volume's file by itself
	if err := errors.Join(os.WriteFile(img, nil, 0o600), os.Truncate(img, 256<<20)); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(filepath.Join(bin, "sluiced"), "--config", conf)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("%w; make build makes it", err)
	}
	stop = func() error {
		return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			return addr, stop, c.Close()
		}
		if time.Now().After(deadline) {
			return "", nil, errors.Join(errors.New("sluiced does not answer"), stop())
		}
	}
}

// measure attaches the volume and runs the jobs on it.
func measure(ctx context.Context, o options, dir, addr string, p place) (err error) {
	sluice := func(args ...string) (string, error) {
		// Also after an interrupt: an attachment is not left behind.
		c := exec.Command(filepath.Join(o.bin, "sluice"), args...)
		c.Env = append(os.Environ(), "SLUICE_RUNTIME_DIR="+filepath.Join(dir, "run"))
		out, err := c.Output()
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			err = fmt.Errorf("sluice %s: %s", args[0], strings.TrimSpace(string(ee.Stderr)))
		}
		return strings.TrimSpace(string(out)), err
	}
	path, err := sluice("attach", "iser://"+addr+"/"+iqn+"/0", "--face", p.name, "--name", p.name)
	if err != nil {
		return err
	}
	defer func() {
		_, derr := sluice("detach", p.name)
		err = errors.Join(err, derr)
	}()
	out, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}
	for _, job := range strings.Split(o.jobs, ",") {
		file := filepath.Join(out, p.name+"."+job+".json")
		fmt.Printf("%s: %s\n", p.name, job)
		c := exec.CommandContext(ctx, "configs/fio/run", job, "--", "--output-format=json", "--output="+file)
		c.Env = append(os.Environ(), p.env+"="+path, "SIZE="+o.size, "RUNTIME="+o.runtime)
		if p.engine != "" {
			c.Env = append(c.Env, "ENGINE="+p.engine)
		}
		if said, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", job, err, said)
		}
	}
	return nil
}
