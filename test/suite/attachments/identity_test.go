package attachments

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// A process that the mounter's PID namespace does not know, as with a mount that a container made, is itself to the server, and not the
// mounter, who may be root.
func TestAProcessOfAnotherPIDNamespaceIsItself(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.FUSE(t)
	need.Tool(t, "unshare", "util-linux")
	s := start(t)
	s.up()
	mnt, export := filepath.Join(s.dir, "mnt"), filepath.Join(s.dir, "export")
	for _, d := range []string{s.dir, export} {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	helper := exec.CommandContext(ctx, "unshare", "--pid", "--fork", "--kill-child", filepath.Join(built, "sluice"),
		"attach", "--foreground", "--name", "a", "--dir", mnt, "--allow-other", "--attr-timeout", "-1s", "--", "env:")
	helper.Env = append(os.Environ(), "SLUICE_RUNTIME_DIR="+filepath.Join(s.dir, "run"), "SLUICE_STATE_DIR="+filepath.Join(s.dir, "state"), "SLUICE_URL="+s.exportURL())
	var said strings.Builder
	helper.Stdout, helper.Stderr = &said, &said
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- helper.Wait() }()
	s.until("the export is mounted", func() bool {
		var here, above syscall.Stat_t
		return syscall.Stat(mnt, &here) == nil && syscall.Stat(s.dir, &above) == nil && here.Dev != above.Dev
	})
	const me = 65534
	touch := exec.Command("touch", filepath.Join(mnt, "mine"))
	touch.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: me, Gid: me}}
	if out, err := touch.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(export, "mine"), &st); err != nil || st.Uid != me || st.Gid != me {
		t.Errorf("the file of %d belongs to %d:%d, %v", me, st.Uid, st.Gid, err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", helper.Process.Pid))
	var child int
	if _, serr := fmt.Sscan(string(b), &child); err != nil || serr != nil {
		t.Fatalf("the helper's number: %q, %v, %v", b, err, serr)
	}
	if err := syscall.Kill(child, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil {
		t.Errorf("the helper: %v: %s", err, said.String())
	}
}
