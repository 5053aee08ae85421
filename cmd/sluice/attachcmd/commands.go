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

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/blockcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
)

// readyLimit is how long a helper may take to attach.
const readyLimit = 60 * time.Second

type options struct {
	conn       blockcmd.Connection
	name, face string
	socket     string
	readOnly   bool
	foreground bool
}

func (o *options) flags(c *cobra.Command) {
	o.conn.Flags(c.Flags())
	c.Flags().StringVar(&o.name, "name", "", "what to call the attachment (default: made of target and LUN)")
	c.Flags().StringVar(&o.face, "face", faceAuto, "how it appears: device (/dev/nbdN), file (FUSE), socket (NBD protocol), auto")
	c.Flags().StringVar(&o.socket, "socket", "", "where the unix socket of --face socket goes")
	c.Flags().BoolVar(&o.readOnly, "read-only", false, "allow no writes")
	c.Flags().BoolVar(&o.foreground, "foreground", false, "serve in this process until it is interrupted")
}

// Commands are attach, detach, attachments, mount and umount.
func Commands() []*cobra.Command {
	return []*cobra.Command{attach(), detach(), attachments(), mount(), umount()}
}

func attach() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "attach URL[,URL...]",
		Short: "Make a volume local: a block device, a file or an NBD socket",
		Long: `Make a volume local, and print what to open. Several URLs, separated by commas, are paths of one volume.

  device   /dev/nbdN; needs root and the kernel's nbd driver
  file     one file in a directory, by FUSE; losetup or mount -o loop makes a device of it
  socket   a unix socket that speaks NBD: for qemu, nbdcopy, fio's nbd engine
  auto     the first of these that this machine and user can have

A helper process serves the attachment; sluice detach ends it. When the connection is lost it logs in again and repeats what
was under way; nothing is repeated whose repetition could hurt.`,
		Example: `  sluice attach iser://192.0.2.1/iqn.2026-11.io.sluice:default/0
  sluice attach iser://127.0.0.1/iqn.2026-11.io.sluice:default/0 --face socket --socket /tmp/s
  nbdcopy nbd+unix:///?socket=/tmp/s disk.img`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.foreground {
				url := args[0]
				if url == "env:" { // a helper is told in its environment, which only its user can read
					url = os.Getenv("SLUICE_URL")
				}
				return o.helper(c.Context(), url)
			}
			r, why, err := o.start(c.Context(), args[0])
			if err != nil {
				return err
			}
			return ui.Print(c, r, func(t *ui.Table) {
				t.Row(r.Path)
				ui.Note(c.ErrOrStderr(), "attached as %s, a %s (%s)", r.Name, r.Face, why)
			})
		},
	}
	o.flags(c)
	return c
}

// record fills in what is known before the volume is.
func (o *options) record(url string) (*Record, string, error) {
	face, why, err := choose(o.face)
	if err != nil {
		return nil, "", ui.Usage(err)
	}
	d, err := dir()
	if err != nil {
		return nil, "", err
	}
	first, _, _ := strings.Cut(url, ",")
	u, err := block.ParseURL(first)
	if err != nil {
		return nil, "", ui.Usage(err)
	}
	name := o.name
	if name == "" {
		name = fmt.Sprintf("%s-%d", u.Target[strings.LastIndexByte(u.Target, ':')+1:], u.LUN)
	}
	if strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") {
		return nil, "", ui.Usagef("%q cannot be a name: no slash, no dot in front", name)
	}
	start, err := startOf(os.Getpid())
	if err != nil {
		return nil, "", err
	}
	r := &Record{Name: name, URL: u.String(), Face: face, PID: os.Getpid(), Start: start, Since: time.Now(), Log: filepath.Join(d, name+".log")}
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
	}
	return r, why, nil
}

// helper attaches and serves in this process; a line "ready" on descriptor 3 tells whoever started it.
func (o *options) helper(ctx context.Context, url string) error {
	r, _, err := o.record(url)
	if err != nil {
		return err
	}
	if err := tidy(r.Name); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	err = serve(ctx, &o.conn, url, r, o.readOnly, func() error {
		if err := r.save(); err != nil {
			return err
		}
		if os.Getenv("SLUICE_READY") != "" {
			f := os.NewFile(3, "ready")
			_, err := fmt.Fprintln(f, "ready")
			return errors.Join(err, f.Close())
		}
		fmt.Println(r.Path)
		return nil
	})
	return errors.Join(err, r.remove())
}

