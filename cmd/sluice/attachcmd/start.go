package attachcmd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/sluice-storage/sluice/cmd/sluice/attachcmd/sluicetab"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/transport/fabric"
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
	if err := o.conn.Check(); err != nil {
		return nil, "", err
	}
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
	opts, err := o.inWords()
	if err != nil {
		return nil, "", err
	}
	r := &Record{Options: opts, Name: name, URL: shown, Face: face, PID: os.Getpid(), Start: start, Since: time.Now(), Log: filepath.Join(d, name+".log")}
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

// inWords is what the options are in the table's words, so that an attachment can be compared with the table.
func (o *options) inWords() ([]string, error) {
	l := []string{"reconnect=" + (*limit)(&o.conn.Reconnect).String(), "crc=" + o.conn.CRC}
	if p := o.conn.Provider; p != "" {
		l = append(l, "provider="+p)
	}
	if e := o.conn.Exposure; e != "" && e != fabric.Exposures[0] {
		l = append(l, "exposure="+e)
	}
	if d := o.conn.AckTimeout; d != 0 {
		l = append(l, "ack_timeout="+d.String())
	}
	if o.readOnly {
		l = append(l, "ro")
	}
	if o.conn.Initiator != "" {
		l = append(l, "initiator="+o.conn.Initiator)
	}
	if o.conn.Credentials != "" {
		path, err := filepath.Abs(o.conn.Credentials)
		if err != nil {
			return nil, err
		}
		l = append(l, "credentials="+path)
	}
	return l, nil
}

// helper attaches and serves in this process until it is told to end; lines on descriptor 3 tell the process that started it how it goes,
// and a service manager is told its way (sd_notify(3)).
func (o *options) helper(ctx context.Context, url string) error {
	r, _, err := o.record(url)
	if err != nil {
		return err
	}
	if err := becomeFlusher(r.Face); err != nil {
		return err
	}
	if r.Face != faceDir && os.Getenv("SLUICE_READY") != "" {
		r.For = os.Getenv("SLUICE_MOUNT")
	}
	own := newOwner(r)
	defer own.signals()()
	if err := r.reserve(); err != nil {
		return err
	}
	o.conn.Log = logger()
	unlisten, err := own.listen()
	if err != nil {
		return errors.Join(err, r.remove())
	}
	tell := newTeller()
	err = o.untilThere(own.begin(context.WithoutCancel(ctx)), url, own, tell, func() error {
		whole := *r // what serve filled in, too
		whole.Starting = false
		if err := r.update(func(to *Record) { *to = whole }); err != nil {
			return err
		}
		if _, err := daemon.SdNotify(false, "READY=1\nSTATUS=serving "+r.Path); err != nil {
			return fmt.Errorf("service manager: %w", err)
		}
		if !tell.say(tellReady) {
			fmt.Println(r.Path)
		}
		return nil
	})
	if err == nil && tell != nil {
		err = gone(os.Remove(r.Log)) // what went well has nothing to tell
	}
	err = errors.Join(err, unlisten(), r.remove())
	own.finish(err)
	return err
}

// firstPause and lastPause are between the first logins of an attachment that waits for its target for ever.
const (
	firstPause = time.Second
	lastPause  = 15 * time.Second
)

// untilThere makes the face and serves it. Where programs are to wait for the target for ever, so does the first login: only what the
// target refuses is an error then.
func (o *options) untilThere(ctx context.Context, url string, own *owner, tell *teller, ready func() error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := o.serve(ctx, url, own, ready)
		switch {
		case own.began():
			return err
		case ctx.Err() != nil && own.ordered():
			return nil // an order ended it before it was there
		case err == nil || o.conn.Reconnect >= 0 || !mayPass(err):
			return err
		}
		if err := own.r.update(func(r *Record) {
			if r.Away == "" {
				r.AwaySince = time.Now()
			}
			r.Away = err.Error()
		}); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "sluice: trying again:", err) // the helper's log
		tell.say(tellAway + strings.ReplaceAll(err.Error(), "\n", "; "))
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// mayPass reports whether another try can go better: not if the line is wrong, or the target has refused.
func mayPass(err error) bool {
	var e ui.ExitError
	return !errors.As(err, &e) || e.Code != ui.CodeUsage && e.Code != ui.CodeRefused
}

// What a helper tells the process that started it.
const (
	tellReady = "ready"
	tellAway  = "away: "
)

// teller is the helper's line to the process that started it; nil where there is none.
type teller struct{ f *os.File }

func newTeller() *teller {
	if os.Getenv("SLUICE_READY") == "" {
		return nil
	}
	return &teller{os.NewFile(3, "ready")}
}

// say reports whether the program that started us is still to be told; it may have left.
func (t *teller) say(line string) bool {
	if t == nil {
		return false
	}
	fmt.Fprintln(t.f, line)
	if line == tellReady {
		t.f.Close()
	}
	return true
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

// start runs a helper in the background and waits until it serves. away is called when the target is not there and the helper keeps
// trying; if it says so, the helper is left alone with that.
func (o *options) start(ctx context.Context, url string, away func(why string) bool) (*Record, string, error) {
	r, why, err := o.record(url)
	if err != nil {
		return nil, "", err
	}
	if err := r.free(); err != nil {
		return nil, "", err
	}
	o.conn.WarnOfExposure(url)
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
	cmd.Env = append(os.Environ(), "SLUICE_READY=1", "SLUICE_URL="+url, "SLUICE_MOUNT="+o.where, "NOTIFY_SOCKET=")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{told}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	if err := errors.Join(cmd.Start(), told.Close()); err != nil {
		return nil, "", err
	}
	if err := awaitReady(ctx, tell, away); err != nil {
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
	args := []string{"attach", "--foreground", "--name", r.Name, "--crc", o.conn.CRC, "--provider", o.conn.Provider,
		"--exposure", cmp.Or(o.conn.Exposure, fabric.Exposures[0]), "--initiator", o.conn.Initiator}
	if o.conn.AckTimeout != 0 {
		args = append(args, "--ack-timeout", o.conn.AckTimeout.String())
	}
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

func awaitReady(ctx context.Context, tell *os.File, away func(string) bool) error {
	lines := make(chan string)
	end := make(chan error, 1)
	go func() {
		in := bufio.NewScanner(tell)
		for in.Scan() {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
		end <- errors.Join(in.Err(), io.EOF)
	}()
	limit := time.NewTimer(readyLimit)
	defer limit.Stop()
	told := false
	for {
		select {
		case l := <-lines:
			why, isAway := strings.CutPrefix(l, tellAway)
			switch {
			case l == tellReady:
				return nil
			case !isAway:
				return fmt.Errorf("the helper said %q", l)
			}
			limit.Stop() // it waits for ever, as it was asked to
			if !told && away(why) {
				return nil
			}
			told = true
		case err := <-end:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("the helper was not ready after %v", readyLimit)
		}
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
