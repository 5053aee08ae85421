package operator

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/storm"
)

// operator is one sequence: a daemon and what must be so.
type operator struct {
	*stand
	t    *rapid.T
	n    *counts
	may  []*model        // what can be so: more than one since a kill whose outcome has not been seen yet
	m    *model          // the first of them, by which steps are chosen
	took map[string]cost // by kind of step, when it was done last: kills are aimed by it
}

// cost is what a step took: time, and calls of the daemon to the file system.
type cost struct {
	time  time.Duration
	calls int
}

// counts are added up over runs. A kill is in the middle where the daemon had begun to do what was asked, by its calls to the
// file system, and had not answered; in a call where it was held in one.
type counts struct {
	sequences, steps, refusals, dry, kills, midst, inCall, inStart, inStop, inReload, inWrite, made, open atomic.Int64
}

func (n *counts) all() map[string]*atomic.Int64 {
	return map[string]*atomic.Int64{
		"sequences": &n.sequences, "steps": &n.steps, "refusals": &n.refusals, "dry runs": &n.dry, "kills": &n.kills, "kills in the middle": &n.midst, "kills in a call": &n.inCall,
		"kills in a start": &n.inStart, "kills in a stop": &n.inStop, "kills in a reload": &n.inReload, "kills in a write": &n.inWrite,
		"changes made though not answered": &n.made, "outcomes left open": &n.open,
	}
}

// step is one thing that an operator does: a command line, and what the model says of it.
type step struct {
	args  []string
	stdin string
	edits *conf // is in the operator's file before
	hup   bool  // by SIGHUP instead
	wet   bool  // has no dry run
	dry   bool
	apply func(*model) bool
}

func (s step) kind() string { return strings.Join(s.args[:min(2, len(s.args))], " ") }

// TestStormOperator runs sequences of everything that an operator can do. A failure is shrunk to a short one.
func TestStormOperator(t *testing.T) {
	for tool, from := range map[string]string{"iscsi-readcapacity16": "libiscsi-bin", "iscsi-inq": "libiscsi-bin", "iscsi-ls": "libiscsi-bin", "nfs-ls": "libnfs-utils"} {
		need.Tool(t, tool, from)
	}
	rounds, steps := storm.Rounds(t, 2), 10
	if storm.Long() {
		steps = 20
	}
	for name, value := range map[string]string{"checks": strconv.Itoa(rounds), "steps": strconv.Itoa(steps), "seed": strconv.FormatUint(storm.Seed(t), 10), "nofailfile": "true", "shrinktime": "1m"} {
		if err := flag.Set("rapid."+name, value); err != nil {
			t.Fatal(err)
		}
	}
	var n counts
	t.Cleanup(func() {
		for what, v := range n.all() {
			storm.Count(t, what, int(v.Load()))
			t.Logf("%s: %d", what, v.Load())
		}
	})
	rapid.Check(t, func(t *rapid.T) { sequence(t, &n) })
}

// prepare makes a daemon with the volume and the target of its file, and the file of a volume that its file may name later.
func prepare() (*stand, *model, error) {
	s, err := newStand()
	if err != nil {
		return nil, nil, err
	}
	m := newModel()
	for k, name := range []string{"c0.img", "c1.img"} {
		b := bytes.Repeat([]byte(name+strconv.Itoa(k)+" is here.\n"), 2*mib/16)[:2*mib]
		m.files[name] = b
		if err := os.WriteFile(filepath.Join(s.dir, name), b, 0o600); err != nil {
			return nil, nil, err
		}
	}
	return s, m, errors.Join(os.WriteFile(filepath.Join(s.dir, "exported/marker"), nil, 0o644), m.conf.put(s))
}

func (o *operator) end() {
	var err error
	if o.daemon != nil {
		err = o.down(syscall.SIGKILL)
	}
	if err = errors.Join(err, os.RemoveAll(o.dir)); err != nil {
		o.t.Fatal(err)
	}
}

