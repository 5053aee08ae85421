package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// within plays in a world and demands that nothing was wrong at its end.
func within(t *testing.T, names []string, play func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, sound, names...)
		play(t, w)
		for _, s := range w.end() {
			t.Error(s)
		}
	})
}

func (w *world) node(name string) *node {
	return w.nodes[slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == name })]
}

func is(name string) func(*node) bool    { return func(n *node) bool { return n.name == name } }
func isNot(name string) func(*node) bool { return func(n *node) bool { return n.name != name } }

// paused runs a fault under load and returns for how long no block was written.
func (w *world) paused(fault func(owner *node)) time.Duration {
	owner := w.await(10*time.Second, anyNode)
	w.work(blocks)
	time.Sleep(5 * time.Second)
	w.mu.Lock()
	w.pause = 0
	w.mu.Unlock()
	fault(owner)
	time.Sleep(30 * time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pause
}

// Each cause is found within its time. What a pause is beside the detection is that of the initiator, which waits for 1 s for an answer and
// tries the paths in turn, so that it asks a standby every 3 s only while the owner does not answer; its session there ends after 3 s; and of the
// steps of the claim, of which the monitors take 0.4 s each at most here: a question to a standby just before it owns costs 3 s more. Where the owner is cut from clients that is 3 s until the session has
// ended, 3 s until a standby is asked, 3 s that AskedFor may end behind a question, 1 s for the claim, and 3 s until it is asked again.
func TestIOGoesOnWithinTheNamedTime(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(w *world, owner *node)
		most  time.Duration
		cause Cause
	}{
		"SIGKILL": {func(_ *world, n *node) { n.kill() }, 5 * time.Second, CauseSilent},
		"SIGKILL, and a start": {func(_ *world, n *node) {
			n.kill()
			n.start(nil)
		}, 5 * time.Second, CauseRestart},
		"SIGSTOP, and SIGCONT much later": {func(w *world, n *node) {
			p := n.process()
			p.running.shut()
			w.over.Go(func() { time.Sleep(15 * time.Second); p.running.open() })
		}, 10 * time.Second, CauseSilent},
		"cut from Ceph":    {func(_ *world, n *node) { n.process().ceph.shut() }, 10 * time.Second, CauseSilent},
		"cut from clients": {func(_ *world, n *node) { n.cutLAN(n.process()) }, AskedFor + HandOver + 13*time.Second, CauseInitiators},
		"drain": {func(w *world, n *node) {
			if err := n.gateway().Drain(w.ctx); err != nil {
				w.t.Error(err)
			}
		}, 6 * time.Second, CauseFree},
		"an operator": {func(w *world, n *node) {
			for _, other := range w.nodes {
				if other != n {
					if err := other.volume().Take(w.ctx, CauseOperator); err != nil {
						w.t.Error(err)
					}
					return
				}
			}
		}, 6 * time.Second, CauseOperator},
		"SET TARGET PORT GROUPS": {func(w *world, n *node) {
			for _, other := range w.nodes {
				if other != n {
					if err := other.volume().Take(w.ctx, CauseSetGroups); err != nil {
						w.t.Error(err)
					}
					return
				}
			}
		}, 6 * time.Second, CauseSetGroups},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
				if c.cause == CauseInitiators {
					time.Sleep(Settle)
				}
				var was *node
				pause := w.paused(func(n *node) { was = n; c.fault(w, n) })
				n := w.owner()
				if n == nil || n == was && c.cause != CauseRestart {
					t.Fatalf("the owner was not replaced")
				}
				if got := n.volume().Status(); got.Cause != c.cause {
					t.Errorf("taken over because %q, not %q", got.Cause, c.cause)
				}
				t.Logf("paused for %v", pause)
				if pause > c.most {
					t.Errorf("I/O went on after %v, not within %v", pause, c.most)
				}
			})
		})
	}
}

// A process that was stopped while it owned the volume finds its instance on the blocklist, and stays standby: there is no failback.
func TestAnOwnerThatWasStoppedBecomesStandby(t *testing.T) {
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		was := w.await(10*time.Second, anyNode)
		addr := was.volume().Status()
		w.work(blocks)
		time.Sleep(time.Second)
		p := was.process()
		p.running.shut()
		w.await(10*time.Second, isNot(was.name))
		time.Sleep(5 * time.Minute)
		p.running.open()
		time.Sleep(30 * time.Second)
		if s := was.volume().Status(); s.State != Standby || s.Term != addr.Term+1 {
			t.Errorf("after SIGCONT: %+v", s)
		}
		if n := w.owner(); n == was {
			t.Error("it took the volume back")
		}
		if len(w.c.listed()) != 1 {
			t.Errorf("on the blocklist: %v", w.c.listed())
		}
	})
}

