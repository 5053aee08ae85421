//go:build !race

// Other programs do the work here, in which the race detector sees nothing.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/port"
)

// packageRows is the table of docs/attach.md that the test below tries.
const packageRows = `| package | unused | in use |
| --- | --- | --- |
| upgraded | stays, served by the program it began with | the same |
| removed | ends | stays; dpkg names its process, which kill ends when it is unused |
| purged | ends, and no state is left | stays, and its record with it |
`

// overlay is this machine's system with changes of its own, where dpkg can do what it likes; all that runs in it ends with it.
type overlay struct {
	t   *testing.T
	pid int // of a process in it
}

func newOverlay(t *testing.T) *overlay {
	t.Helper()
	need.Root(t)
	need.Mount(t)
	need.Tool(t, "unshare", "util-linux")
	need.Tool(t, "nsenter", "util-linux")
	need.Tool(t, "deb-systemd-helper", "init-system-helpers")
	need.Tool(t, "systemd-sysusers", "systemd")
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-ec", `
cd "$0"; mkdir up root; mount -t tmpfs tmpfs up; mkdir up/upper up/work
mount -t overlay overlay -o lowerdir=/,upperdir=up/upper,workdir=up/work root
mount -t proc proc root/proc; mount --rbind /dev root/dev
for d in run tmp; do mount -t tmpfs tmpfs root/$d; done
echo ready; exec chroot root cat`, dir)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	c.Stderr = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cancel(); _ = c.Wait() }) // unshare takes all with it
	if l, err := bufio.NewReader(out).ReadString('\n'); err != nil || l != "ready\n" {
		t.Fatalf("the overlay says %q, %v: %s", l, err, said.String())
	}
	o := &overlay{t: t}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", c.Process.Pid))
	if _, serr := fmt.Sscan(string(b), &o.pid); err != nil || serr != nil {
		t.Fatalf("the process in it: %q, %v, %v", b, err, serr)
	}
	o.until("it is inside", func() bool { _, err := os.Stat(o.path("/run/systemd")); return errors.Is(err, os.ErrNotExist) })
	return o
}

func (o *overlay) until(what string, ok func() bool) {
	o.t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			o.t.Fatalf("%s: not after 90 s", what)
		}
	}
}

// path is where a file of the overlay's can be opened from outside.
func (o *overlay) path(p string) string { return fmt.Sprintf("/proc/%d/root%s", o.pid, p) }

// run runs a shell command inside.
func (o *overlay) run(script string) string {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "nsenter", "--target", fmt.Sprint(o.pid), "--mount", "--pid", "--root", "--wd", "sh", "-ec", script)
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "HOME=/tmp"}
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		o.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// attached are the helpers by the names of their attachments, as their records say.
func (o *overlay) attached() map[string]int {
	o.t.Helper()
	m := map[string]int{}
	files, err := filepath.Glob(o.path("/run/sluice-attach/*.json"))
	if err != nil {
		o.t.Fatal(err)
	}
	for _, f := range files {
		var r struct {
			Name string
			PID  int
		}
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := errors.Join(err, json.Unmarshal(b, &r)); err != nil {
			o.t.Fatal(err)
		}
		m[r.Name] = r.PID
	}
	return m
}

func (o *overlay) exists(p string) bool {
	_, err := os.Lstat(o.path(p))
	return err == nil
}

// An upgrade leaves attachments as they are. A removal ends those that are unused, also where they were begun by hand, and a purge leaves
// nothing of theirs.
func TestAttachmentsAndTheirPackage(t *testing.T) {
	if doc := string(must(os.ReadFile("../docs/attach.md"))(t)); !strings.Contains(doc, packageRows) {
		t.Errorf("docs/attach.md is to say\n%s", packageRows)
	}
	need.Tool(t, "dpkg-deb", "dpkg")
	need.FUSE(t)
	o := newOverlay(t)
	src, c := built(t)
	dir := t.TempDir()
	first := must(writeDeb(src, c, dir, dir, "none"))(t)
	later := *src
	later.version = "v1.2.4"
	second := must(writeDeb(&later, c, dir, dir, "none"))(t)
	for name, from := range map[string]string{"/run/1.deb": first, "/run/2.deb": second} {
		if err := os.WriteFile(o.path(name), must(os.ReadFile(from))(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const dpkg = "dpkg --force-unsafe-io --no-triggers "
	o.run("! dpkg -s sluice >/dev/null 2>&1 || " + dpkg + "-P sluice") // of a machine that has it
	o.run(dpkg + "-i /run/1.deb")

	blocks, files := free(t), free(t)
	conf := fmt.Sprintf("state_dir: /run/t\nportals: [{address: %q}]\nvolumes: [{name: v, size: 64MiB}, {name: w, size: 64MiB}]\n"+
		"targets: [{name: iqn.2026-11.io.sluice:t, luns: [{lun: 0, volume: v}, {lun: 1, volume: w}]}]\n"+
		"exports: [{path: /run/x, name: /x, clients: [{match: 127.0.0.1, squash: none, any_port: true}]}]\nfiles: {tcp: %q, rdma: none, rpcbind: none}\n", blocks, files)
	if err := os.WriteFile(o.path("/run/c.yaml"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	o.run("mkdir /run/t /run/x /run/du /run/db; truncate -s 64M /run/t/v.img /run/t/w.img; setsid sluiced --config /run/c.yaml >/run/daemon.log 2>&1 </dev/null &")
	for _, a := range []string{blocks, files} {
		o.until("the daemon answers", func() bool {
			c, err := net.Dial("tcp", a)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}
	url := "iser://" + blocks + "/iqn.2026-11.io.sluice:t/"
	_, port, _ := net.SplitHostPort(files)
	export := fmt.Sprintf("nfs://127.0.0.1:%s/x?mountport=%[1]s", port)
	attach := func() {
		t.Helper()
		o.run(fmt.Sprintf("for n in u b; do sluice attach %[1]s0 --face file --name f$n; sluice attach %[1]s1 --face socket --name s$n; sluice mount '%[2]s' /run/d$n --name d$n; done", url, export))
	}
	attach()
	was := o.attached()
	if len(was) != 6 {
		t.Fatalf("attached are %v", was)
	}

	file := must(os.OpenFile(o.path("/run/sluice-attach/fb.d/volume"), os.O_RDWR, 0))(t)
	defer file.Close()
	entry := must(os.OpenFile(o.path("/run/db/f"), os.O_RDWR|os.O_CREATE, 0o600))(t)
	defer entry.Close()
	socket := must(net.Dial("unix", o.path("/run/sluice-attach/sb.sock")))(t)
	defer socket.Close()
	works := func(b byte) {
		t.Helper()
		data := bytes.Repeat([]byte{b}, 4096)
		for kept, f := range map[string]*os.File{"/run/t/v.img": file, "/run/x/f": entry} {
			if _, err := f.WriteAt(data, 0); err != nil {
				t.Error(err)
			}
			if err := f.Sync(); err != nil {
				t.Error(err)
			}
			if got := must(os.ReadFile(o.path(kept)))(t); !bytes.Equal(got[:len(data)], data) {
				t.Errorf("%s has not what was written", kept)
			}
		}
	}
	same := func(what string, names ...string) {
		t.Helper()
		o.until(what+": what is to end has ended", func() bool { return len(o.attached()) == len(names) })
		now := o.attached()
		for _, n := range names {
			if now[n] == 0 || now[n] != was[n] || !strings.Contains(o.run(fmt.Sprintf("readlink /proc/%d/exe", now[n])), "/sluice") {
				t.Errorf("%s: the helper of %s is %d and not %d", what, n, now[n], was[n])
			}
		}
	}
	works('1')
	o.run(dpkg + "-i /run/2.deb")
	same("upgraded", "fu", "fb", "su", "sb", "du", "db")
	works('2')
	if got := o.run("sluice detach fu && sluice attach " + url + "0 --face file --name fu"); !strings.Contains(got, "volume") {
		t.Errorf("the new program and the old helper: %s", got)
	}

	said := o.run(dpkg + "-r sluice 2>&1")
	same("removed", "fb", "sb", "db")
	works('3')
	for _, n := range []string{"fb", "sb", "db"} {
		if !strings.Contains(said, fmt.Sprintf("kill %d\n", was[n])) {
			t.Errorf("the removal says nothing of process %d: %s", was[n], said)
		}
	}
	o.until("the mounts go", func() bool {
		return o.run("grep -c -e sluice-attach/.u.d -e /run/du /proc/self/mountinfo || true") == "0\n"
	})
	if o.exists("/run/sluice-attach/su.sock") {
		t.Error("left of what was unused: a socket")
	}
	o.run(dpkg + "-P sluice")
	same("purged", "fb", "sb", "db")
	works('4')
	if o.exists("/var/lib/sluice-attach") || o.exists("/var/lib/sluice-initiator") {
		t.Error("a purge leaves state")
	}
	file.Close()
	entry.Close()
	socket.Close()
	for _, n := range []string{"fb", "sb", "db"} {
		o.run(fmt.Sprintf("kill %d", was[n]))
	}
	o.until("they end when they are unused", func() bool { return len(o.attached()) == 0 })

	o.run(dpkg + "-i /run/1.deb")
	attach()
	o.run(fmt.Sprintf("kill -9 %d", o.attached()["su"]))
	o.run(dpkg + "-P sluice")
	o.until("the mounts go", func() bool {
		return o.run("grep -c -e sluice-attach/ -e /run/du -e /run/db /proc/self/mountinfo || true") == "0\n"
	})
	if left := o.attached(); len(left) != 0 || o.exists("/run/sluice-attach") || o.exists("/var/lib/sluice-attach") || o.exists("/var/lib/sluice-initiator") {
		t.Errorf("a purge leaves %v: %s", left, o.run("ls -laR /run/sluice-attach /var/lib/sluice-attach /var/lib/sluice-initiator 2>&1 || true"))
	}
}

// free returns an address without a listener.
func free(t *testing.T) string {
	t.Helper()
	return must(port.Loopback())(t)
}