// tidy clears away what a helper that was killed left behind; it refuses a name whose helper lives.
func tidy(name string) error {
	rs, err := list()
	if err != nil {
		return err
	}
	for _, r := range rs {
		if r.Name != name {
			continue
		}
		if !r.Broken {
			return ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("%s is attached already, as %s; choose another --name", name, r.Path)}
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
	if err := tidy(r.Name); err != nil {
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
	// The URL may hold a secret, which must not stand in the helper's command line for all to read.
	args := []string{"attach", "--foreground", "--face", r.Face, "--name", r.Name, "--crc", o.conn.CRC, "--initiator", o.conn.Initiator, "--", "env:"}
	if r.Face == faceSocket {
		args = append(args[:len(args)-2], "--socket", r.Path, "--", "env:")
	}
	if o.readOnly {
		args = append([]string{"attach", "--read-only"}, args[1:]...)
	}
	cmd := exec.Command(self, args...) //nolint:gosec,noctx // ourselves; it outlives this command
	cmd.Env = append(os.Environ(), "SLUICE_READY=1", "SLUICE_URL="+url)
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
		return ui.ExitError{Code: max(ee.ExitCode(), 1), Err: errors.New(last)}
	}
	return fmt.Errorf("the helper ended: %w; see %s", errors.Join(err, werr), log)
}

func detach() *cobra.Command {
	return &cobra.Command{
		Use: "detach NAME|PATH", Short: "End an attachment, with everything flushed", Args: cobra.ExactArgs(1), ValidArgsFunction: completeNames,
		RunE: func(c *cobra.Command, args []string) error {
			r, err := find(args[0])
			if err != nil {
				return ui.ExitError{Code: ui.CodeRefused, Err: err}
			}
			return r.end()
		},
	}
}

func completeNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	rs, err := list()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for _, r := range rs {
		out = append(out, r.Name)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// end stops the helper and waits until it is gone; a mounted file system must be unmounted first.
func (r *Record) end() error {
	if r.Mount != "" && mounted(r.Mount) {
		return ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("%s is mounted on %s; run sluice umount %s", r.Name, r.Mount, r.Mount)}
	}
	if r.alive() {
		if err := syscall.Kill(r.PID, syscall.SIGTERM); err != nil {
			return err
		}
		for deadline := time.Now().Add(readyLimit); r.alive(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				return fmt.Errorf("the helper of %s does not end; see %s", r.Name, r.Log)
			}
		}
	}
	return r.clean()
}

// clean removes what the helper left: nothing, if it ended by itself.
func (r *Record) clean() error {
	var errs []error
	if r.Face == faceFile && mounted(r.Dir) {
		out, err := exec.Command("fusermount3", "-u", "-z", r.Dir).CombinedOutput()
		if err != nil {
			err = syscall.Unmount(r.Dir, syscall.MNT_DETACH)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w: %s", r.Dir, err, out))
		}
	}
	for _, p := range []string{r.Dir, r.Log} {
		if p != "" {
			if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	if r.Face == faceSocket {
		if err := os.Remove(r.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, r.remove())...)
}

// mounted reports whether something is mounted on path (proc(5), mountinfo).
func mounted(path string) bool {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	esc := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(path)
	for _, l := range strings.Split(string(b), "\n") {
		if f := strings.Fields(l); len(f) > 4 && f[4] == esc {
			return true
		}
	}
	return false
}

func attachments() *cobra.Command {
	return &cobra.Command{
		Use: "attachments", Short: "List what is attached on this machine by this user", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			rs, err := list()
			if err != nil {
				return err
			}
			return ui.Print(c, rs, func(t *ui.Table) {
				t.Row("NAME", "FACE", "PATH", "MOUNTED ON", "STATE", "URL")
				for _, r := range rs {
					state, on := "serving", r.Mount
					if r.Broken {
						state = "helper gone; detach cleans up"
					}
					if on == "" {
						on = "-"
					}
					t.Row(r.Name, r.Face, r.Path, on, state, r.URL)
				}
			})
		},
	}
}
