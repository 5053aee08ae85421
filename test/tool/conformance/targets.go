package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/internal/state"
	"github.com/sluice-storage/sluice/test/lib/port"
)

const iqn = "iqn.2026-11.test.conformance:"

// daemon is a running target and the kinds of volume it serves.
type daemon struct {
	cmd   *exec.Cmd
	done  chan error
	log   string
	kinds []kind
}

func startSluiced(ctx context.Context, dir, binary string) (*daemon, error) {
	if binary == "" {
		binary = filepath.Join(dir, "sluiced")
		out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/sluiced").CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("go build ./cmd/sluiced (run this from the top of the tree): %w\n%s", err, out)
		}
	}
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = port.Free(); err != nil {
			return nil, err
		}
	}
	type vol struct {
		name, options string
		group         int
	}
	vols := []vol{
		{"thin", "engine: file, size: 64MiB, physical: 512, erase: true", 0},
		{"readonly", "engine: file, size: 64MiB, read_only: true, path: readonly.img", 1},
		{"removable", "engine: file, size: 64MiB, removable: true, atomic: true", 1},
		{"block4096", "engine: file, size: 128MiB, block: 4096", 1},
		{"multipath", "engine: file, size: 64MiB", 0},
		// Sanitize.Reset wants to find the overwrite still going on after four seconds.
		{"slow", "engine: delay, delay: 30ms, size: 64MiB, erase: true", 2},
	}
	// The daemon makes no volume's file by itself.
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	for img, size := range map[string]int64{
		filepath.Join(dir, "readonly.img"): 64 << 20, filepath.Join(state, "thin.img"): 64 << 20, filepath.Join(state, "removable.img"): 64 << 20,
		filepath.Join(state, "block4096.img"): 128 << 20, filepath.Join(state, "multipath.img"): 64 << 20,
	} {
		if err := errors.Join(os.WriteFile(img, nil, 0o600), os.Truncate(img, size)); err != nil {
			return nil, err
		}
	}
	d := &daemon{log: filepath.Join(dir, "log")}
	var y strings.Builder
	fmt.Fprintf(&y, "state_dir: %s\nportals:\n", filepath.Join(dir, "state"))
	for i, p := range ports {
		fmt.Fprintf(&y, "  - {address: \"127.0.0.1:%d\", group: %d}\n", p, i+1)
	}
	y.WriteString("volumes:\n")
	for _, v := range vols {
		fmt.Fprintf(&y, "  - {name: %s, %s}\n", v.name, v.options)
	}
	y.WriteString("targets:\n")
	for _, v := range vols {
		fmt.Fprintf(&y, "  - {name: \"%s%s\", luns: [{lun: 0, volume: %s}]}\n", iqn, v.name, v.name)
		k := kind{Name: v.name, group: v.group, URLs: []string{fmt.Sprintf("iscsi://127.0.0.1:%d/%s%s/0", ports[0], iqn, v.name)}}
		if v.name == "multipath" {
			k.URLs = append(k.URLs, fmt.Sprintf("iscsi://127.0.0.1:%d/%s%s/0", ports[1], iqn, v.name))
		}
		if v.name == "slow" {
			k.only = regexp.MustCompile(`^Sanitize\.Reset$`)
		}
		d.kinds = append(d.kinds, k)
	}
	conf := filepath.Join(dir, "sluiced.yaml")
	if err := os.WriteFile(conf, []byte(y.String()), 0o600); err != nil {
		return nil, err
	}
	return d, d.start(ctx, fmt.Sprintf("127.0.0.1:%d", ports[0]), binary, "--config", conf)
}

