package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/internal/state"
)

// guest is one QEMU process. Its root disk is a snapshot: nothing of a run survives.
type guest struct {
	r      *Run
	name   string // of the second guest; the first has none
	dir    string // its logs
	share  string
	cmd    *exec.Cmd
	stderr *os.File
	output chan struct{} // closed when all output of the script has been seen
	lost   chan struct{} // closed by kill: the scenario itself ended the guest
}

// boot starts a guest with a script. The directory it shares with the host holds:
//
//	script lib.sh args env files/   what it is to do
//	out/ rc                         what comes back
//	host/                           answers to on_host
//
// The second guest of a scenario has a name, and the end of the wire that it is given.
func (l *lab) boot(r *Run, name, script string, wire *os.File) (*guest, error) {
	g := &guest{r: r, name: name, dir: filepath.Join(r.Dir, name), share: filepath.Join(r.Tmp, name, "share"), output: make(chan struct{}), lost: make(chan struct{})}
	if name == "" {
		r.guest = g
	}
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		return nil, err
	}
	for _, d := range []string{"files", "out", "host"} {
		if err := os.MkdirAll(filepath.Join(g.share, d), 0o755); err != nil {
			return nil, err
		}
	}
	if err := copyFile(filepath.Join(g.share, "script"), script); err != nil {
		return nil, err
	}
	for _, f := range r.s.Files {
		if err := copyFile(filepath.Join(g.share, "files", f), l.binary(r.s, f)); err != nil {
			return nil, err
		}
	}
	if err := copyFile(filepath.Join(g.share, "lib.sh"), filepath.Join(l.src, "guest/lib.sh")); err != nil {
		return nil, err
	}
	for _, f := range r.Give {
		if err := copyFile(filepath.Join(g.share, "files", filepath.Base(f)), f); err != nil {
			return nil, err
		}
	}
	args := ""
	for _, a := range r.Args {
		args += a + "\x00"
	}
	env := state.Strict + "=1\n"
	for _, e := range r.Env {
		env += e + "\n"
	}
	if err := errors.Join(os.WriteFile(filepath.Join(g.share, "args"), []byte(args), 0o644),
		os.WriteFile(filepath.Join(g.share, "env"), []byte(env), 0o644)); err != nil {
		return nil, err
	}
	ln, err := net.Listen("unix", filepath.Join(r.Tmp, name, "out.sock"))
	if err != nil {
		return nil, err
	}
	go g.stream(ln)
	if g.stderr, err = os.Create(filepath.Join(g.dir, "qemu.txt")); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Ctx, r.s.Limit)
	r.Defer(cancel)
	g.cmd = exec.CommandContext(ctx, "qemu-system-x86_64", l.qemuArgs(g, wire != nil)...)
	g.cmd.Stderr = g.stderr
	if wire != nil {
		g.cmd.ExtraFiles = []*os.File{wire} // descriptor 3
	}
	// A lab that is killed takes its guests with it.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the guest: %w", err)
	}
	return g, nil
}

func (l *lab) qemuArgs(g *guest, wired bool) []string {
	r := g.r
	memory := r.s.Memory
	if memory == 0 {
		memory = 1024
	}
	img := filepath.Join(l.cache, "image-"+r.s.kernel())
	// no_timer_check: a guest that a busy host does not run in time would find its timer broken, and panic
	cmdline := "console=ttyS0 panic=-1 oops=panic quiet loglevel=5 nokaslr mitigations=off tsc=reliable no_timer_check net.ifnames=0 random.trust_cpu=on"
	if r.s.Systemd {
		cmdline += " lab.init=systemd systemd.show_status=0 systemd.log_target=journal"
	}
	netdev, forward := "user,id=n0", r.Forward
	if g.name != "" {
		forward = nil
	}
	for _, f := range forward {
		host, guest, _ := strings.Cut(f, ":")
		netdev += ",hostfwd=tcp:127.0.0.1:" + host + "-:" + guest
	}
	a := []string{
		"-M", "q35,pit=off", "-accel", getenv("LAB_ACCEL", "tcg,thread=multi"), "-cpu", getenv("LAB_CPU", "max"), "-smp", "2", "-m", strconv.Itoa(memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", img + "/vmlinuz", "-initrd", img + "/initrd.img",
		// An oops ends the guest; a warning is found in its log.
		"-append", cmdline,
		"-serial", "file:" + filepath.Join(g.dir, "console.txt"),
		"-device", "virtio-serial-pci", "-chardev", "socket,id=out,path=" + filepath.Join(r.Tmp, g.name, "out.sock"),
		"-device", "virtserialport,chardev=out,name=lab.out",
		"-drive", "if=virtio,format=raw,snapshot=on,file=" + img + "/root.ext4",
		"-fsdev", "local,id=share,path=" + g.share + ",security_model=none", "-device", "virtio-9p-pci,fsdev=share,mount_tag=share",
		"-device", "virtio-rng-pci", "-netdev", netdev, "-device", "virtio-net-pci,netdev=n0,romfile=",
	}
	if l.pcap {
		a = append(a, "-object", "filter-dump,id=dump,netdev=n0,maxlen=256,file="+filepath.Join(g.dir, "eth0.pcap"))
	}
	if wired {
		a = append(a, "-netdev", "socket,id=n1,fd=3", "-device", "virtio-net-pci,netdev=n1,romfile=,mac=52:54:00:0a:08:0"+wireEnd(g.name))
	}
	return a
}

func (g *guest) stream(ln net.Listener) {
	defer close(g.output)
	c, err := ln.Accept()
	_ = ln.Close()
	if err != nil {
		return
	}
	g.r.Defer(func() { _ = c.Close() })
	sc := bufio.NewScanner(c)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	for sc.Scan() {
		g.line(sc.Bytes())
	}
	_, _ = io.Copy(io.Discard, c)
}

// kill ends the guest as a power failure would.
func (g *guest) kill() {
	close(g.lost)
	_ = g.cmd.Process.Kill()
}

// wait returns when the guest is off: nil if the script succeeded, or if the scenario pulled the plug.
func (g *guest) wait() error {
	werr := g.cmd.Wait()
	select {
	case <-g.output:
	case <-time.After(10 * time.Second):
	}
	_ = g.stderr.Close()
	out := filepath.Join(g.share, "out")
	if entries, err := os.ReadDir(out); err == nil {
		for _, e := range entries {
			if err := copyFile(filepath.Join(g.dir, e.Name()), filepath.Join(out, e.Name())); err != nil {
				g.r.Logf("keep %s: %v", e.Name(), err)
			}
		}
	}
	select {
	case <-g.lost:
		return nil
	default:
	}
	rc, err := os.ReadFile(filepath.Join(g.share, "rc"))
	switch {
	case err == nil && strings.TrimSpace(string(rc)) == "0":
		return nil
	case err == nil:
		return fmt.Errorf("the script ended with status %s", strings.TrimSpace(string(rc)))
	case errors.Is(g.r.Ctx.Err(), context.Canceled):
		return context.Canceled
	case werr != nil && g.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled():
		return fmt.Errorf("no end after %v", g.r.s.Limit)
	}
	if werr == nil {
		werr = errors.New("status 0")
	}
	return fmt.Errorf("the guest died: %w; see console.txt and qemu.txt", werr)
}

func getenv(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

func copyFile(to, from string) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, st.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
