package operator

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
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

	"github.com/sluice-storage/sluice/test/need"
	"github.com/sluice-storage/sluice/test/storm"
)

// operator is one sequence: a daemon and what must be so.
type operator struct {
	*stand
	t    *rapid.T
	m    *model
	took time.Duration // of the last step: a kill is aimed by it
}

type counts struct{ sequences, steps, refusals, kills, midst, made atomic.Int64 }

// step is one thing that an operator does: a command line, and what the model says of it.
type step struct {
	args  []string
	stdin string
	hup   bool // by SIGHUP instead
	apply func(*model) bool
}

// TestStormOperator runs sequences of everything that an operator can do. A failure is shrunk to a short one.
func TestStormOperator(t *testing.T) {
	for tool, from := range map[string]string{"iscsi-readcapacity16": "libiscsi-bin", "iscsi-inq": "libiscsi-bin", "nfs-ls": "libnfs-utils"} {
		need.Tool(t, tool, from)
	}
	rounds, steps := storm.Rounds(t, 2), 10
	if storm.Long() {
		steps = 25
	}
	for name, value := range map[string]string{"checks": strconv.Itoa(rounds), "steps": strconv.Itoa(steps), "seed": strconv.FormatUint(storm.Seed(t), 10), "nofailfile": "true", "shrinktime": "2m"} {
		if err := flag.Set("rapid."+name, value); err != nil {
			t.Fatal(err)
		}
	}
	var n counts
	t.Cleanup(func() {
		for what, v := range map[string]*atomic.Int64{"sequences": &n.sequences, "steps": &n.steps, "refusals": &n.refusals, "kills": &n.kills, "kills in the middle": &n.midst, "changes made though not answered": &n.made} {
			storm.Count(t, what, int(v.Load()))
			t.Logf("%s: %d", what, v.Load())
		}
	})
	rapid.Check(t, func(t *rapid.T) { sequence(t, &n) })
}

func sequence(t *rapid.T, n *counts) {
	s, err := newStand()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		err := s.down(syscall.SIGKILL)
		if err = errors.Join(err, os.RemoveAll(s.dir)); err != nil {
			t.Fatal(err)
		}
	}()
	o := &operator{stand: s, t: t, took: 40 * time.Millisecond}
	o.m = &model{files: map[string][]byte{}, volumes: map[string]*volume{"c0": {file: "c0.img"}}, exports: map[string]bool{"/first": true}, sizes: map[string]int{},
		targets: map[string]*target{confTarget: {luns: map[int]string{}, own: map[int]string{0: "c0"}, list: map[string][]int{}, secrets: map[string]string{}}}}
	for k, name := range []string{"c0.img", "c1.img"} { // c1's waits for a configuration that names it
		b := bytes.Repeat([]byte(name+strconv.Itoa(k)+" is here.\n"), 2*mib/16)[:2*mib]
		o.m.files[name] = b
		if err := os.WriteFile(filepath.Join(s.dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(s.dir, "exported/marker"), nil, 0o644), os.WriteFile(s.conf, []byte(o.m.conf.text(s)), 0o600), s.up()); err != nil {
		t.Fatal(err)
	}
	o.must(s.check(o.m, true))
	n.sequences.Add(1)
	act := func(draw func() step) func(*rapid.T) {
		return func(t *rapid.T) {
			o.t = t
			n.steps.Add(1)
			o.do(draw(), n)
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"create": act(o.create), "resize": act(o.resize), "delete": act(o.remove), "copy": act(o.copy), "target": act(o.target), "new target": act(o.createTarget), "map": act(o.mapLUN),
		"map again": act(o.mapLUN), "unmap": act(o.unmap), "allow": act(o.allow), "deny": act(o.deny), "secret": act(o.secret), "export": act(o.export), "edit": act(o.edit),
		"write": func(t *rapid.T) { o.t = t; n.steps.Add(1); o.write() },
		"restart": func(t *rapid.T) {
			o.t = t
			n.steps.Add(1)
			sig := rapid.SampledFrom([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}).Draw(t, "signal")
			n.kills.Add(1)
			o.must(errors.Join(s.down(sig), s.up()))
			o.must(s.check(o.m, true))
		},
		"away": func(t *rapid.T) { o.t = t; n.steps.Add(1); o.away() },
	})
	o.must(errors.Join(s.down(syscall.SIGTERM), s.up())) // what is so stays so
	o.must(s.check(o.m, true))
}

