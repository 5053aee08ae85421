package scsi

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// statusLog notes when the status went out.
type statusLog struct {
	*host
	note func(string)
}

func (s statusLog) Complete(c *Command) {
	s.note("status " + c.Status.String())
	s.host.Complete(c)
}

// Ways in which state is not saved.
const (
	notSaved   = "is not saved"
	savedStill = "is saved, and refused all the same"
)

// failStorage has the saving of state fail as long as one of those is stored in what it returns; before is called first.
func failStorage(t *testing.T, before func()) *atomic.Value {
	old := saveState
	t.Cleanup(func() { saveState = old })
	fail := &atomic.Value{}
	fail.Store("")
	saveState = func(path string, b []byte) error {
		before()
		how := fail.Load()
		if how != notSaved {
			if err := old(path, b); err != nil {
				return err
			}
		}
		if how != "" {
			return errors.New("broken")
		}
		return nil
	}
	return fail
}

// SPC-4 section 5.13.5: what APTPL promises holds from the status on, also if power is lost right after it: the state is
// saved (internal/savefile) before the initiator hears GOOD. The same goes for saved mode pages. Where that fails nothing has changed.
func TestStateIsDurableBeforeTheStatus(t *testing.T) {
	var mu sync.Mutex
	var steps []string
	note := func(s string) { mu.Lock(); steps = append(steps, s); mu.Unlock() }
	take := func() []string { mu.Lock(); defer mu.Unlock(); s := steps; steps = nil; return s }
	fail := failStorage(t, func() { note("saved") })
	dir := t.TempDir()
	r := newRig(t, func(o *LUOptions) { o.StateDir = dir })
	r.lu.background.Wait()
	// The note of the boot; that the nexus has heard of it.
	if s := take(); !slices.Equal(s, []string{"saved", "saved"}) {
		t.Errorf("the first notes: %q", s)
	}
	run := func(cdbs string, list []byte) []string {
		h := &host{t: t, out: list, done: make(chan struct{})}
		c := &Command{CDB: cdb(cdbs), ExpectOut: int64(len(list)), Mover: statusLog{h, note}, Attr: Simple}
		r.n.Execute(c)
		h.wait(t)
		return take()
	}
	register := []byte{15: 5, 20: 1, 23: 0}
	durable := []string{"saved", "status GOOD"}
	if s := run("5f 06 00 00 00 00000018 00", register); !slices.Equal(s, durable) {
		t.Errorf("REGISTER with APTPL: %q", s)
	}
	if s := run("5f 01 03 00 00 00000018 00", []byte{7: 5, 23: 0}); !slices.Equal(s, durable) {
		t.Errorf("RESERVE: %q", s)
	}
	sel := []byte{0, 0, 0, 0, 0x0A, 10, 0x20 | 4, 0x10, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0}
	if s := run("15 11 00 00 10 00", sel); !slices.Equal(s, durable) {
		t.Errorf("MODE SELECT with SP: %q", s)
	}
	for _, how := range []string{notSaved, savedStill} {
		fail.Store(how)
		s := run("5f 02 03 00 00 00000018 00", []byte{7: 5, 23: 0}) // RELEASE
		if s[0] != "saved" || s[len(s)-1] != "status CHECK CONDITION" {
			t.Errorf("the state %s: %q", how, s)
		}
		if key, kind := r.reservation(r.n); key != 5 || kind != prExclusiveAccess {
			t.Errorf("the state %s: reservation %d of type %d", how, key, kind)
		}
	}
	fail.Store("")
	// The last that gives APTPL up is durable, too: nothing must come back.
	if s := run("5f 00 00 00 00 00000018 00", []byte{7: 5, 15: 5, 23: 0}); !slices.Equal(s, durable) {
		t.Errorf("REGISTER without APTPL: %q", s)
	}
	if s := run("5f 00 00 00 00 00000018 00", []byte{7: 5, 23: 0}); !slices.Equal(s, durable) {
		t.Errorf("without APTPL: %q", s)
	}
}
