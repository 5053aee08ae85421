package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/test/lib/faultfs"
)

// Scenario is one entry of the lab: a script in the guest and what the host does beside it.
type Scenario struct {
	Name  string
	Class string // short: in every run of the gate; long; reference: kernel against kernel, proves the lab itself
	About string // one line: what is proved
	Turn  bool   // of the long ones: the gate runs two of these with each commit, in turn

	Script string        // file in scenarios/, NAME.sh if empty
	Second string        // the script of a second guest, at the other end of a wire (two.go); "" for none
	Limit  time.Duration // the guest is stopped then
	Memory int           // MiB of the guest, 1024 if 0
	Kernel string        // a series that Debian has beside the stock kernel, e.g. "6.12"; stock if empty
	// Systemd boots the guest as a machine boots: systemd is process 1, udev runs, the script is a service. Nothing else
	// starts by itself. Otherwise the script is nearly alone in the guest, which is up much sooner.
	Systemd bool
	Files   []string // binaries under test that the guest gets in /lab/files
	Verbs   bool     // these binaries have the verbs provider (build.go)
	Host    []string // binaries under test that the host side uses

	// Prepare runs before the guest boots: it starts targets on the host and fills Args, Env and Forward.
	Prepare func(*Run) error
	// OnHost answers the script's on_host NAME ARG...; the text goes back to the script.
	OnHost func(r *Run, name string, args []string) (string, error)
	// Finish runs after the guest has ended well, for checks on the host.
	Finish func(*Run) error
}

// kernel names the image the scenario runs on.
func (s *Scenario) kernel() string {
	if s.Kernel == "" {
		return "stock"
	}
	return s.Kernel
}

// Run is one scenario in progress.
type Run struct {
	lab    *lab
	s      *Scenario
	Dir    string // logs stay here
	Tmp    string // gone afterwards
	guest  *guest
	target *target
	cutter *cutter
	port   int // of the host, forwarded to the guest
	before footprint
	medium *faultfs.FS // of the volume, where power is lost

	Args    []string
	Env     []string
	Forward []string // "HOSTPORT:GUESTPORT"
	Give    []string // files of the host that the guest gets in /lab/files too
	Log     *log
	board   *board // what two guests tell each other

	Ctx     context.Context
	cleanup []func()
}

// Defer runs f when the scenario is over, last first.
func (r *Run) Defer(f func()) { r.cleanup = append(r.cleanup, f) }

// give puts files of the repository into the guest's /lab/files.
func (r *Run) give(paths ...string) error {
	for _, p := range paths {
		to := filepath.Join(r.Tmp, "share/files", filepath.Base(p))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := copyFile(to, filepath.Join(r.lab.top, p)); err != nil {
			return err
		}
	}
	return nil
}

// Logf adds a line to the scenario's log, which is also shown.
func (r *Run) Logf(format string, a ...any) { r.Log.line("host: " + fmt.Sprintf(format, a...)) }

// log takes whole lines: to the scenario's file, and to standard output behind the scenario's name.
type log struct {
	mu   sync.Mutex
	name string
	file io.Writer
}

func (l *log) line(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(l.file, s)
	fmt.Printf("%14s | %s\n", l.name, s)
}

// runOne runs one scenario and returns the processor time its guest took.
func (l *lab) runOne(ctx context.Context, s *Scenario) (cpu time.Duration, err error) {
	r := &Run{lab: l, s: s, Dir: filepath.Join(l.out, s.Name), board: newBoard()}
	if err := os.RemoveAll(r.Dir); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return 0, err
	}
	if r.Tmp, err = os.MkdirTemp("", "lab-"); err != nil {
		return 0, err
	}
	logf, err := os.Create(filepath.Join(r.Dir, "log.txt"))
	if err != nil {
		return 0, err
	}
	r.Log = &log{name: s.Name, file: logf}
	ctx, cancel := context.WithTimeout(ctx, s.Limit+time.Minute)
	r.Ctx = ctx
	defer func() {
		for i := len(r.cleanup) - 1; i >= 0; i-- {
			r.cleanup[i]()
		}
		cancel()
		_ = logf.Close()
		_ = os.RemoveAll(r.Tmp)
		err = errors.Join(err, defects(r.Dir)) // when every program has ended
	}()
	if s.Prepare != nil {
		if err := s.Prepare(r); err != nil {
			return 0, fmt.Errorf("prepare: %w", err)
		}
	}
	guests, err := l.bootAll(r)
	if err != nil {
		return 0, err
	}
	err = waitAll(guests, cancel)
	// What the kernel says outranks the script's own verdict: a script may well end happily after a warning.
	var kerr error
	for _, g := range guests {
		if st := g.cmd.ProcessState; st != nil {
			cpu += st.UserTime() + st.SystemTime()
		}
		kerr = errors.Join(kerr, kernelVerdict(g.dir))
	}
	if kerr != nil {
		return cpu, errors.Join(kerr, err)
	}
	if err == nil && s.Finish != nil {
		err = s.Finish(r)
	}
	return cpu, err
}

// line takes each line of the script's output, and answers on_host.
func (g *guest) line(b []byte) {
	if g.name == "" {
		g.r.Log.line(string(b))
	} else {
		g.r.Log.line(g.name + ": " + string(b))
	}
	rest, ok := bytes.CutPrefix(b, []byte("## host "))
	if !ok {
		return
	}
	words := strings.Fields(string(rest))
	if len(words) < 2 {
		return
	}
	go g.answer(words[0], words[1], words[2:])
}

func (g *guest) answer(number, name string, args []string) {
	r := g.r
	text, err := "", fmt.Errorf("the scenario has nothing named %q", name)
	switch {
	case name == "tell" || name == "await":
		text, err = r.board.answer(r.Ctx, name, args)
	case r.s.OnHost != nil:
		text, err = r.s.OnHost(r, name, args)
	}
	rc := "0\n"
	if err != nil {
		rc, text = "1\n", text+"on_host "+name+": "+err.Error()+"\n"
	}
	base := filepath.Join(g.share, "host", number)
	// The status comes last, by rename: the guest looks for it and reads the text then.
	for _, f := range []struct{ name, data string }{{".out", text}, {".rc", rc}} {
		if err := os.WriteFile(base+".tmp", []byte(f.data), 0o644); err != nil {
			r.Logf("answer %s: %v", name, err)
			return
		}
		if err := os.Rename(base+".tmp", base+f.name); err != nil {
			r.Logf("answer %s: %v", name, err)
			return
		}
	}
}