func (o *operator) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatalf("%v\nthe daemon's log ends\n%s", err, tail(o.logged()))
	}
}

// do runs a step, in one of five with a SIGKILL in the middle.
func (o *operator) do(s step, n *counts) {
	o.t.Helper()
	want := o.m.clone()
	ok := s.apply(want)
	if rapid.IntRange(0, 4).Draw(o.t, "kill") == 4 {
		n.kills.Add(1)
		n.midst.Add(1)
		o.killed(s, want, ok, o.took*time.Duration(rapid.IntRange(20, 110).Draw(o.t, "after"))/100, n)
		return
	}
	begin := time.Now()
	out, err := o.perform(s, want, ok)
	o.took = time.Since(begin)
	var f *failure
	switch {
	case err != nil && !errors.As(err, &f), f != nil && f.code != 2 && f.code != 4:
		o.t.Fatalf("%v: %v", s.args, err)
	case ok && err != nil:
		o.t.Fatalf("%v is refused, and should be done: %v", s.args, err)
	case !ok && err == nil:
		o.t.Fatalf("%v is done, and should be refused: %s", s.args, out)
	}
	if ok {
		o.m = want
	} else {
		n.refusals.Add(1)
		o.restoreConf()
	}
	if err := o.check(o.m, true); err != nil {
		o.t.Fatalf("after %v: %v\nthe daemon's log ends\n%s", s.args, err, tail(o.logged()))
	}
}

// perform runs a step. A SIGHUP has no answer: a change is seen, and a refusal is logged.
func (o *operator) perform(s step, want *model, ok bool) (string, error) {
	if !s.hup {
		return o.sluice([]byte(s.stdin), s.args...)
	}
	const refused = "\tERROR\treload"
	before := strings.Count(o.logged(), refused)
	o.must(o.daemon.Process.Signal(syscall.SIGHUP))
	for deadline := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		log := strings.Count(o.logged(), refused)
		switch {
		case log > before:
			return "", &failure{"SIGHUP", 4, tail(o.logged())}
		case ok && o.checkLists(want) == nil:
			return "", nil
		case time.Now().After(deadline):
			o.t.Fatalf("a SIGHUP has no effect (expected: %v)\n%s", ok, tail(o.logged()))
		}
	}
}

// killed runs a step and kills the daemon in the middle. What was acknowledged is done; of the rest all or nothing is, but that a
// file can be left that no volume has: it is made before and removed after what is written down.
func (o *operator) killed(s step, want *model, ok bool, after time.Duration, n *counts) {
	o.t.Helper()
	result := make(chan error, 1)
	go func() {
		if s.hup {
			result <- cmp.Or(o.daemon.Process.Signal(syscall.SIGHUP), errUnknown)
			return
		}
		_, err := o.sluice([]byte(s.stdin), s.args...)
		result <- err
	}()
	time.Sleep(after) // the moment of the kill is the point
	o.must(o.down(syscall.SIGKILL))
	done := <-result == nil
	candidates := []*model{want}
	if !done {
		candidates = append(candidates, o.m.clone())
	}
	if !ok {
		candidates = []*model{o.m.clone()}
	}
	if o.edited() && !ok {
		o.restoreConf() // a daemon does not start with a file that a reload has refused
	}
	if o.edited() && !done && ok {
		candidates = []*model{want} // the file is edited: the next start takes it
	}
	o.must(o.up())
	var errs []error
	for _, m := range candidates {
		if !done {
			o.adopt(m)
		}
		err := o.check(m, true)
		if err == nil {
			if m == want && !done {
				n.made.Add(1)
			}
			o.m = m
			return
		}
		errs = append(errs, err)
	}
	o.t.Fatalf("after %v, killed in the middle (acknowledged: %v):\n%v\nthe daemon's log ends\n%s", s.args, done, errors.Join(errs...), tail(o.logged()))
}

// errUnknown stands for the outcome of a SIGHUP.
var errUnknown = errors.New("not known")

