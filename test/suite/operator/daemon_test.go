// Package operator does what an operator can do to a daemon, at random, beside a model: volumes, targets, maps, access, secrets,
// exports, edited files, restarts and SIGKILLs in the middle. libiscsi's tools say what two initiators see; contents are
// compared by bytes.
package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wait bounds everything that must come; this machine may be busy.
const wait = 90 * time.Second

// built is where the binaries are, and store a directory whose file system can share blocks, where one can be mounted.
var built, store string

// reflink reports that volumes can be cloned in store.
var reflink bool

// watched sees the daemons' calls; nil where the kernel does not let this user.
var watched *watch

func TestMain(m *testing.M) {
	code, err := all(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func all(m *testing.M) (code int, err error) {
	if built, err = os.MkdirTemp("", "operator"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(built)) }()
	out, err := exec.Command("go", "build", "-o", built+"/", "../../../cmd/sluiced", "../../../cmd/sluice").CombinedOutput()
	if err != nil {
		return 1, fmt.Errorf("%w: %s", err, out)
	}
	store = filepath.Join(built, "store")
	if err := os.Mkdir(store, 0o755); err != nil {
		return 1, err
	}
	if mountXFS() {
		reflink = true
		defer func() { err = errors.Join(err, syscall.Unmount(store, 0)) }()
		if w, werr := newWatch(store); werr == nil {
			watched = w
			defer func() { err = errors.Join(err, w.close()) }()
		} else {
			fmt.Fprintln(os.Stderr, "kills are aimed by time alone:", werr)
		}
	} else { // it may be one as it is
		a := filepath.Join(built, "sluice")
		reflink = exec.Command("cp", "--reflink=always", a, filepath.Join(store, "probe")).Run() == nil
	}
	return m.Run(), nil
}

// mountXFS makes store a file system with reflinks, where this user may.
func mountXFS() bool {
	image := filepath.Join(built, "xfs")
	for _, line := range [][]string{{"truncate", "-s", "400M", image}, {"mkfs.xfs", "-q", "-m", "reflink=1", image}, {"mount", "-o", "loop", image, store}} {
		if exec.Command(line[0], line[1:]...).Run() != nil {
			return false
		}
	}
	return true
}

// stand is one daemon with its directory.
type stand struct {
	dir, conf, ip string
	daemon        *exec.Cmd
	ended         chan struct{} // closed when the daemon has
	status        error         // then
	log           string
	admin         *http.Client
}

func newStand() (*stand, error) {
	dir, err := os.MkdirTemp(store, "d")
	if err != nil {
		return nil, err
	}
	// An address of its own: the port can be the same after each restart, and is no other program's.
	s := &stand{dir: dir, conf: filepath.Join(dir, "sluiced.yaml"), ip: fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)), log: filepath.Join(dir, "log")}
	s.admin = &http.Client{Timeout: wait, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket())
	}}}
	return s, os.Mkdir(filepath.Join(dir, "exported"), 0o755)
}

func (s *stand) socket() string { return filepath.Join(s.dir, "admin.sock") }

func (s *stand) portal() string { return s.ip + ":3260" }

// get asks the administrative interface, whose answers are JSON, or text where v is a string.
func (s *stand) get(path string, v any) error {
	r, err := s.admin.Get("http://sluiced" + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %s", path, r.Status, b)
	}
	if text, ok := v.(*string); ok {
		*text = string(b)
		return nil
	}
	return json.Unmarshal(b, v)
}

// launch starts the daemon.
func (s *stand) launch() error {
	s.daemon = exec.Command(filepath.Join(built, "sluiced"), "--config", s.conf)
	log, err := os.OpenFile(s.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.daemon.Stdout, s.daemon.Stderr = log, log
	if err := s.daemon.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.ended = ended
	go func() {
		s.status = s.daemon.Wait()
		close(ended)
	}()
	return nil
}

// serves reports that the daemon takes sessions and orders.
func (s *stand) serves() bool {
	var ready struct{ Status string }
	return s.get("/readyz", &ready) == nil && ready.Status == "ready"
}

// up starts the daemon and waits until it serves.
func (s *stand) up() error {
	if err := s.launch(); err != nil {
		return err
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(2 * time.Millisecond) { // another process's readiness has no event
		if s.serves() {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("the daemon does not start: %w", s.status)
		default:
		}
		if time.Now().After(deadline) {
			return errors.New("the daemon does not serve")
		}
	}
}

func tail(s string) string {
	const n = 3000
	return s[max(len(s)-n, 0):]
}

// down ends the daemon by a signal and waits until it has ended.
func (s *stand) down(sig syscall.Signal) error {
	if err := s.daemon.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return s.over()
}

// over waits until the daemon has ended.
func (s *stand) over() error {
	select {
	case <-s.ended:
		return nil
	case <-time.After(wait):
		return errors.Join(errors.New("the daemon does not end"), s.daemon.Process.Kill())
	}
}

// sluice runs the operator's tool.
func (s *stand) sluice(stdin []byte, args ...string) (string, error) {
	if len(args) > 0 && !strings.Contains(strings.Join(args, " "), "://") {
		args = append(args, "--socket", s.socket())
	}
	return run(stdin, filepath.Join(built, "sluice"), args...)
}

// failure is a program that has ended badly.
type failure struct {
	line string
	code int
	says string
}

func (f *failure) Error() string { return fmt.Sprintf("%s: exit %d: %s", f.line, f.code, f.says) }

func run(stdin []byte, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Stdin = bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		return out.String(), &failure{filepath.Base(name) + " " + strings.Join(args, " "), ee.ExitCode(), strings.TrimSpace(errs.String())}
	}
	return out.String(), err
}
