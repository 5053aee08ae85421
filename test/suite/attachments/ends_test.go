package attachments

import (
	"bufio"
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

// A container has a copy of each mount that was there when it began, and the kernel keeps a FUSE connection while there is one: no end
// waits for that.
func TestACopyOfTheMountInAnotherNamespaceHoldsUpNoEnd(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.Mount(t)
	need.Tool(t, "unshare", "util-linux")
	for i := range faces {
		f := &faces[i]
		if f.name == "socket" {
			continue
		}
		for _, end := range []string{"detach", "umount"} {
			if f.name == "file" && end == "umount" {
				continue // nothing is mounted on it
			}
			t.Run(f.name+"/"+end, func(t *testing.T) {
				t.Parallel()
				f.needs(t)
				s := start(t)
				s.up()
				s.must(f.attach(s)...)
				a := s.attached()["a"]
				u, err := f.use(a.Path)
				if err != nil {
					t.Fatal(err)
				}
				if err := u.write('1'); err != nil {
					t.Fatal(err)
				}
				u.close()
				ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
				defer cancel()
				other := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-c", `ls -d "$0" && read end; ls "$0" 2>&1; true`, a.Path)
				in, err := other.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				out, err := other.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := other.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() { in.Close(); _ = other.Wait() }()
				lines := bufio.NewScanner(out)
				if !lines.Scan() || lines.Text() != a.Path {
					t.Fatalf("the other namespace says %q", lines.Text())
				}
				s.must(end, "a")
				s.nothing(a.PID)
				s.kept(f, '1')
				in.Close()
				if lines.Scan() && !strings.Contains(lines.Text(), "not connected") && !strings.Contains(lines.Text(), "No such file") {
					t.Errorf("the copy still shows %q", lines.Text())
				}
			})
		}
	}
}

// With reconnect=forever a table's volume whose target is away is waited for, in the background; without, it is an error.
func TestTheFirstLoginIsTriedUntilTheTargetIsThere(t *testing.T) {
	t.Parallel()
	s := start(t)
	tab := filepath.Join(s.dir, "tab")
	if err := os.WriteFile(tab, []byte(fmt.Sprintf("a %[1]s - as=socket,reconnect=forever\nb %[1]s - as=socket\n", s.url())), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := s.sluice("map", "b", "--table", tab); code != 3 {
		t.Errorf("without forever: %d %s", code, out)
	}
	s.must("map", "a", "--table", tab)
	a := s.attached()["a"]
	if !a.Starting || a.Away == "" {
		t.Fatalf("it does not wait: %+v", a)
	}
	if out, _ := s.sluice("attachments"); !strings.Contains(out, "attaching; target away") {
		t.Errorf("attachments:\n%s", out)
	}
	s.must("map", "a", "--table", tab) // as often as asked
	s.up()
	s.until("it is attached", func() bool { return !s.attached()["a"].Starting })
	u, err := dialNBD(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.write('1'); err != nil {
		t.Fatal(err)
	}
	u.close()
	s.must("detach", "a")
	s.nothing(a.PID)

	// One that still waits can be ended; one that the target refuses does not wait.
	s.down()
	for _, how := range []string{"detach", "SIGTERM"} {
		s.must("map", "a", "--table", tab)
		a = s.attached()["a"]
		if how == "detach" {
			s.must("detach", "a")
		} else if err := syscall.Kill(a.PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		s.until("the record goes", func() bool { return len(s.attached()) == 0 })
		s.nothing(a.PID)
	}
	s.up()
	if out, code := s.sluice("attach", strings.TrimSuffix(s.url(), "/0")+"/9", "--face", "socket", "--name", "c", "--reconnect", "forever"); code != 4 {
		t.Errorf("no such LUN: %d %s", code, out)
	}
}

// A live attachment shows its paths and what became of them.
func TestALiveAttachmentShowsItsPathsAndTheirLog(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.up()
	s.must("attach", s.url()+","+strings.Replace(s.url(), "iser", "iscsi", 1), "--face", "socket", "--name", "a", "--reconnect", "forever")
	for _, p := range s.attached()["a"].Status.Paths {
		if p.State != "active" || p.URL == "" {
			t.Errorf("path %+v", p)
		}
	}
	if n := len(s.attached()["a"].Status.Paths); n != 2 {
		t.Errorf("%d paths", n)
	}
	s.down()
	s.until("both paths are seen to be down", func() bool {
		st := s.attached()["a"].Status
		return len(st.Paths) == 2 && st.Paths[0].State == "down" && st.Paths[1].State == "down" && st.Paths[0].Error != ""
	})
	s.up()
	s.until("a path is back", func() bool {
		st := s.attached()["a"].Status
		return len(st.Paths) == 2 && (st.Paths[0].State == "active" || st.Paths[1].State == "active")
	})
	back := false
	for _, p := range s.attached()["a"].Status.Paths {
		back = back || p.Logins >= 2 && p.Losses >= 1 && p.Commands > 0
	}
	if !back {
		t.Errorf("no path counts its loss and return: %+v", s.attached()["a"].Status.Paths)
	}
	log := strings.Join(s.attached()["a"].Status.Log, "\n")
	if !strings.Contains(log, "path is lost") || !strings.Contains(log, "path is up") {
		t.Errorf("the log:\n%s", log)
	}
	if out, _ := s.sluice("attachments", "a"); !strings.Contains(out, "iscsi://") || !strings.Contains(out, "path is lost") {
		t.Errorf("attachments a:\n%s", out)
	}
	s.must("detach", "a")
}