func sequence(t *rapid.T, n *counts) {
	s, m, err := prepare()
	if err != nil {
		t.Fatal(err)
	}
	o := &operator{stand: s, t: t, n: n, took: map[string]cost{}, may: []*model{m}, m: m}
	defer o.end()
	o.rise()
	o.settle(o.may, true, "the first start")
	n.sequences.Add(1)
	act := func(do func()) func(*rapid.T) {
		return func(t *rapid.T) {
			o.t = t
			n.steps.Add(1)
			do()
		}
	}
	actions := map[string]func(*rapid.T){"write": act(o.write), "restart": act(o.restart), "away": act(o.away), "wrong start": act(o.wrongStart), "session": act(o.session)}
	for name, draw := range map[string]func() step{
		"create": o.create, "resize": o.resize, "delete": o.remove, "copy": o.copy, "target": o.target, "new target": o.createTarget, "map": o.mapLUN, "map again": o.mapLUN, "unmap": o.unmap,
		"allow": o.allow, "deny": o.deny, "secret": o.secret, "mutual": o.mutual, "group": o.group, "portal": o.listen, "export": o.export, "edit": o.edit,
	} {
		actions[name] = act(func() { o.do(draw()) })
	}
	t.Repeat(actions)
	o.t = t
	o.must(o.down(syscall.SIGTERM))
	o.must(o.up())
	o.settle(o.may, true, "the last restart") // what is so stays so
}

func (o *operator) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatalf("%v\nthe daemon's log ends\n%s", err, tail(o.logged()))
	}
}

// settle keeps of what could be so what is seen to be.
func (o *operator) settle(could []*model, deep bool, after string) {
	o.t.Helper()
	var kept []*model
	var errs []error
	for _, m := range could {
		if slices.ContainsFunc(kept, m.same) {
			continue
		}
		if err := o.check(m, deep); err != nil {
			errs = append(errs, err)
			continue
		}
		kept = append(kept, m)
	}
	if len(kept) == 0 {
		o.t.Fatalf("after %s nothing that could be so is:\n%v\nthe daemon's log ends\n%s", after, errors.Join(errs...), tail(o.logged()))
	}
	if len(kept) > 1 {
		o.n.open.Add(1)
	}
	o.may, o.m = kept, kept[0]
}

// outcome is a step's on one of the models.
type outcome struct {
	before, after *model
	ok            bool
}

func (o *operator) outcomes(s step) []outcome {
	var l []outcome
	for _, m := range o.may {
		a := m.clone()
		ok := s.apply(a)
		if s.dry || !ok {
			a = m.clone()
		}
		l = append(l, outcome{m, a, ok})
	}
	return l
}

// do runs a step: in one of four with a SIGKILL in the middle, or as a dry run, which says the same and does nothing.
func (o *operator) do(s step) {
	o.t.Helper()
	if !s.wet && !s.hup && o.chance("dry run", 3) {
		s.dry = true
		s.args = append(s.args, "--dry-run")
		o.n.dry.Add(1)
	}
	could := o.outcomes(s)
	if s.edits != nil {
		o.must(s.edits.put(o.stand))
	}
	if o.chance("kill", 2) {
		o.killed(s, could)
		return
	}
	var out string
	var err error
	o.measure(s.kind(), func() { out, err = o.perform(s, could) })
	var f *failure
	if err != nil && !errors.As(err, &f) || f != nil && f.code != 2 && f.code != 4 {
		o.t.Fatalf("%v: %v", s.args, err)
	}
	var next []*model
	for _, c := range could {
		if c.ok == (err == nil) {
			next = append(next, c.after)
		}
	}
	switch {
	case len(next) == 0 && err != nil:
		o.t.Fatalf("%v is refused, and should be done: %v", s.args, err)
	case len(next) == 0:
		o.t.Fatalf("%v is done, and should be refused: %s", s.args, out)
	}
	if err != nil {
		o.n.refusals.Add(1)
	}
	if s.edits != nil && (s.dry || err != nil) {
		o.must(next[0].conf.put(o.stand))
	}
	o.settle(next, true, fmt.Sprint(s.args))
}

// measure does what a kill may be aimed at later.
func (o *operator) measure(kind string, do func()) {
	begin := time.Now()
	watched.arm(0)
	do()
	calls, _ := watched.disarm()
	o.took[kind] = cost{time.Since(begin), calls}
}

// perform runs a step. A SIGHUP has no answer: a change is seen, and a refusal is logged.
func (o *operator) perform(s step, could []outcome) (string, error) {
	if !s.hup {
		return o.sluice([]byte(s.stdin), s.args...)
	}
	const refused = "\tERROR\treload"
	before := strings.Count(o.logged(), refused)
	o.must(o.daemon.Process.Signal(syscall.SIGHUP))
	for deadline := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		if strings.Count(o.logged(), refused) > before {
			return "", &failure{"SIGHUP", 4, tail(o.logged())}
		}
		for _, c := range could {
			if c.ok && o.checkLists(c.after) == nil {
				return "", nil
			}
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("a SIGHUP has no effect (expected: %v)\n%s", could[0].ok, tail(o.logged()))
		}
	}
}

func (s *stand) logged() string {
	b, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
