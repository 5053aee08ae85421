package attachcmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/sluice-storage/sluice/cmd/sluice/attachcmd/sluicetab"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/initiator/nfs"
)

// readyLimit is how long a helper may take to attach.
const readyLimit = 60 * time.Second

// describe is a URL, or several with commas, without secrets, and the name that an attachment of it has by default.
func describe(urls string) (clean, name string, err error) {
	var out []string
	if nfs.IsURL(urls) {
		t, err := nfs.ParseURL(urls)
		if err != nil {
			return "", "", ui.Usage(err)
		}
		return urls, t.Host + strings.ReplaceAll(strings.TrimSuffix(t.Path, "/"), "/", "-"), nil
	}
	for _, s := range strings.Split(urls, ",") {
		u, err := block.ParseURL(s)
		if err != nil {
			return "", "", ui.Usage(err)
		}
		if name == "" {
			name = fmt.Sprintf("%s-%d", u.Target[strings.LastIndexByte(u.Target, ':')+1:], u.LUN)
		}
		out = append(out, u.String())
	}
	return strings.Join(out, ","), name, nil
}

// record fills in what is known before the volume is.
func (o *options) record(url string) (*Record, string, error) {
	face, why, err := faceDir, "an NFS export", error(nil)
	if !nfs.IsURL(url) {
		face, why, err = probe().choose(o.face)
	}
	var code ui.ExitError
	switch {
	case errors.As(err, &code):
		return nil, "", err
	case err != nil:
		return nil, "", ui.Usage(err)
	}
	d, err := dir()
	if err != nil {
		return nil, "", err
	}
	shown, name, err := describe(url)
	if err != nil {
		return nil, "", err
	}
	if o.name != "" {
		name = o.name
	}
	if bad := sluicetab.CheckName(name); bad != "" {
		return nil, "", ui.Usagef("%s; choose one with --name", bad)
	}
	start, err := startOf(os.Getpid())
	if err != nil {
		return nil, "", err
	}
	r := &Record{Name: name, URL: shown, Face: face, PID: os.Getpid(), Start: start, Since: time.Now(), Log: filepath.Join(d, name+".log")}
	switch face {
	case faceSocket:
		r.Path = filepath.Join(d, name+".sock")
		if o.socket != "" {
			if r.Path, err = filepath.Abs(o.socket); err != nil {
				return nil, "", err
			}
		}
	case faceFile:
		r.Dir = filepath.Join(d, name+".d")
		r.Path = filepath.Join(r.Dir, "volume")
	case faceDir:
		r.Path, r.Mount = o.export.dir, o.export.dir
	}
	return r, why, nil
}

// helper attaches and serves in this process; a line "ready" on descriptor 3 tells whoever started it, and a service
// manager is told its way (sd_notify(3)).
func (o *options) helper(ctx context.Context, url string) error {
	r, _, err := o.record(url)
	if err != nil {
		return err
	}
	if err := becomeFlusher(r.Face); err != nil {
		return err
	}
	if err := r.reserve(); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	err = o.serve(ctx, url, r, func() error {
		whole := *r // what serve filled in, too
		whole.Starting = false
		if err := r.update(func(to *Record) { *to = whole }); err != nil {
			return err
		}
		if _, err := daemon.SdNotify(false, "READY=1\nSTATUS=serving "+r.Path); err != nil {
			return fmt.Errorf("service manager: %w", err)
		}
		if os.Getenv("SLUICE_READY") != "" {
			f := os.NewFile(3, "ready")
			_, err := fmt.Fprintln(f, "ready")
			return errors.Join(err, f.Close())
		}
		fmt.Println(r.Path)
		return nil
	})
	if err == nil && os.Getenv("SLUICE_READY") != "" {
		err = gone(os.Remove(r.Log)) // what went well has nothing to tell
	}
	return errors.Join(err, r.remove())
}

// reserve takes the record's name for this process, so that of two helpers for one name one is refused.
func (r *Record) reserve() error {
	return locked(func() error {
		if err := tidy(r); err != nil {
			return err
		}
		r.Starting = true
		return r.save()
	})
}

