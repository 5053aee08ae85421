package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/internal/state"
	"github.com/sluice-storage/sluice/test/lib/port"
)

// process is a program on the host that runs beside the guest.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait, valid after done
}

// start runs one of the binaries under test, or another by its whole path; its output is appended to NAME.txt among the logs. It ends with the scenario.
func (r *Run) start(name string, args ...string) (*process, error) {
	path := filepath.Join(r.lab.bin, name)
	if filepath.IsAbs(name) {
		path = name
	}
	out, err := os.OpenFile(filepath.Join(r.Dir, filepath.Base(name)+".txt"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = strict()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	r.Defer(p.kill)
	return p, nil
}

// kill is SIGKILL; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop is SIGTERM, and an error when the process ends badly or not at all.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(30 * time.Second):
		p.kill()
		return errors.New("no end 30 s after SIGTERM")
	}
}

// alive reports whether the process still runs.
func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// exec runs one of the binaries under test to its end and returns what it printed.
func (r *Run) exec(name string, args ...string) (string, error) {
	return r.tool(filepath.Join(r.lab.bin, name), args...)
}

// tool runs a program of the host's.
func (r *Run) tool(name string, args ...string) (string, error) {
	c := command(r.Ctx, name, args...)
	out, err := c.CombinedOutput()
	text := fmt.Sprintf("$ %s %s\n%s", filepath.Base(name), strings.Join(args, " "), out)
	if err != nil {
		return text, fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return text, nil
}

// command finds programs in the sbin directories too, which an ordinary user's PATH leaves out.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if _, err := exec.LookPath(name); err != nil {
		for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
			if p, err := exec.LookPath(dir + name); err == nil {
				name = p
				break
			}
		}
	}
	c := exec.CommandContext(ctx, name, args...)
	c.Env = strict()
	return c
}

// strict is the environment of programs under test: an illegal move of internal/state ends them.
func strict() []string { return append(os.Environ(), state.Strict+"=1") }

// freePort returns a TCP port of the loopback that nobody listens on.
func freePort() (int, error) {
	return port.Free()
}

var errEnded = errors.New("the program is gone")

// listening waits until something listens on the port of the loopback. It asks the kernel's table and does not
// connect: a connection would be one the program under test did not expect.
func (p *process) listening(port int) error {
	want := fmt.Sprintf(":%04X 00000000:0000 0A ", port)
	want6 := fmt.Sprintf(":%04X 00000000000000000000000000000000:0000 0A ", port)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			b, err := os.ReadFile(f)
			if err == nil && (strings.Contains(string(b), want) || strings.Contains(string(b), want6)) {
				return nil
			}
		}
		if !p.alive() {
			return fmt.Errorf("%s ended: %w", filepath.Base(p.cmd.Path), errors.Join(errEnded, p.err))
		}
	}
	return fmt.Errorf("%s does not listen on port %d", filepath.Base(p.cmd.Path), port)
}

// loopback is the address of a port there.
func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