// adopt gives a candidate the files that an interrupted creation or deletion has left beside the volumes.
func (o *operator) adopt(m *model) {
	used := map[string]bool{"c1.img": true}
	for _, v := range m.volumes {
		used[v.file] = true
	}
	l, err := filepath.Glob(filepath.Join(o.dir, "*.img"))
	if err != nil {
		o.t.Fatal(err)
	}
	for _, path := range l {
		name := filepath.Base(path)
		if _, known := o.m.files[name]; used[name] || known && m.files[name] != nil {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			o.t.Fatal(err)
		}
		if old, known := o.m.files[name]; known && !bytes.Equal(old, b) {
			o.t.Fatalf("%s was changed by a deletion", name)
		}
		m.files[name] = b
	}
}

func (o *operator) edited() bool {
	b, err := os.ReadFile(o.conf)
	return err != nil || string(b) != o.m.conf.text(o.stand)
}

func (o *operator) restoreConf() {
	if err := os.WriteFile(o.conf, []byte(o.m.conf.text(o.stand)), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

func (o *operator) logged() string {
	b, err := os.ReadFile(o.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// edit changes the operator's file and has it read.
func (o *operator) edit() step {
	c := conf{size: one(o, "size", 0, 1, 2, 3, 4), second: rapid.Bool().Draw(o.t, "second"), broken: rapid.IntRange(0, 5).Draw(o.t, "broken") == 5}
	if err := os.WriteFile(o.conf, []byte(c.text(o.stand)), 0o600); err != nil {
		o.t.Fatal(err)
	}
	return step{args: []string{"reload"}, hup: rapid.Bool().Draw(o.t, "hup"), apply: func(m *model) bool { return m.load(c) }}
}

// away starts the daemon without a volume's file: nothing is made in its place, its LUN is not ready, and all others are served.
func (o *operator) away() {
	v := one(o, "volume", slices.Sorted(keys(o.m.volumes))...)
	file := o.m.volumes[v].file
	without := o.m.clone()
	delete(without.files, file)
	for _, t := range without.targets {
		t.own = maps.Clone(t.own)
		for _, l := range []map[int]string{t.own, t.luns} {
			maps.DeleteFunc(l, func(_ int, name string) bool { return name == v })
		}
	}
	path, aside := filepath.Join(o.dir, file), filepath.Join(o.dir, "aside")
	o.must(errors.Join(o.down(syscall.SIGTERM), os.Rename(path, aside), o.up()))
	o.must(errors.Join(o.checkFiles(without), o.checkSeen(without)))
	o.must(errors.Join(o.down(syscall.SIGKILL), os.Rename(aside, path), o.up()))
	o.must(o.check(o.m, true))
}

// write changes some bytes of what a host sees, at any place; a LUN that it does not see, or that is read-only, it cannot change.
func (o *operator) write() {
	name, host := o.anyTarget(), one(o, "host", hosts...)
	t := o.m.targets[name]
	if t == nil {
		return
	}
	lun := likely(o, "lun", slices.DeleteFunc(slices.Clone(luns), func(l int) bool { return t.sees(host, l) == "" }), luns...)
	v := t.sees(host, lun)
	at, n := rapid.IntRange(0, mib).Draw(o.t, "at"), rapid.IntRange(1, 70000).Draw(o.t, "bytes")
	data := bytes.Repeat([]byte(fmt.Sprintf("%s %d %d.", v, at, n)), n)[:n]
	ok := v != "" && !o.m.volumes[v].readOnly && at+n <= o.m.size(v)
	_, err := o.sluice(data, "write", o.url(t, name, lun), "--initiator", host, "--offset", strconv.Itoa(at))
	if ok != (err == nil) {
		o.t.Fatalf("a write of %d bytes at %d to LUN %d of %s (volume %q) as %s: %v", n, at, lun, name, v, host, err)
	}
	if ok {
		b := slices.Clone(o.m.files[o.m.volumes[v].file])
		copy(b[at:], data)
		o.m.files[o.m.volumes[v].file] = b
	}
	if v != "" && !ok && !strings.Contains(fmt.Sprint(err), "exit") {
		o.t.Fatal(err)
	}
	o.must(o.check(o.m, false))
}
