package nbd

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// What people are told when they cannot have what they want: the whole of it, word for word, each with what to do about it.
func TestSentences(t *testing.T) {
	need.Root(t)
	need.Mount(t)
	l := start(t)
	conf := filepath.Join(l.dir, "c.yaml")
	b, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.dir, "secrets"), []byte("somebody 1234567890ab\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const locked = "iqn.2026-11.io.sluice:locked"
	l.down()
	text := strings.Replace(string(b), "targets: [", "targets: [{name: "+locked+", auth: {secrets_file: "+filepath.Join(l.dir, "secrets")+"}, luns: [{lun: 0, volume: w}]}, ", 1)
	text = strings.Replace(text, "volumes: [", "volumes: [{name: w, size: 1MiB}, ", 1)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l.up()
	busy := filepath.Join(l.dir, "busy")
	l.sluice("attach", l.url(), "--face", "socket", "--socket", busy, "--name", "busy")
	defer l.sluice("detach", "busy")

	for _, tc := range []struct {
		what, args, want string
		asUser, noFUSE   bool
	}{
		{what: "no such target", args: "attach iser://ADDR/iqn.2026-11.io.sluice:nope/0 --face socket --name a",
			want: "iscsi: login refused: there is no target of that name at this address (status 0x0203); sluice discover lists the targets of an address"},
		{what: "no such unit", args: "attach iser://ADDR/TARGET/9 --face socket --name a",
			want: "block: iser://ADDR/TARGET/9: TEST UNIT READY: block: the target answers ILLEGAL REQUEST: logical unit not supported (ASC 0x25, ASCQ 0x00); the target has no such LUN"},
		{what: "nobody there", args: "attach iser://127.0.0.1:1/TARGET/0 --face socket --name a",
			want: "block: connect to 127.0.0.1:1: iwarp: connect: dial tcp 127.0.0.1:1: connect: connection refused; does a target listen there? One behind RDMA adapters (RoCE, InfiniBand) listens for --provider verbs, or ?provider=verbs in the URL"},
		{what: "wrong secret", args: "attach iser://somebody%wrongwrongwrong@ADDR/LOCKED/0 --face socket --name a",
			want: "iscsi: login refused: the target did not accept the user name or secret, or wants authentication (status 0x0201); see --credentials"},
		{what: "no /dev/fuse", args: "attach iser://ADDR/TARGET/0 --face file --name a", noFUSE: true,
			want: "--face file is not possible here: there is no /dev/fuse (modprobe fuse; a container has to be given it); --face auto takes what is"},
		{what: "no /dev/fuse for an export", args: "mount nfs://ADDR/x DIR --name a", noFUSE: true,
			want: "an export is mounted by FUSE, and there is no /dev/fuse (modprobe fuse; a container has to be given it)"},
		{what: "socket in use", args: "attach iser://ADDR/TARGET/0 --face socket --name b --socket BUSY",
			want: "BUSY is in use: a process listens there; choose another with --socket"},
		{what: "mount point missing", args: "mount iser://ADDR/TARGET/0 DIR/missing",
			want: "DIR/missing is no directory; make it first"},
		{what: "not root: mount", args: "mount iser://ADDR/TARGET/0 DIR", asUser: true,
			want: "mounting a file system needs root; sluice attach works without"},
		{what: "not root: device", args: "attach iser://ADDR/TARGET/0 --face device", asUser: true,
			want: "a block device needs root; --face file or --face socket work without"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			words := strings.NewReplacer("ADDR", l.addr, "TARGET", target, "LOCKED", locked, "DIR", l.dir, "BUSY", busy)
			args := strings.Fields(words.Replace(tc.args))
			var out string
			var err error
			switch {
			case tc.asUser:
				out, err = l.user("sluice " + strings.Join(args, " "))
			case tc.noFUSE:
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				script := "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec " + filepath.Join(l.bin, "sluice") + ` "$@"`
				var b []byte
				b, err = exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--propagation", "private", "sh", "-ec", script, "sh"}, args...)...).CombinedOutput()
				out = string(b)
			default:
				out, err = l.attempt("sluice", args...)
			}
			if want := words.Replace(tc.want); err == nil || strings.TrimSpace(out) != "sluice: "+want {
				t.Errorf("%v, says\n%s\nwant\nsluice: %s", err, out, want)
			}
		})
	}
}