// tidy clears away what a helper that was killed left behind; it refuses a name whose helper lives.
func tidy(n *Record) error {
	rs, err := list()
	if err != nil {
		return err
	}
	for _, r := range rs {
		if r.Name != n.Name {
			continue
		}
		if !r.Broken {
			return refused("%s is attached already, as %s; choose another --name", n.Name, r.Path)
		}
		if r.Log == n.Log {
			r.Log = "" // it is the new helper's already
		}
		return r.clean()
	}
	return nil
}

// start runs a helper in the background and waits until it serves.
func (o *options) start(ctx context.Context, url string) (*Record, string, error) {
	r, why, err := o.record(url)
	if err != nil {
		return nil, "", err
	}
	if err := r.free(); err != nil {
		return nil, "", err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	log, err := os.OpenFile(r.Log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, "", err
	}
	defer log.Close()
	tell, told, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	defer tell.Close()
	args, err := o.helperArgs(r)
	if err != nil {
		return nil, "", errors.Join(err, told.Close())
	}
	cmd := exec.Command(self, args...) //nolint:gosec,noctx // ourselves; it outlives this command
	cmd.Env = append(os.Environ(), "SLUICE_READY=1", "SLUICE_URL="+url, "NOTIFY_SOCKET=")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{told}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	if err := errors.Join(cmd.Start(), told.Close()); err != nil {
		return nil, "", err
	}
	if err := awaitReady(ctx, tell); err != nil {
		// It may be half way: it is told to stop, and given the time to clean up.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		werr := cmd.Wait()
		return nil, "", helperError(r.Log, werr, err)
	}
	got, err := find(r.Name)
	return got, why, err
}

// free refuses a name whose helper lives, before a helper is started for nothing.
func (r *Record) free() error {
	rs, err := list()
	if err != nil {
		return err
	}
	for _, o := range rs {
		if o.Name == r.Name && !o.Broken {
			return refused("%s is attached already, as %s; choose another --name", o.Name, o.Path)
		}
	}
	return nil
}

// helperArgs is the helper's command line. The URL may hold a secret, which must not stand there for all to read.
func (o *options) helperArgs(r *Record) ([]string, error) {
	args := []string{"attach", "--foreground", "--name", r.Name, "--crc", o.conn.CRC, "--initiator", o.conn.Initiator}
	if o.conn.Reconnect != 0 {
		args = append(args, "--reconnect", (*limit)(&o.conn.Reconnect).String())
	}
	if o.conn.Credentials != "" {
		path, err := filepath.Abs(o.conn.Credentials)
		if err != nil {
			return nil, err
		}
		args = append(args, "--credentials", path)
	}
	switch r.Face {
	case faceDir:
		args = append(args, "--dir", r.Path, "--attr-timeout", o.export.attrs.String(), fmt.Sprintf("--allow-other=%v", o.export.allowOther), fmt.Sprintf("--local-locks=%v", o.export.localLocks))
	case faceSocket:
		args = append(args, "--face", r.Face, "--socket", r.Path)
	default:
		args = append(args, "--face", r.Face)
	}
	if o.readOnly {
		args = append(args, "--read-only")
	}
	return append(args, "--", "env:"), nil
}

func awaitReady(ctx context.Context, tell *os.File) error {
	line := make(chan error, 1)
	go func() {
		s, err := bufio.NewReader(tell).ReadString('\n')
		if err == nil && s != "ready\n" {
			err = fmt.Errorf("the helper said %q", s)
		}
		line <- err
	}()
	select {
	case err := <-line:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(readyLimit):
		return fmt.Errorf("the helper was not ready after %v", readyLimit)
	}
}

// helperError is the last line that a helper logged, with its exit code: what a person should read.
func helperError(log string, werr, err error) error {
	b, rerr := os.ReadFile(log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	last := strings.TrimPrefix(lines[len(lines)-1], "sluice: ")
	var ee *exec.ExitError
	if rerr == nil && last != "" && errors.As(werr, &ee) {
		// It has been told; a log of an attachment that is not there would be left for ever.
		return errors.Join(ui.ExitError{Code: max(ee.ExitCode(), 1), Err: errors.New(last)}, gone(os.Remove(log)))
	}
	return fmt.Errorf("the helper ended: %w; see %s", errors.Join(err, werr), log)
}