// An owner that is cut from the cluster stops by itself, before another takes over.
func TestAnOwnerWithoutALeaseStopsFirst(t *testing.T) {
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		was := w.await(10*time.Second, anyNode)
		time.Sleep(2 * time.Second)
		was.process().ceph.shut()
		begin := time.Now()
		for was.volume().State() == Owner {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(begin); took > Lease+10*time.Millisecond {
			t.Errorf("it went on for %v", took)
		}
		if w.owner() != nil {
			t.Error("another owner was there already")
		}
		w.await(10*time.Second, isNot(was.name))
		was.process().ceph.open()
		time.Sleep(10 * time.Second)
		if was.volume().State() != Standby {
			t.Errorf("it is not standby: %+v", was.volume().Status())
		}
	})
}

// Each call of a takeover fails once, before it has taken effect and after. The volume gets its owner all the same, and nothing is lost.
func TestEachCallOfATakeoverFailsOnce(t *testing.T) {
	broken := errors.New("it fails once")
	calls := map[string]bool{}
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		w.await(10*time.Second, is("a"))
		b := w.node("b")
		b.kill()
		b.start(func(call string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			calls[call] = true
			return nil
		})
		time.Sleep(2 * time.Second)
		w.node("a").kill()
		w.await(10*time.Second, is("b"))
		time.Sleep(time.Second)
	})
	all := slices.Sorted(maps.Keys(calls))
	for _, want := range []string{"Read " + recordObject(volume), "Write " + recordObject(volume), "Wrote " + recordObject(volume), "Blocklist", "Blocklisted",
		"WaitForMap", "Lockers", "BreakLock", "Lock", "Locked", "Open", "OpenData", "Read " + rulesObject(volume), "Write " + appliedObject(volume)} {
		if !slices.Contains(all, want) {
			t.Fatalf("a takeover made no call %q, of %q", want, all)
		}
	}
	for _, call := range all {
		for _, how := range []error{broken, ErrUnsure} {
			t.Run(fmt.Sprintf("%s: %v", call, how == broken), func(t *testing.T) {
				within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
					w.await(10*time.Second, is("a"))
					b := w.node("b")
					b.kill()
					armed, failed := false, false
					b.start(func(c string) error {
						w.mu.Lock()
						defer w.mu.Unlock()
						if armed && c == call && !failed {
							failed = true
							return how
						}
						return nil
					})
					w.work(blocks)
					time.Sleep(2 * time.Second)
					w.mu.Lock()
					armed = true
					w.mu.Unlock()
					p := w.node("a").process()
					p.running.shut()
					w.await(Lost+2*ClaimLimit, is("b"))
					before := w.written()
					time.Sleep(10 * time.Second)
					for block, v := range w.written() {
						if v == before[block] {
							t.Errorf("block %d is not written any more", block)
						}
					}
					p.running.open()
					time.Sleep(10 * time.Second)
					if !failed {
						t.Error("it did not fail")
					}
				})
			})
		}
	}
}

// A gateway that ends between the lock and the record holds nobody up for longer than a claim may take, and is fenced.
func TestAClaimThatDiesWithTheLockIsFenced(t *testing.T) {
	within(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		w.await(10*time.Second, is("a"))
		b := w.node("b")
		p := b.process()
		b.gateway().store.(*modelStore).failBy(func(call string) error {
			if call == "Locked" {
				w.over.Go(b.kill)
				<-p.dead
			}
			return nil
		})
		w.node("a").kill()
		w.await(Lost+2*ClaimLimit, is("c"))
		if n := len(w.c.listed()); n != 2 {
			t.Errorf("%d instances are on the blocklist: %v", n, w.c.listed())
		}
	})
}

// Two processes by one name: the later one has it, and the earlier one ends and says why.
func TestTheLaterProcessHasTheName(t *testing.T) {
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		w.await(10*time.Second, is("a"))
		n := w.node("a")
		first := n.gateway()
		n.start(nil)
		time.Sleep(3 * time.Second)
		if err := first.Err(); !errors.Is(err, ErrNameTaken) {
			t.Errorf("the first process: %v", err)
		}
		if err := n.gateway().Err(); err != nil {
			t.Errorf("the second process: %v", err)
		}
		w.await(10*time.Second, anyNode)
		first.Close()
		if w.node("a").gateway().Number() != first.Number() {
			t.Error("its target port group has another number")
		}
	})
}

