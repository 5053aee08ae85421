package nbd

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/port"
)

// exports adds an export of a directory that anybody may write, and returns it with the URLs of both transports.
func (l *lab) exports() (dir string, urls []string) {
	t := l.t
	t.Helper()
	ports := make([]string, 2)
	for i := range ports {
		var err error
		if ports[i], err = port.Loopback(); err != nil {
			t.Fatal(err)
		}
	}
	dir = filepath.Join(l.dir, "export")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(l.dir, "c.yaml")
	b, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	l.down()
	b = append(b, fmt.Sprintf("exports: [{path: %s, name: /x, clients: [{match: 127.0.0.1, squash: none, any_port: true}]}]\nfiles: {tcp: %q, rdma: %q, rpcbind: none, grace: 1s}\n", dir, ports[0], ports[1])...)
	if err := os.WriteFile(conf, b, 0o600); err != nil {
		t.Fatal(err)
	}
	l.up()
	for _, a := range ports { // each portal begins by itself
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // another process's port has no event
			if c, err := net.Dial("tcp", a); err == nil {
				c.Close()
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the daemon serves no files")
			}
		}
	}
	_, tcp, _ := net.SplitHostPort(ports[0])
	return dir, []string{"nfs://127.0.0.1:" + tcp + "/x?mountport=" + tcp, "nfs+rdma://" + ports[1] + "/x?mountport=" + tcp}
}

// An export is a directory, over both transports; what is written there is on the server when it is unmounted, and nothing
// is left.
func TestAnExportIsADirectory(t *testing.T) {
	need.FUSE(t)
	l := start(t)
	dir, urls := l.exports()
	mnt := filepath.Join(l.dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, url := range urls {
		l.sluice("mount", url, mnt, "--name", "m")
		want := noise(t, filepath.Join(mnt, fmt.Sprint("f", i)), 3<<20)
		if a := l.attached(t)["m"]; a.Mount != mnt || a.Path != mnt {
			t.Errorf("attachments: %+v", a)
		}
		if out, err := l.attempt("sluice", "mount", url, mnt); err != nil || !strings.Contains(out, "already") {
			t.Errorf("mounting what is mounted: %v %s", err, out)
		}
		busy, err := os.Open(mnt)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := l.attempt("sluice", "umount", mnt); err == nil || !strings.Contains(out, "busy") {
			t.Errorf("umount of what is in use: %v %s", err, out)
		}
		busy.Close()
		l.sluice("umount", mnt)
		if got, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("f", i))); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the server has %d bytes, %v", url, len(got), err)
		}
		if left := l.attached(t); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
	}
	for want, args := range map[string][]string{
		"no directory":         {"mount", urls[0], filepath.Join(l.dir, "nowhere")},
		"is no directory of":   {"mount", strings.Replace(urls[0], "/x?", "/x/f0?", 1), mnt},
		"do not go with it":    {"mount", urls[0], mnt, "--mkfs", "ext4"},
		"neither CHAP":         {"mount", urls[0], mnt, "--credentials", "/x"},
		"becomes a directory":  {"attach", urls[0]},
		"unknown mount option": {"mount", urls[0], mnt, "--options", "noatime"},
	} {
		out, err := l.attempt("sluice", args...)
		if err == nil || !strings.Contains(out, want) || strings.Count(strings.TrimSpace(out), "\n") > 0 {
			t.Errorf("sluice %q: %v, says %s", args, err, out)
		}
	}
	entries, err := os.ReadDir(filepath.Join(l.dir, "run"))
	if err != nil || len(entries) != 1 || entries[0].Name() != ".lock" {
		t.Errorf("left in the records' directory: %v %v", entries, err)
	}
}

// The helper of an export's directory is killed: the directory cannot even be looked at, and the next mount puts that right.
func TestAnExportsHelperIsKilled(t *testing.T) {
	need.FUSE(t)
	l := start(t)
	_, urls := l.exports()
	mnt := filepath.Join(l.dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	l.sluice("mount", urls[1], mnt, "--name", "m")
	want := noise(t, filepath.Join(mnt, "f"), 1<<20)
	pid := l.attached(t)["m"].PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); !l.attached(t)["m"].Broken; { // another process's end has no event
		if time.Now().After(deadline) {
			t.Fatal("the helper does not end")
		}
	}
	l.sluice("mount", urls[1], mnt, "--name", "m")
	if got, err := os.ReadFile(filepath.Join(mnt, "f")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	l.sluice("umount", mnt)
	if left := l.attached(t); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}
