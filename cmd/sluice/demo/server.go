package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// target is the iSCSI name the demo serves.
const target = "iqn.2026-11.io.sluice:demo"

// server is one sluiced at a time, over the same state directory and port.
type server struct {
	bin, dir, addr string
	cmd            *exec.Cmd
	log            lockedBuffer
	ended          chan error
}

// lockedBuffer collects what the daemon prints; the copying goroutine of os/exec writes while we read.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// findDaemon looks for sluiced beside this program, then in PATH.
func findDaemon() (string, error) {
	if self, err := os.Executable(); err == nil {
		p := filepath.Join(filepath.Dir(self), "sluiced")
		if fi, err := os.Stat(p); err == nil && fi.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	p, err := exec.LookPath("sluiced")
	if err != nil {
		return "", errors.New("sluiced is neither beside this program nor in PATH; run make build")
	}
	return p, nil
}

// newServer writes the configuration: one file volume of size bytes behind one loopback port that was free just now.
func newServer(bin, dir string, size int64) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	conf := fmt.Sprintf(`state_dir: %q
portals: [{address: %q}]
volumes: [{name: demo, engine: file, size: %d}]
targets: [{name: %q, luns: [{lun: 0, volume: demo}]}]
`, filepath.Join(dir, "state"), addr, size, target)
	state := filepath.Join(dir, "state")
	img := filepath.Join(state, "demo.img") // the daemon makes no volume's file by itself
	if err := errors.Join(os.MkdirAll(state, 0o700), os.WriteFile(img, nil, 0o600), os.Truncate(img, size)); err != nil {
		return nil, err
	}
	s := &server{bin: bin, dir: dir, addr: addr}
	return s, os.WriteFile(s.config(), []byte(conf), 0o600)
}

func (s *server) config() string { return filepath.Join(s.dir, "sluiced.yaml") }

// url is the volume over iser or iscsi.
func (s *server) url(scheme string) string { return scheme + "://" + s.addr + "/" + target + "/0" }

// start runs the daemon and waits until its port answers.
func (s *server) start(ctx context.Context) error {
	s.cmd = exec.Command(s.bin, "--config", s.config()) //nolint:gosec,noctx // our own daemon; it ends by signal, not by context
	s.cmd.Stderr = &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // nothing is left behind if the demo itself is killed
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start sluiced: %w", err)
	}
	s.ended = make(chan error, 1)
	go func(c *exec.Cmd, ended chan<- error) { ended <- c.Wait() }(s.cmd, s.ended)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
		if err == nil {
			return c.Close()
		}
		select {
		case err := <-s.ended:
			s.cmd = nil
			return fmt.Errorf("sluiced ended at once: %w: %s", err, s.log.String())
		case <-ctx.Done():
			return fmt.Errorf("sluiced does not answer at %s: %s", s.addr, s.log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends the daemon as a crash would.
func (s *server) kill() error { return s.end(syscall.SIGKILL) }

// stop ends it as an operator would.
func (s *server) stop() error { return s.end(syscall.SIGTERM) }

func (s *server) end(sig syscall.Signal) error {
	if s.cmd == nil {
		return nil
	}
	c := s.cmd
	s.cmd = nil
	if err := c.Process.Signal(sig); err != nil {
		return err
	}
	select {
	case err := <-s.ended:
		if sig == syscall.SIGKILL {
			return nil
		}
		return err
	case <-time.After(30 * time.Second):
		return errors.Join(errors.New("sluiced does not end on SIGTERM"), c.Process.Kill())
	}
}
