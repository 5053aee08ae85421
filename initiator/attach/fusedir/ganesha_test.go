package fusedir_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// insideEnv marks the process that runs in namespaces of its own: nfs-ganesha wants an rpcbind, whose port and socket are
// the machine's.
const insideEnv = "SLUICE_TEST_GANESHA"

// The exerciser's models hold on a mount of a server that is not ours.
func TestExerciserOnGanesha(t *testing.T) {
	need.Root(t)
	need.FUSE(t)
	need.Tool(t, "ganesha.nfsd", "nfs-ganesha-vfs")
	need.Tool(t, "rpcbind", "rpcbind")
	need.Tool(t, "ip", "iproute2")
	if os.Getenv(insideEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestExerciserOnGanesha$", "-test.timeout=5m")
		cmd.Env = append(os.Environ(), insideEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	must(t, unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(t, unix.Mount("run", "/run", "tmpfs", 0, ""))
	for _, d := range []string{"/run/rpcbind", "/run/ganesha"} {
		must(t, os.Mkdir(d, 0o755))
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const port = 22049
	export, dir := t.TempDir(), t.TempDir()
	must(t, os.Chmod(export, 0o755))
	conf := filepath.Join(dir, "conf")
	must(t, os.WriteFile(conf, fmt.Appendf(nil, `NFS_CORE_PARAM { Protocols = 3; NFS_Port = %d; MNT_Port = %d; Enable_NLM = false; Enable_RQUOTA = false; }
EXPORT { Export_Id = 1; Path = %s; Pseudo = /data; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 3; Transports = TCP;
  FSAL { Name = VFS; } }
`, port, port+1, export), 0o600))
	daemon(t, "unix", "/run/rpcbind.sock", "rpcbind", "-w", "-f")
	daemon(t, "tcp", fmt.Sprintf("127.0.0.1:%d", port+1), "ganesha.nfsd", "-F", "-f", conf, "-L", filepath.Join(dir, "log"), "-p", filepath.Join(dir, "pid"))

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	v, _, err := infs.Mount(ctx, fmt.Sprintf("nfs://127.0.0.1:%d%s?mountport=%d", port, export, port+1), infs.Options{})
	must(t, err)
	c := &client{dir: filepath.Join(t.TempDir(), "mnt"), v: v}
	must(t, os.Mkdir(c.dir, 0o755))
	c.m, err = fusedir.Mount(ctx, c.dir, v, fusedir.Options{Locks: fusedir.LocksLocal})
	must(t, err)
	t.Cleanup(func() { c.close(t) })
	exercise(t, c)
}

// daemon runs a program until the test ends, and waits until it answers.
func daemon(t *testing.T, network, addr, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		var ee *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &ee) {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) { // another program's beginning has no event
		c, err := net.Dial(network, addr)
		if err == nil {
			must(t, c.Close())
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer: %v", name, err)
		}
	}
}
