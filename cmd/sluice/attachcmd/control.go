package attachcmd

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// A helper listens on a unix socket beside its record, which only its user reaches: lines of JSON, a question each. The answer to an
// order to end comes when the attachment has ended, or says why it has not.
type question struct {
	Op    string `json:"op"` // await, end, status
	Force bool   `json:"force,omitempty"`
}

const (
	opAwait  = "await" // no answer until the attachment ends
	opEnd    = "end"
	opStatus = "status"
)

type answer struct {
	Ended  bool    `json:"ended,omitempty"`
	Error  string  `json:"error,omitempty"`
	Code   int     `json:"code,omitempty"`
	Status *Status `json:"status,omitempty"`
}

func answerOf(err error) answer {
	if err == nil {
		return answer{}
	}
	a := answer{Error: err.Error(), Code: ui.CodeFailed}
	var e ui.ExitError
	if errors.As(err, &e) {
		a.Code = e.Code
	}
	return a
}

func (a answer) err() error {
	if a.Error == "" {
		return nil
	}
	return ui.ExitError{Code: a.Code, Err: errors.New(a.Error)}
}

// controlPath is a path of the socket that is short enough for one, whatever the directory's length: by way of an open descriptor of it.
func controlPath(name string, use func(path string) error) error {
	d, err := dir()
	if err != nil {
		return err
	}
	f, err := os.Open(d)
	if err != nil {
		return err
	}
	defer f.Close()
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), controlName(name)))
}

func controlName(name string) string { return "." + name + ".ctl" }

// listen answers questions until the returned function is called.
func (o *owner) listen() (stop func() error, err error) {
	d, err := dir()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(d, controlName(o.r.Name))
	var l net.Listener
	err = controlPath(o.r.Name, func(path string) error {
		if err := gone(os.Remove(path)); err != nil { // the record is ours: a helper before us is dead
			return err
		}
		var err error
		if l, err = net.Listen("unix", path); err != nil {
			return err
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false) // the path was good for this moment
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		return nil, fmt.Errorf("the helper's own socket: %w", err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go o.converse(c)
		}
	}()
	return func() error { return errors.Join(gone(os.Remove(file)), l.Close()) }, nil
}

// converse answers on one connection.
func (o *owner) converse(c net.Conn) {
	defer c.Close()
	var mu sync.Mutex
	tell := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		_ = json.NewEncoder(c).Encode(a) // an asker that has left does not want it
	}
	awaits := false
	for in := bufio.NewScanner(c); in.Scan(); {
		var q question
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			return
		}
		if !awaits && q.Op != opStatus {
			awaits = true
			o.await(tell)
		}
		switch q.Op {
		case opEnd:
			o.order(order{force: q.Force, answer: tell})
		case opStatus:
			tell(answer{Status: o.status()})
		}
	}
}

// asker is a connection to a helper.
type asker struct {
	c net.Conn
	d *json.Decoder
}

// ask connects to the helper of a record.
func (r *Record) ask() (*asker, error) {
	var c net.Conn
	err := controlPath(r.Name, func(path string) (err error) {
		c, err = net.DialTimeout("unix", path, 10*time.Second)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &asker{c, json.NewDecoder(c)}, nil
}

func (a *asker) close() { a.c.Close() }

// say sends a question; what the answer is waits in the connection, also where the helper has ended meanwhile.
func (a *asker) say(q question) { _ = json.NewEncoder(a.c).Encode(q) }

// hear reads an answer.
func (a *asker) hear(limit time.Duration) (answer, error) {
	var got answer
	if err := a.c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return got, err
	}
	err := a.d.Decode(&got)
	return got, err
}

// endLimit is how long a helper may take to end: for its users to go, for the target to make all durable twice, and to log out.
const endLimit = 90 * time.Second

// forceLimit is the same by force; then the helper is killed.
const forceLimit = 30 * time.Second

// end has the helper end the attachment, and waits until it is gone. What stays attached is refused, and what went wrong at the end
// is told.
func (r *Record) end(force bool) error {
	if !r.alive() || r.dying() {
		return r.clean()
	}
	a, err := r.ask()
	if err != nil {
		return r.endUnasked(force, err)
	}
	defer a.close()
	return r.finish(a, force)
}

// finish orders the end over an open connection.
func (r *Record) finish(a *asker, force bool) error {
	limit := endLimit
	if force {
		limit = forceLimit
	}
	a.say(question{Op: opEnd, Force: force})
	got, err := a.hear(limit)
	switch {
	case err == nil && !got.Ended:
		return got.err()
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
	case force:
		return r.kill()
	default:
		return fmt.Errorf("the helper of %s does not end; sluice detach --force kills it; see %s: %w", r.Name, r.Log, err)
	}
	if !r.awaitGone(limit) {
		if force {
			return errors.Join(got.err(), r.kill())
		}
		return fmt.Errorf("the helper of %s does not end; sluice detach --force kills it; see %s", r.Name, r.Log)
	}
	if got.Ended {
		return errors.Join(got.err(), r.clean())
	}
	return errors.Join(fmt.Errorf("the helper of %s was killed at its end: what was written last may be lost", r.Name), r.clean())
}

// endUnasked ends a helper that does not listen: one of an earlier version, or one that has just begun or is just ending.
func (r *Record) endUnasked(force bool, why error) error {
	if force {
		return r.kill()
	}
	if r.Mount != "" && r.Face != faceDir && mounted(r.Mount) {
		return refused("%s is mounted on %s; run sluice umount %s", r.Name, r.Mount, r.Mount)
	}
	if (r.Face == faceUblk || r.Face == faceDevice) && inUse(r.Path) {
		return refused("%s is in use: a file system on it is mounted, or another device stands on it", r.Path)
	}
	if err := r.dropLoop(); err != nil {
		return err
	}
	if err := syscall.Kill(r.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	if !r.awaitGone(endLimit) {
		return fmt.Errorf("the helper of %s cannot be asked (%w) and does not end; sluice detach --force kills it; see %s", r.Name, why, r.Log)
	}
	return r.clean()
}

// kill ends a helper that does not end otherwise.
func (r *Record) kill() error {
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return errors.Join(fmt.Errorf("the helper of %s did not end and was killed: what was written last may be lost", r.Name), r.clean())
}

// awaitGone waits until the helper's process has ended.
func (r *Record) awaitGone(limit time.Duration) bool {
	fd, err := unix.PidfdOpen(r.PID, 0)
	if err == nil {
		defer func() { _ = unix.Close(fd) }() // it was only looked at
	}
	for deadline := time.Now().Add(limit); r.alive(); {
		left := time.Until(deadline)
		switch {
		case left <= 0:
			return false
		case err != nil:
			time.Sleep(20 * time.Millisecond) // no descriptors of processes: another's child has no event
		default:
			if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left/time.Millisecond)+1); n > 0 {
				return true
			}
		}
	}
	return true
}
