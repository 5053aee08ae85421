package operator

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pgregory.net/rapid"
)

// errUnknown stands for the outcome of what has no answer.
var errUnknown = errors.New("not known")

// aim is where a kill is to land: in the n-th call that the daemon makes to its file system, or after a part of the time that
// the work took when it was done last.
type aim struct {
	call  int
	after time.Duration
}

func (o *operator) aim(kind string) aim {
	last, part := o.took[kind], o.part("aim")
	if last.time == 0 {
		last = cost{30 * time.Millisecond, 8}
	}
	if rapid.Bool().Draw(o.t, "by call") && watched != nil && last.calls > 0 {
		return aim{1 + int(part*float64(last.calls-1)), 2*last.time + 100*time.Millisecond} // there may be fewer this time
	}
	return aim{after: time.Duration(1.2 * part * float64(last.time))}
}

// shoot has work begin, kills the daemon where a says and waits until it has ended. It reports whether the work was answered
// before. Without an answer within the time of a, the daemon is killed too. Where begin itself has it at work, that is begun;
// a command's is when the daemon calls the file system.
func (o *operator) shoot(a aim, answer <-chan error, begun bool, begin func()) (answered bool, err error) {
	o.t.Helper()
	shot := watched.arm(a.call)
	begin()
	t := time.NewTimer(a.after) // the moment of the kill is the point
	defer t.Stop()
	if a.call > 0 {
		select {
		case <-shot:
		case err = <-answer:
			answered = true
		case <-t.C:
		}
	} else {
		<-t.C
	}
	if !answered {
		select {
		case err = <-answer:
			answered = true
		default:
		}
	}
	seen, in := watched.disarm()
	o.must(o.down(syscall.SIGKILL))
	o.n.kills.Add(1)
	if !answered && (begun || seen > 0 || watched == nil) {
		o.n.midst.Add(1)
	}
	if in {
		o.n.inCall.Add(1)
	}
	return answered, err
}

// killed runs a step and kills the daemon in the middle. What was acknowledged is done; of the rest all or nothing is, but that a
// file can be left that no volume has: it is made before and removed after what is written down.
func (o *operator) killed(s step, could []outcome) {
	o.t.Helper()
	result := make(chan error, 1)
	answered, err := o.shoot(o.aim(s.kind()), result, false, func() {
		if s.hup {
			if err := o.daemon.Process.Signal(syscall.SIGHUP); err != nil {
				result <- err
			}
			return
		}
		go func() {
			_, err := o.sluice([]byte(s.stdin), s.args...)
			result <- err
		}()
	})
	if !answered && !s.hup {
		err = <-result
	} else if !answered {
		err = errUnknown
	}
	done := err == nil
	if s.edits != nil && !done {
		o.n.inReload.Add(1)
	}
	var next []*model
	refused := false
	for _, c := range could {
		refused = refused || !c.ok
		if c.ok {
			next = append(next, c.after)
		}
		if !c.ok && !done || c.ok && !done && s.edits == nil {
			next = append(next, c.before)
		}
	}
	if len(next) == 0 {
		o.t.Fatalf("%v is done, and should be refused", s.args)
	}
	if s.edits != nil && (refused || s.dry) {
		o.must(o.m.conf.put(o.stand)) // a daemon does not start with a file that a reload has refused
	}
	o.rise()
	if !done {
		known := o.m.files
		for i, m := range next {
			next[i] = m.clone()
			o.adopt(next[i], known)
		}
	}
	o.settle(next, true, fmt.Sprintf("%v, killed in the middle (acknowledged: %v)", s.args, done))
	if !done && !s.dry {
		for _, c := range could {
			if c.ok && len(o.may) == 1 && !c.after.same(c.before) && o.m.same(c.after) {
				o.n.made.Add(1)
			}
		}
	}
}

// adopt gives a model the files that an interrupted creation or deletion has left beside the volumes.
func (o *operator) adopt(m *model, known map[string][]byte) {
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
		old, was := known[name]
		if used[name] || was && m.files[name] != nil {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			o.t.Fatal(err)
		}
		if was && !bytes.Equal(old, b) {
			o.t.Fatalf("%s was changed by a deletion", name)
		}
		m.files[name] = b
	}
}

// rise starts the daemon; before it serves, it may be killed up to two times.
func (o *operator) rise() {
	o.t.Helper()
	for range 2 {
		if !o.chance("kill in the start", 2) {
			break
		}
		before := o.n.midst.Load()
		serving := make(chan error, 1)
		_, _ = o.shoot(o.aim("start"), serving, true, func() {
			o.must(o.launch())
			ended := o.ended
			go func() {
				for !o.serves() {
					select {
					case <-ended:
						return
					case <-time.After(2 * time.Millisecond):
					}
				}
				serving <- nil
			}()
		})
		o.n.inStart.Add(o.n.midst.Load() - before)
	}
	o.measure("start", func() { o.must(o.upAgain()) })
}

// leftovers are the beginnings of files that a daemon that was killed has not finished.
func (s *stand) leftovers() ([]string, error) {
	var all []string
	var errs []error
	for _, dir := range []string{"", "secrets", "identity", "scsi", "nfs"} {
		for _, pattern := range []string{"*.new-*", ".*.new-*", ".*-[0-9]*"} {
			l, err := filepath.Glob(filepath.Join(s.dir, dir, pattern))
			all, errs = append(all, l...), append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

// upAgain starts a daemon where one was killed: it takes away what that has not finished.
func (s *stand) upAgain() error {
	left, err := s.leftovers()
	if err = errors.Join(err, s.up()); err != nil {
		return err
	}
	for _, path := range left {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s was left by a kill, and is there after the next start", path)
		}
	}
	return nil
}

// restart ends the daemon, by a signal or by an order, which may be cut short by a kill, and starts it again.
func (o *operator) restart() {
	how := one(o, "how", "SIGTERM", "SIGKILL", "drain")
	stop := func() {
		if how == "drain" {
			if _, err := o.sluice(nil, "drain"); err != nil && o.daemon.Process.Signal(syscall.Signal(0)) == nil {
				o.t.Fatalf("drain: %v", err)
			}
			return
		}
		o.must(o.daemon.Process.Signal(syscall.SIGTERM))
	}
	switch cut := rapid.Bool().Draw(o.t, "cut short"); {
	case how == "SIGKILL":
		o.n.kills.Add(1)
		o.must(o.down(syscall.SIGKILL))
	case cut:
		before := o.n.midst.Load()
		over := make(chan error, 1)
		ended := o.ended
		_, _ = o.shoot(o.aim("stop"), over, true, func() {
			stop()
			go func() {
				<-ended
				over <- nil
			}()
		})
		o.n.inStop.Add(o.n.midst.Load() - before)
	default:
		o.measure("stop", func() {
			stop()
			o.must(o.over())
		})
		if o.status != nil {
			o.t.Fatalf("the daemon, told to end by %s, says %v\n%s", how, o.status, tail(o.logged()))
		}
	}
	o.rise()
	o.settle(o.may, true, "a restart by "+how)
}

// wrongStart starts the daemon with a mistake in the file: it says so, serves nothing and changes nothing.
func (o *operator) wrongStart() {
	c := o.m.conf
	c.wrong = o.mistake()
	o.must(o.down(syscall.SIGTERM))
	o.must(c.put(o.stand))
	o.must(o.launch())
	o.must(o.over())
	if o.status == nil {
		o.t.Fatalf("the daemon ends without an error, and its file has %s", c.wrong)
	}
	o.must(o.m.conf.put(o.stand))
	o.rise()
	o.settle(o.may, true, "a start with "+c.wrong)
}
