package attachments

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What is done to an attachment.
const (
	sigterm = "SIGTERM to the helper"
	detach  = "`sluice detach`"
	force   = "`sluice detach --force`"
	sigkill = "SIGKILL of the helper"
)

var acts = []string{sigterm, detach, force, sigkill}

// cell is what becomes of it. After a SIGKILL nothing serves; the exit code is that of the detach that clears away.
type cell struct {
	stays bool
	code  int // of the command
}

func (c cell) text(act string) string {
	switch {
	case act == sigkill:
		return fmt.Sprintf("helper gone; detach clears away (%d)", c.code)
	case act == sigterm && c.stays:
		return "stays"
	case act == sigterm:
		return "ends"
	case c.stays:
		return fmt.Sprintf("refused (%d), stays", c.code)
	}
	return fmt.Sprintf("ends (%d)", c.code)
}

// state is what programs have done with it and do.
type state string

const (
	unused    state = "unused"
	unflushed state = "unused, not flushed"
	inUse     state = "in use"
)

type row struct {
	faces []string
	away  bool
	state state
	cells [4]cell // in the order of acts
}

var ends, stays4, stays3 = cell{}, cell{stays: true, code: 4}, cell{stays: true, code: 3}

// What a directory writes is durable when its last file has been closed.
var (
	volumes = []string{"ublk", "device", "file", "socket"}
	all     = append(slices.Clone(volumes), "directory")
)

// rows is the table of docs/attach.md.
var rows = []row{
	{all, false, unused, [4]cell{ends, ends, ends, ends}},
	{volumes, false, unflushed, [4]cell{ends, ends, ends, ends}},
	{all, false, inUse, [4]cell{stays4, stays4, ends, ends}},
	{all, true, unused, [4]cell{ends, ends, ends, ends}},
	{volumes, true, unflushed, [4]cell{stays3, stays3, {code: 1}, ends}},
	{volumes, true, inUse, [4]cell{stays4, stays4, {code: 1}, ends}},
	{[]string{"directory"}, true, inUse, [4]cell{stays4, stays4, ends, ends}},
}

func (r *row) text() string {
	situation := map[bool]string{true: "away", false: "there"}[r.away]
	out := fmt.Sprintf("| %s | %s | %s |", strings.Join(r.faces, ", "), situation, r.state)
	for i, c := range r.cells {
		out += " " + c.text(acts[i]) + " |"
	}
	return out
}

func TestTheDocumentedTableIsTheTestedOne(t *testing.T) {
	want := "| face | target | | " + strings.Join(acts, " | ") + " |\n|" + strings.Repeat(" --- |", 3+len(acts)) + "\n"
	for i := range rows {
		want += rows[i].text() + "\n"
	}
	doc, err := os.ReadFile("../../../docs/attach.md")
	if err != nil || !strings.Contains(string(doc), want) {
		t.Errorf("%v; docs/attach.md is to say\n%s", err, want)
	}
}

func TestEveryRowOfTheTableHolds(t *testing.T) {
	t.Parallel()
	for _, r := range rows {
		for _, name := range r.faces {
			for _, f := range here() {
				if f.name != name {
					continue
				}
				for k, act := range acts {
					t.Run(fmt.Sprintf("%s/away=%v/%s/%s", name, r.away, r.state, strings.Trim(act, "`")), func(t *testing.T) {
						t.Parallel()
						r.try(t, &f, act, r.cells[k])
					})
				}
			}
		}
	}
}

func (r *row) try(t *testing.T, f *face, act string, want cell) {
	f.needs(t)
	s := start(t)
	s.up()
	s.must(f.attach(s, "--reconnect", "forever")...)
	a := s.attached()["a"]
	u, err := f.use(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { go u.close() }) // what a failure left may wait for the target
	do := u.write
	if r.state == unflushed {
		do = u.put
	}
	if err := do('1'); err != nil {
		t.Fatal(err)
	}
	if r.state != inUse {
		u.close()
	}
	if r.away {
		s.down()
	}
	// What a program is in the middle of.
	wrote := make(chan error, 1)
	if r.state == inUse && r.away {
		go func() { wrote <- u.write('2') }()
	}
	if r.away && f.name != "directory" { // of a server nothing is known but by calls
		s.until("the helper sees that the target is away", func() bool { return s.attached()["a"].Away != "" })
	}

	code := 0
	switch act {
	case sigterm, sigkill:
		sig := map[string]syscall.Signal{sigterm: syscall.SIGTERM, sigkill: syscall.SIGKILL}[act]
		if err := syscall.Kill(a.PID, sig); err != nil {
			t.Fatal(err)
		}
	case detach:
		_, code = s.sluice("detach", "a")
	case force:
		_, code = s.sluice("detach", "a", "--force")
	}
	switch {
	case act == sigterm && want.stays:
		s.until("the helper's log says why it stays", func() bool {
			b, _ := os.ReadFile(a.Log)
			return strings.Contains(string(b), "terminated: a stays attached: ")
		})
	case act == sigterm:
		s.until("the helper ends", func() bool { return len(s.attached()) == 0 })
	case act == sigkill:
		s.until("the helper is seen to be gone", func() bool { return s.attached()["a"].Broken })
		_, code = s.sluice("detach", "a")
	}
	if act != sigterm && code != want.code {
		t.Errorf("the exit code is %d and not %d", code, want.code)
	}
	if want.stays {
		r.goesOn(s, f, a, u, wrote)
		return
	}
	s.nothing(a.PID)
	if r.state == inUse {
		if !r.away {
			wrote <- u.write('2')
		}
		select {
		case err := <-wrote:
			if err == nil {
				t.Error("a program that had it open hears of no error")
			}
		case <-time.After(patience):
			t.Fatal("a program that had it open waits for ever")
		}
		u.close()
	}
	s.free(a.Path)
	s.kept(f, '1')
}

// goesOn checks that an attachment which stays serves as before, and ends when it can.
func (r *row) goesOn(s *stand, f *face, a attachment, u user, wrote chan error) {
	t := s.t
	if now := s.attached()["a"]; now.PID != a.PID || now.Broken || now.Path != a.Path {
		t.Fatalf("it does not stay as it was: %+v", now)
	}
	if r.away {
		s.up()
	}
	if r.state != inUse {
		var err error
		if u, err = f.use(a.Path); err != nil {
			t.Fatal(err)
		}
	}
	if r.state != inUse || !r.away {
		go func() { wrote <- u.write('2') }()
	}
	select {
	case err := <-wrote:
		if err != nil {
			t.Errorf("a program that uses it: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("a program that uses it waits for ever")
	}
	s.kept(f, '2')
	u.close()
	s.must("detach", "a")
	s.nothing(a.PID)
	s.free(a.Path)
}
