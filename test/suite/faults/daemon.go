package faults

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Names of what the daemon serves.
const (
	TargetName = "iqn.2026-11.io.sluice:faults"

	goodLUN   = 0
	victimLUN = 1
	fullLUN   = 2
	memoryLUN = 3

	goodSize   = 64 << 20
	victimSize = 64 << 20
	fullSize   = 64 << 20 // on a file system of fullRoom
	fullRoom   = 4 << 20
	memorySize = 1 << 20 // in the daemon's memory

	// poolSize is the daemon's `memory`: what data of all sessions together may take.
	poolSize = 96 << 20
	// RSSBound is what the process may take above the pool: code, heap, stacks and page tables of a Go program with a
	// hundred connections. It is far below what any length that a peer can name would cost.
	RSSBound = poolSize + 160<<20
)

// Daemon is a sluiced process.
type Daemon struct {
	Rig  Rig
	cmd  *exec.Cmd
	log  logBuffer
	done chan struct{}
	err  error
}

// logBuffer keeps the end of what the daemon prints.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() > 1<<20 {
		l.b.Next(l.b.Len() / 2)
	}
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Build compiles sluiced into dir.
func Build(dir string) (string, error) {
	bin := filepath.Join(dir, "sluiced")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/sluice-storage/sluice/cmd/sluiced").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build sluiced: %w\n%s", err, out)
	}
	return bin, nil
}

// Start runs the daemon with its state in dir. full puts the third volume on a file system that is too small for it, in
// a mount namespace of the daemon's own.
func Start(bin, dir string, full bool) (*Daemon, error) {
	return startWith(bin, dir, full, "login: 5s, drain: 1s")
}

// startWith has timeouts of its own, as the configuration writes them.
func startWith(bin, dir string, full bool, timeouts string) (*Daemon, error) {
	// At an address of its own no other program gets the port by chance, at the first start or while the daemon is away.
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	small := filepath.Join(dir, "small")
	if err := os.MkdirAll(small, 0o700); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "sluiced.yaml")
	text := fmt.Sprintf(`state_dir: %q
memory: %d
timeouts: {%s}
portals: [{address: %q}]
volumes:
  - {name: good, engine: file, size: %d}
  - {name: victim, engine: file, size: %d, atomic: true}
  - {name: full, engine: file, path: %q, size: %d}
  - {name: memory, engine: mem, size: %d}
targets:
  - name: %q
    luns:
      - {lun: %d, volume: good}
      - {lun: %d, volume: victim}
      - {lun: %d, volume: full}
      - {lun: %d, volume: memory}
`, filepath.Join(dir, "state"), poolSize, timeouts, addr, goodSize, victimSize, filepath.Join(small, "full.img"), fullSize, memorySize,
		TargetName, goodLUN, victimLUN, fullLUN, memoryLUN)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	d := &Daemon{Rig: Rig{Addr: addr, Target: TargetName, LUN: victimLUN, Blocks: victimSize / sector}}
	// The daemon makes no volume's file by itself.
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	for img, size := range map[string]int64{filepath.Join(state, "good.img"): goodSize, filepath.Join(state, "victim.img"): victimSize, filepath.Join(small, "full.img"): fullSize} {
		if err := errors.Join(os.WriteFile(img, nil, 0o600), os.Truncate(img, size)); err != nil {
			return nil, err
		}
	}
	if full {
		script := fmt.Sprintf(`mount -t tmpfs -o size=%d tmpfs %[2]q && truncate -s %[3]d %[2]q/full.img && exec "$0" "$@"`, fullRoom, small, fullSize)
		d.cmd = exec.Command("unshare", "--mount", "sh", "-c", script, bin, "--config", conf)
	} else {
		d.cmd = exec.Command(bin, "--config", conf)
	}
	return d, d.launch()
}

// launch starts the process and waits until it listens.
func (d *Daemon) launch() error {
	d.done = make(chan struct{})
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	for begin := time.Now(); ; {
		c, err := net.Dial("tcp", d.Rig.Addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-d.done:
			return fmt.Errorf("sluiced ended at once: %w\n%s", d.err, d.log.String())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Since(begin) > patience {
			return errors.Join(fmt.Errorf("sluiced does not answer at %s\n%s", d.Rig.Addr, d.log.String()), d.Stop())
		}
	}
}

// Kill ends the daemon by SIGKILL and starts it again with the same configuration.
func (d *Daemon) Kill() error {
	if err := d.cmd.Process.Kill(); err != nil {
		return err
	}
	<-d.done
	d.cmd = exec.Command(d.cmd.Args[0], d.cmd.Args[1:]...)
	return d.launch()
}

// Alive returns an error that says how the daemon ended, if it did.
func (d *Daemon) Alive() error {
	select {
	case <-d.done:
		return fmt.Errorf("sluiced ended: %w\n%s", d.err, d.log.String())
	default:
		return nil
	}
}

// Log is what the daemon has printed.
func (d *Daemon) Log() string { return d.log.String() }

// RSS is the daemon's resident memory in bytes, and the most it ever was.
func (d *Daemon) RSS() (now, most int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "VmRSS:" && f[0] != "VmHWM:" {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		if f[0] == "VmRSS:" {
			now = kib << 10
		} else {
			most = kib << 10
		}
	}
	return now, most, nil
}

// FDs is how many file descriptors the daemon has open.
func (d *Daemon) FDs() (int, error) {
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	return len(names), err
}

// Stop ends the daemon as an operator would; one that does not end in time is killed, which is an error.
func (d *Daemon) Stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-d.done:
		return d.err
	case <-time.After(patience):
		err := d.cmd.Process.Kill()
		<-d.done
		return errors.Join(errors.New("sluiced did not end by SIGTERM"), err)
	}
}
