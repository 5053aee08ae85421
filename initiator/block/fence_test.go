package block

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// A write that was lost with its path may still run at the target. Its caller is told when the limit is over; what is then
// written over another path must not be overtaken by it, and waits for the fence. Reads do not.
func TestNothingNewerOvertakesAWriteThatIsNotFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.openPaths(Options{ReconnectLimit: 20 * time.Second, CommandTimeout: -1}, 2)
		resets, writes := 0, map[string]int{}
		var mu sync.Mutex // the hook runs for each connection
		f.set(func() {
			f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case b.Opcode() == iscsi.OpTaskRequest:
					resets++
					c.send(&iscsi.TaskResponse{ITT: b.ITT(), Response: iscsi.TaskNotSupported, Numbers: c.numbers()}, nil)
					return true
				case b.Opcode() == iscsi.OpSCSICommand && b.CDB()[0] == opWrite16:
					writes[c.addr[:1]]++
					c.expCmd = b.CmdSN() + 1
					return c.addr[:1] == "a" && writes["a"] == 1
				}
				return false
			}
		})
		old := goWrite(v, 2) // one over each path
		synctest.Wait()
		if err := <-old; err != nil {
			t.Error(err)
		}
		f.lose("a")
		begin := time.Now()
		if err := <-old; !errors.Is(err, ErrUnsettled) || errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrNoPath) {
			t.Errorf("the write whose path is lost: %v", err)
		}
		if d := time.Since(begin); d > 30*time.Second {
			t.Errorf("told after %v", d)
		}
		before := writes["b"]
		newer := goWrite(v, 1)
		synctest.Wait()
		if writes["b"] != before {
			t.Error("a newer write overtakes one that may still run")
		}
		if _, err := v.ReadAt(make([]byte, 512), 0); err != nil {
			t.Errorf("a read: %v", err)
		}
		f.set(func() { f.away = "" })
		if err := <-newer; err != nil {
			t.Errorf("the path is back, and its login is a fence: %v", err)
		}
		if resets == 0 {
			t.Error("no reset was tried")
		}
		closeAll(t, f, v)
	})
}

// A reset takes the commands of other hosts as well, and without TAS they hear nothing of it: a lost path has time to come
// back before that.
func TestAResetThatOtherHostsDoNotHearOfIsTheLastMeans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.openPaths(Options{CommandTimeout: -1}, 2)
		var reset time.Time
		held := map[string]bool{}
		var mu sync.Mutex // the hook runs for each connection
		f.set(func() {
			f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case b.Opcode() == iscsi.OpTaskRequest && reset.IsZero():
					reset = time.Now()
				case b.Opcode() == iscsi.OpSCSICommand && b.CDB()[0] == opWrite16 && c.addr[:1] == "a" && !held["a"]:
					held["a"] = true
					c.expCmd = b.CmdSN() + 1
					return true
				}
				return false
			}
		})
		done := goWrite(v, 2)
		synctest.Wait()
		if err := <-done; err != nil {
			t.Error(err)
		}
		begin := time.Now()
		f.lose("a")
		if err := <-done; err != nil {
			t.Error(err)
		}
		if d := reset.Sub(begin); d < fenceGrace || d > 3*fenceGrace {
			t.Errorf("the unit was reset after %v", d)
		}
		closeAll(t, f, v)
	})
}

// A login with the lost path's ISID is a fence where it comes to that path's portal group. Where it has been sent on to
// another, it ended nothing there: then only the reset is one.
func TestAFenceThatIsRedirectedIsNone(t *testing.T) {
	for name, group := range map[string]string{"the same group": "1", "another group": "2"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				lost, fences, resets, held := false, 0, 0, false // the fake's lock guards the first two
				var mu sync.Mutex                                // the hook runs for each connection
				f.group = func(c *fakeConn, isid iscsi.ISID) string {
					if lost && c.addr[:1] == "b" {
						fences++
						return group
					}
					return "1"
				}
				v := f.openPaths(Options{CommandTimeout: -1}, 2)
				f.set(func() {
					f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
						mu.Lock()
						defer mu.Unlock()
						switch {
						case b.Opcode() == iscsi.OpTaskRequest:
							resets++
						case b.Opcode() == iscsi.OpLogoutReq: // the lost path's own login waits meanwhile, for a lock, which is no wait to synctest
							c.send(&iscsi.LogoutResponse{ITT: b.ITT(), Numbers: c.numbers()}, nil)
							_ = c.nc.Close()
							return true
						case b.Opcode() == iscsi.OpSCSICommand && b.CDB()[0] == opWrite16 && c.addr[:1] == "a" && !held:
							held = true
							c.expCmd = b.CmdSN() + 1
							return true
						}
						return false
					}
				})
				done := goWrite(v, 2)
				synctest.Wait()
				if err := <-done; err != nil {
					t.Error(err)
				}
				f.set(func() { lost = true })
				f.lose("a")
				if err := <-done; err != nil {
					t.Error(err)
				}
				closeAll(t, f, v)
				mu.Lock()
				defer mu.Unlock()
				f.set(func() {
					if fences == 0 || (resets == 0) != (group == "1") {
						t.Errorf("%d logins over the other path, %d resets", fences, resets)
					}
				})
			})
		})
	}
}
