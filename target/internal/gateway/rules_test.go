package gateway

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// add appends a word to the reservations of a test.
func add(word string) func([]byte) ([]byte, error) {
	return func(old []byte) ([]byte, error) { return append(append(old, ' '), word...), nil }
}

// appliedBy is the number of the rules that the owner serves by.
func (w *world) appliedBy(n *node) uint64 {
	s := n.volume().Serving().(*serving)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rules[s.k.addr]
}

// A change at any gateway is in force at the owner when it is answered.
func TestAChangeOfReservationsIsAnsweredWhenTheOwnerHasIt(t *testing.T) {
	within(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		own := w.await(10*time.Second, anyNode)
		for i, n := range append(w.nodes, w.nodes...) {
			if err := n.volume().ChangeReservations(w.ctx, add(n.name)); err != nil {
				t.Fatal(err)
			}
			if got := w.appliedBy(own); got != uint64(i+1) {
				t.Errorf("change %d was answered, and the owner has %d", i+1, got)
			}
		}
		data, number, err := w.node("c").volume().Reservations(w.ctx)
		if err != nil || number != 6 || string(data) != " a b c a b c" {
			t.Errorf("in the end %q, %d, %v", data, number, err)
		}
	})
}

// Changes at once are all made.
func TestChangesOfReservationsAtOnce(t *testing.T) {
	within(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		w.await(10*time.Second, anyNode)
		done := make(chan error)
		for _, n := range w.nodes {
			for i := range 3 {
				go func() { done <- n.volume().ChangeReservations(w.ctx, add(fmt.Sprint(n.name, i))) }()
			}
		}
		for range 9 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		data, number, _ := w.nodes[0].volume().Reservations(w.ctx)
		if number != 9 || len(strings.Fields(string(data))) != 9 {
			t.Errorf("in the end %q, %d", data, number)
		}
	})
}

// A stopped standby holds up no change. A stopped owner is fenced, and the change is answered when the next owner has it.
func TestAStoppedGatewayHoldsUpNoReservation(t *testing.T) {
	within(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		own := w.await(10*time.Second, is("a"))
		w.node("c").process().running.shut()
		begin := time.Now()
		if err := w.node("b").volume().ChangeReservations(w.ctx, add("b")); err != nil || time.Since(begin) > time.Second {
			t.Errorf("beside a stopped standby: %v after %v", err, time.Since(begin))
		}
		own.process().running.shut()
		begin = time.Now()
		if err := w.node("b").volume().ChangeReservations(w.ctx, add("b")); err != nil || time.Since(begin) > RulesWait+Lost {
			t.Errorf("beside a stopped owner: %v after %v", err, time.Since(begin))
		}
		b := w.await(time.Second, is("b"))
		if got := w.appliedBy(b); got != 2 {
			t.Errorf("the new owner has %d", got)
		}
		if len(w.c.listed()) != 1 {
			t.Errorf("on the blocklist: %v", w.c.listed())
		}
	})
}

// An owner that beats and does not apply is fenced as well.
func TestAnOwnerThatDoesNotApplyIsFenced(t *testing.T) {
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		own := w.await(10*time.Second, is("a"))
		own.gateway().store.(*modelStore).failBy(func(call string) error {
			if call == "Read "+rulesObject(volume) {
				return errors.New("it cannot")
			}
			return nil
		})
		begin := time.Now()
		if err := w.node("b").volume().ChangeReservations(w.ctx, add("b")); err != nil || time.Since(begin) > RulesWait+3*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if s := w.await(time.Second, is("b")).volume().Status(); s.Cause != CauseRules {
			t.Errorf("taken over because %q", s.Cause)
		}
	})
}

// What a former owner says to have applied counts for nothing.
func TestAFormerOwnersWordDoesNotCount(t *testing.T) {
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		w.await(10*time.Second, is("a"))
		a := w.node("a").gateway()
		w.node("a").process().running.shut()
		b := w.await(10*time.Second, is("b")).volume()
		w.node("a").process().running.open()
		number, err := b.writeRules(w.ctx, add("x"))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.writeApplied(w.ctx, volume, applied{1, number}); !errors.Is(err, ErrChanged) {
			t.Errorf("it could say so: %v", err)
		}
		// Nor where it was faster than the new owner's first word.
		w.c.mu.Lock()
		w.c.osds[0].objects[appliedObject(volume)] = &object{data: encode(&applied{1, number}), version: 1}
		w.c.mu.Unlock()
		own := w.node("b").volume()
		own.g.store.(*modelStore).failBy(func(call string) error {
			if strings.HasSuffix(call, appliedObject(volume)) && strings.HasPrefix(call, "Write") {
				return errors.New("not yet")
			}
			return nil
		})
		if done, err := own.settledRules(w.ctx, number); done || err != nil {
			t.Errorf("settled by a word of the last term: %v, %v", done, err)
		}
	})
}

// A change that the cluster did not answer is made once.
func TestAChangeOfReservationsThatWasNotAnsweredIsMadeOnce(t *testing.T) {
	within(t, []string{"a"}, func(t *testing.T, w *world) {
		n := w.await(10*time.Second, anyNode)
		for _, call := range []string{"Write ", "Wrote "} {
			failed := false
			n.gateway().store.(*modelStore).failBy(func(c string) error {
				if c == call+rulesObject(volume) && !failed {
					failed = true
					return ErrUnsure
				}
				return nil
			})
			if err := n.volume().ChangeReservations(w.ctx, add(call)); err != nil {
				t.Error(err)
			}
		}
		data, number, err := n.volume().Reservations(w.ctx)
		if number != 2 || len(strings.Fields(string(data))) != 2 || err != nil {
			t.Errorf("in the end %q, %d, %v", data, number, err)
		}
		refused := errors.New("RESERVATION CONFLICT")
		if err := n.volume().ChangeReservations(w.ctx, func([]byte) ([]byte, error) { return nil, refused }); err != refused {
			t.Errorf("a change that refuses: %v", err)
		}
	})
}
