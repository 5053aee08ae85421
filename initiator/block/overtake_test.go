package block

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// keeper is a target that never answers some writes of one host, and counts what it sees.
type keeper struct {
	mu     sync.Mutex // the hook runs for each connection
	keep   int        // how many further writes of host a get no answer
	kept   int
	resets int
	refuse bool // LOGICAL UNIT RESET
	writes map[string]int
}

func (k *keeper) on(f *fake) {
	k.writes = map[string]int{}
	f.set(func() {
		f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			host := c.addr[:1]
			switch {
			case b.Opcode() == iscsi.OpTaskRequest && b[1]&0x7f == byte(iscsi.AbortTask):
				return true
			case b.Opcode() == iscsi.OpTaskRequest:
				k.resets++
				if k.refuse {
					c.send(&iscsi.TaskResponse{ITT: b.ITT(), Response: iscsi.TaskNotSupported, Numbers: c.numbers()}, nil)
				}
				return k.refuse
			case b.Opcode() == iscsi.OpSCSICommand && b.CDB()[0] == opWrite16:
				k.writes[host]++
				if host == "a" && k.keep > 0 {
					k.keep--
					k.kept++
					c.expCmd = b.CmdSN() + 1
					return true
				}
			}
			return false
		}
	})
}

func (k *keeper) set(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
}

// A write whose caller has given it up before its path is lost may still run at the target, as one that is given up later
// may: what is then written over another path waits for the fence.
func TestNothingNewerOvertakesAWriteThatWasCancelledBeforeItsPathIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.openPaths(Options{ReconnectLimit: -1, CommandTimeout: -1}, 2)
		k := &keeper{keep: 1, refuse: true}
		k.on(f)
		ctx, cancel := context.WithCancel(context.Background())
		old := make(chan error, 2)
		for range 2 { // one over each path
			go func() {
				_, err := v.WriteAtContext(ctx, make([]byte, 512), 0)
				old <- err
			}()
		}
		synctest.Wait()
		if err := <-old; err != nil {
			t.Error(err)
		}
		cancel() // the abort gets no answer
		synctest.Wait()
		f.lose("a")
		if err := <-old; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnsettled) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("the write that was given up: %v", err)
		}
		newer := goWrite(v, 1)
		synctest.Wait()
		k.set(func() {
			if k.kept != 1 || k.writes["b"] != 1 {
				t.Errorf("%d writes over the other path: a newer one overtakes one that may still run", k.writes["b"])
			}
		})
		f.set(func() { f.away = "" })
		if err := <-newer; err != nil {
			t.Errorf("the path is back, and its login is a fence: %v", err)
		}
		closeAll(t, f, v)
	})
}

// A login that comes to another portal group than the lost session's ends nothing there: what that session left is not
// sent again before the unit has been reset. That holds with one path as well.
func TestALoginToAnotherPortalGroupIsNoFence(t *testing.T) {
	for name, c := range map[string]struct {
		paths int
		group string
	}{"one path, the same group": {1, "1"}, "one path, another group": {1, "2"}, "two paths, another group": {2, "2"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				moved := false
				f.group = func(fc *fakeConn, _ iscsi.ISID) string {
					switch {
					case fc.addr[:1] == "b":
						return "3"
					case moved:
						return c.group
					}
					return "1"
				}
				v := f.openPaths(Options{ReconnectLimit: -1, CommandTimeout: -1, MinBackoff: time.Second}, c.paths)
				k := &keeper{keep: 1, refuse: true}
				k.on(f)
				done := goWrite(v, c.paths)
				synctest.Wait()
				f.set(func() { moved = true })
				f.lose("a")
				f.set(func() { f.away = "" })
				time.Sleep(4 * fenceGrace)
				all := func(want int) {
					k.set(func() {
						if n := k.writes["a"] + k.writes["b"]; n != want {
							t.Errorf("%d writes with %d resets, want %d", n, k.resets, want)
						}
					})
				}
				if c.group == "1" {
					all(c.paths + 1)
				} else {
					all(c.paths)
					k.set(func() { k.refuse = false })
				}
				for range c.paths {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				all(c.paths + 1)
				k.set(func() {
					if (k.resets > 0) != (c.group != "1") {
						t.Errorf("%d resets", k.resets)
					}
				})
				closeAll(t, f, v)
			})
		})
	}
}