// A volume is not drained into nothing.
func TestTheLastGatewayIsNotDrained(t *testing.T) {
	within(t, []string{"a"}, func(t *testing.T, w *world) {
		n := w.await(10*time.Second, anyNode)
		if err := n.gateway().Drain(w.ctx); !errors.Is(err, ErrNoOther) {
			t.Errorf("drained: %v", err)
		}
		if n.volume().State() != Owner {
			t.Error("it gave the volume up")
		}
	})
}

// An owner that gave the volume up with all I/O at its end leaves nothing to be fenced.
func TestAVolumeThatWasGivenUpIsNotFenced(t *testing.T) {
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		was := w.await(10*time.Second, anyNode)
		w.work(blocks)
		time.Sleep(time.Second)
		if err := was.gateway().Drain(w.ctx); err != nil {
			t.Fatal(err)
		}
		now := w.await(5*time.Second, isNot(was.name))
		if l := w.c.listed(); len(l) != 0 {
			t.Errorf("on the blocklist: %v", l)
		}
		if s := now.volume().Status(); s.Fenced != 0 || s.Term != 2 {
			t.Errorf("the record: %+v", s)
		}
	})
}

// Two hosts that each reach another gateway only do not make the volume move all the time.
func TestInitiatorsDoNotMakeAVolumeFlap(t *testing.T) {
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		w.await(10*time.Second, anyNode)
		begin := time.Now()
		for time.Since(begin) < 20*time.Minute {
			for _, n := range w.nodes {
				n.volume().Asked("iqn.host-of-" + n.name)
			}
			time.Sleep(time.Second)
		}
		s := w.await(10*time.Second, anyNode).volume().Status()
		if s.Term < 3 || s.Term > 7 {
			t.Errorf("%d terms in 20 minutes", s.Term)
		}
	})
}

// Initiators with a session at the owner ask every standby by their path checkers, and move nothing.
func TestPathCheckersMoveNothing(t *testing.T) {
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		own := w.await(10*time.Second, anyNode)
		own.gateway().SetSessions([]uint64{Pair(volume, "iqn.host")})
		for range 300 {
			for _, n := range w.nodes {
				n.volume().Asked("iqn.host")
			}
			time.Sleep(time.Second)
		}
		if s := own.volume().Status(); s.State != Owner || s.Term != 1 {
			t.Errorf("it moved: %+v", s)
		}
	})
}

// SET TARGET PORT GROUPS right after a move is refused with the time that is left.
func TestSetTargetPortGroupsIsDamped(t *testing.T) {
	within(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		n := w.await(10*time.Second, anyNode)
		time.Sleep(SetGroups + time.Second)
		for range 2 {
			for _, other := range w.nodes {
				if other.name == n.name {
					continue
				}
				if err := other.volume().Take(w.ctx, CauseSetGroups); err != nil {
					t.Fatal(err)
				}
				var early *TooSoonError
				if err := n.volume().Take(w.ctx, CauseSetGroups); !errors.As(err, &early) || !strings.Contains(early.Error(), volume) {
					t.Errorf("taken back at once: %v", err)
				}
				n = other
				break
			}
			time.Sleep(Settle)
		}
		if err := w.await(time.Second, anyNode).volume().Take(w.ctx, CauseOperator); err != nil {
			t.Error(err)
		}
	})
}