// start runs the daemon until it listens.
func (d *daemon) start(ctx context.Context, addr, binary string, args ...string) error {
	f, err := os.Create(d.log)
	if err != nil {
		return err
	}
	d.cmd = exec.Command(binary, args...)
	d.cmd.Stdout, d.cmd.Stderr = f, f
	d.cmd.Env = append(os.Environ(), state.Strict+"=1")
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = d.cmd.Start()
	_ = f.Close()
	if err != nil {
		return err
	}
	d.done = make(chan error, 1)
	go func() { d.done <- d.cmd.Wait() }()
	for range 300 {
		if c, err := net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
		select {
		case err := <-d.done:
			return fmt.Errorf("%s ended: %w\n%s", filepath.Base(binary), err, d.tail())
		case <-ctx.Done():
			_ = d.cmd.Process.Kill()
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	_ = d.cmd.Process.Kill()
	return fmt.Errorf("%s does not listen on %s", filepath.Base(binary), addr)
}

// defects fails where the daemon has told of a defect of its own, whatever the tests found.
func (d *daemon) defects() error {
	b, err := os.ReadFile(d.log)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, state.Defect) {
			return errors.New("its log says: " + strings.TrimSpace(line))
		}
	}
	return nil
}

func (d *daemon) tail() string {
	b, _ := os.ReadFile(d.log)
	if len(b) > 4000 {
		b = b[len(b)-4000:]
	}
	return string(b)
}

// stop ends the daemon; one that has died already, or does not end, is an error.
func (d *daemon) stop() error {
	select {
	case err := <-d.done:
		return fmt.Errorf("died during the tests: %w\n%s", err, d.tail())
	default:
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-d.done:
		return err
	case <-time.After(30 * time.Second):
		_ = d.cmd.Process.Kill()
		return errors.New("did not end within 30 seconds of SIGTERM")
	}
}

// scoreTgt runs the tests on one volume of tgt, the target daemon of Debian.
func (o *options) scoreTgt(ctx context.Context, tests []string) (score, error) {
	if os.Geteuid() != 0 {
		return score{}, errors.New("tgtd wants root")
	}
	tgtd, err := exec.LookPath("tgtd")
	if err != nil {
		return score{}, errors.New("tgt is not installed")
	}
	dir, err := os.MkdirTemp("", "sluice-tgt-")
	if err != nil {
		return score{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	at, err := port.Free()
	if err != nil {
		return score{}, err
	}
	img := filepath.Join(dir, "img")
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		return score{}, err
	}
	if err := os.Truncate(img, 64<<20); err != nil {
		return score{}, err
	}
	if err := os.MkdirAll("/var/run/tgtd", 0o755); err != nil {
		return score{}, err
	}
	d := &daemon{log: filepath.Join(dir, "log")}
	control := fmt.Sprint(1 + at%32000) // tgtd takes no more; distinct nearly as the port is
	if err := d.start(ctx, fmt.Sprintf("127.0.0.1:%d", at), tgtd, "-f", "-C", control, "--iscsi", fmt.Sprintf("portal=127.0.0.1:%d", at)); err != nil {
		return score{}, err
	}
	defer func() {
		_ = d.cmd.Process.Kill() // it may have ended by itself
		if err := <-d.done; err != nil {
			_ = err // it was killed: how it ended says nothing
		}
		_ = os.Remove("/var/run/tgtd/socket." + control)
		_ = os.Remove("/var/run/tgtd/socket." + control + ".lock")
	}()
	for _, args := range [][]string{
		{"--op", "new", "--mode", "target", "--tid", "1", "-T", iqn + "tgt"},
		{"--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", img},
		{"--op", "update", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "--params", "thin_provisioning=1"},
		{"--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"},
	} {
		out, err := exec.CommandContext(ctx, "tgtadm", append([]string{"-C", control, "--lld", "iscsi"}, args...)...).CombinedOutput()
		if err != nil {
			return score{}, fmt.Errorf("tgtadm %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	k := kind{Name: "tgt", URLs: []string{fmt.Sprintf("iscsi://127.0.0.1:%d/%stgt/1", at, iqn)}}
	short := *o
	short.timeout = min(o.timeout, 10*time.Second)
	s, _ := tally("tgt", short.runAll(ctx, []kind{k}, tests), tests)
	return s, nil
}