// A path that comes back and is lost again while its fence is being tried is fenced for its second loss too.
func TestAPathLostTwiceIsFencedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.group = func(c *fakeConn, _ iscsi.ISID) string { return c.addr[:1] }
		v := f.openPaths(Options{ReconnectLimit: time.Minute, CommandTimeout: -1, MinBackoff: time.Second, MaxBackoff: 4 * time.Second}, 2)
		k := &keeper{}
		k.on(f)
		for range 2 {
			k.set(func() { k.keep = 1 })
			done := goWrite(v, 2)
			synctest.Wait()
			f.lose("a")
			if k.kept == 1 {
				time.Sleep(3500 * time.Millisecond) // the fence has been tried at 0, 1 and 3 s, and waits until 7 s
				f.set(func() { f.away = "" })
				time.Sleep(1500 * time.Millisecond) // the path is back by now
			}
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		k.set(func() {
			if k.kept != 2 || k.resets != 1 {
				t.Errorf("%d writes without an answer, %d resets", k.kept, k.resets)
			}
		})
		closeAll(t, f, v)
	})
}

// A LOGICAL UNIT RESET that is not answered in time may be answered late: that is no answer to the next one, whose tag is another
// (RFC 7143 section 11.2.1.8: a tag is unique while the task is out).
func TestTheLateAnswerToAResetIsNotThatOfTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.group = func(c *fakeConn, _ iscsi.ISID) string { return c.addr[:1] }
		v := f.openPaths(Options{ReconnectLimit: -1, CommandTimeout: -1}, 2)
		var mu sync.Mutex // the hook runs for each connection
		var tags []uint32
		var at *fakeConn
		writes, held := 0, false
		f.set(func() {
			f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case b.Opcode() == iscsi.OpTaskRequest:
					tags, at = append(tags, b.ITT()), c
					return len(tags) < 3
				case b.Opcode() == iscsi.OpSCSICommand && b.CDB()[0] == opWrite16:
					writes++
					if c.addr[:1] == "a" && !held {
						held = true
						c.expCmd = b.CmdSN() + 1
						return true
					}
				}
				return false
			}
		})
		done := goWrite(v, 2)
		synctest.Wait()
		f.lose("a")
		resets := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(tags)
		}
		for resets() < 2 {
			time.Sleep(time.Second)
		}
		answer := func(k int) {
			synctest.Wait()
			at.send(&iscsi.TaskResponse{ITT: tags[k], Numbers: at.numbers()}, nil)
			synctest.Wait()
		}
		answer(0)
		if tags[0] == tags[1] || writes != 2 {
			t.Errorf("tags %#x; %d writes after the late answer", tags, writes)
		}
		if len(tags) == 2 {
			answer(1)
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		closeAll(t, f, v)
	})
}

// A reset that fences a lost session says nothing of a session of the same path that was lost after the reset was asked for: what that
// one had sent may come behind it.
func TestAFenceDoesNotCoverALossThatCameLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		moved := false // the lost session's portal group, so that the login alone is no fence
		f.group = func(fc *fakeConn, _ iscsi.ISID) string {
			if moved && fc.addr[:1] == "a" {
				return "2"
			}
			return fc.addr[:1]
		}
		v := f.openPaths(Options{ReconnectLimit: -1, CommandTimeout: -1, MinBackoff: time.Second}, 2)
		k := &keeper{keep: 1}
		k.on(f)
		var at *fakeConn
		var tag uint32
		f.set(func() {
			keeps := f.hook
			f.hook = func(c *fakeConn, b iscsi.BHS, data []byte) bool {
				if b.Opcode() != iscsi.OpTaskRequest || b[1]&0x7f == byte(iscsi.AbortTask) {
					return keeps(c, b, data)
				}
				k.mu.Lock()
				defer k.mu.Unlock()
				switch {
				case c.addr[:1] == "a":
					c.send(&iscsi.TaskResponse{ITT: b.ITT(), Response: iscsi.TaskNotSupported, Numbers: c.numbers()}, nil)
					return true
				case at == nil: // it is answered later
					at, tag = c, b.ITT()
					return true
				}
				return false
			}
		})
		done := [2]chan error{goWrite(v, 2)}
		synctest.Wait()
		f.set(func() { moved = true })
		f.lose("a")
		f.set(func() { f.away = "" })
		for asked := false; !asked; k.set(func() { asked = at != nil }) {
			time.Sleep(time.Second)
		}
		k.set(func() { k.keep = 1 })
		done[1] = goWrite(v, 2)
		synctest.Wait()
		f.lose("a")
		synctest.Wait()
		was := 0
		k.set(func() {
			if was = k.writes["b"]; k.kept != 2 {
				t.Errorf("%d writes wait for an answer: the test shows nothing", k.kept)
			}
		})
		at.send(&iscsi.TaskResponse{ITT: tag, Numbers: at.numbers()}, nil)
		synctest.Wait()
		k.set(func() {
			if k.writes["b"] != was {
				t.Error("a write is sent again whose first copy may come behind the reset")
			}
		})
		for _, c := range done {
			for range 2 {
				if err := <-c; err != nil {
					t.Error(err)
				}
			}
		}
		closeAll(t, f, v)
	})
}