// Entries of the blocklist are renewed for as long as the process may live, and go some time after it is known to be dead.
func TestBlocklistEntriesGoWithTheirProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(1)
		s := &modelStore{client: c.client(newProcess())}
		g := &Gateway{store: s, log: zap.NewNop(), volumes: map[string]*Volume{}, peers: map[string]*peer{}, due: map[string]*dueEntry{}}
		v := &Volume{g: g, id: volume, state: Owner, version: 1}
		v.record = Record{Volume: volume, Term: 2, Owner: "b", Process: "q", Addresses: []string{"10.0.0.1:0/99"},
			Fenced: []Fenced{{Address: "10.0.0.1:0/77", Gateway: "a", Process: "p1", Machine: "m", Term: 1}}}
		g.volumes[volume] = v
		var err error
		if v.version, err = s.Write(t.Context(), recordObject(volume), encode(&v.record), 0); err != nil {
			t.Fatal(err)
		}
		if err := s.Blocklist(t.Context(), "10.0.0.1:0/77", BlockFor); err != nil {
			t.Fatal(err)
		}
		// pass lets time go by as a process sees it that looks at a, which is p or nothing.
		pass := func(d time.Duration, p *member) int {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Minute) {
				if p != nil {
					g.peers["a"] = &peer{member: *p, read: time.Now()}
				}
				g.sweep(t.Context())
			}
			return len(c.listed())
		}
		stopped := &member{Name: "a", Process: "p1", Machine: "m", Alone: true}
		if pass(4*BlockFor, stopped) != 1 {
			t.Error("it went with its time, while the process may live")
		}
		if pass(2*BlockFor, &member{Name: "a", Process: "p2", Machine: "m"}) != 1 {
			t.Error("it went for a process that does not know")
		}
		if pass(2*BlockFor, &member{Name: "a", Process: "p2", Machine: "other", Alone: true}) != 1 {
			t.Error("it went for a process of another machine")
		}
		next := &member{Name: "a", Process: "p2", Machine: "m", Alone: true}
		if pass(Linger/2, next) != 1 {
			t.Error("it went before what was sent has died away")
		}
		if n := pass(Linger, next); n != 0 {
			t.Errorf("%d entries stay", n)
		}
		var r Record
		data, _, err := s.Read(t.Context(), recordObject(volume), maxRecord)
		if err != nil || decode("record", data, &r) != nil || len(r.Fenced) != 0 {
			t.Errorf("the record: %s, %v", data, err)
		}
		// An instance that its living process has shut down.
		v.record.Fenced = []Fenced{{Address: "10.0.0.1:0/88", Gateway: "a", Process: "p2", Machine: "m", Term: 1}}
		if err := s.Blocklist(t.Context(), "10.0.0.1:0/88", BlockFor); err != nil {
			t.Fatal(err)
		}
		if pass(2*Linger, next) != 1 {
			t.Error("it went before it was shut down")
		}
		if pass(2*Linger, &member{Name: "a", Process: "p2", Shut: []string{"10.0.0.1:0/88"}}) != 0 {
			t.Error("it stays behind the shutdown")
		}
		close(c.done)
		time.Sleep(10 * BlockFor)
	})
}

func TestOfTwoChangesOfTheDefinitionsOneWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(1)
		told := make(chan string, 8)
		var l []*Gateway
		for _, name := range []string{"a", "b"} {
			g, err := Join(t.Context(), &modelStore{client: c.client(newProcess())}, Options{Name: name, Definitions: func(b []byte, _ uint64) {
				told <- name + " " + string(b)
			}})
			if err != nil {
				t.Fatal(err)
			}
			l = append(l, g)
		}
		_, version, err := l[0].Definitions(t.Context())
		if err != nil || version != 0 {
			t.Fatalf("at first: %d, %v", version, err)
		}
		first := l[0].SetDefinitions(t.Context(), []byte("one"), version)
		second := l[1].SetDefinitions(t.Context(), []byte("two"), version)
		if first != nil || !errors.Is(second, ErrChanged) {
			t.Errorf("the changes: %v and %v", first, second)
		}
		got := []string{<-told, <-told}
		slices.Sort(got)
		if !slices.Equal(got, []string{"a one", "b one"}) {
			t.Errorf("told: %q", got)
		}
		for _, g := range l {
			g.Close()
		}
		close(c.done)
		time.Sleep(time.Minute) // what is under way ends
	})
}

func TestTheGroupIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(1)
		numbers := map[uint16]bool{}
		for i := range maxGateways + 1 {
			g, err := Join(t.Context(), &modelStore{client: c.client(newProcess())}, Options{Name: fmt.Sprintf("g%d", i)})
			if (err != nil) != (i == maxGateways) {
				t.Errorf("gateway %d: %v", i, err)
			}
			if err == nil {
				numbers[g.Number()] = true
				g.Close()
			}
		}
		if len(numbers) != maxGateways {
			t.Errorf("numbers: %v", numbers)
		}
		if _, err := Join(context.Background(), nil, Options{Name: "no name"}); err == nil {
			t.Error("a name with a space")
		}
		close(c.done)
		time.Sleep(time.Minute) // what is under way ends
	})
}
