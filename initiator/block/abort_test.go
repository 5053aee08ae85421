package block

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// A command that is not answered is aborted when its time is over and begun again; where the abort is not answered either
// the path is dropped, and a new login does it. A target that never answers ends in an error, in bounded time.
func TestACommandWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		answers bool // aborts
		lost    int  // commands that are never answered
		want    error
		logins  int
	}{
		"once":                     {true, 1, nil, 1},
		"twice":                    {true, 2, nil, 1},
		"always":                   {true, 1 << 30, ErrTimeout, 1},
		"once, and aborts neither": {false, 1, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				v := f.mustOpen(Options{CommandTimeout: 10 * time.Second}, "")
				aborts := 0
				f.set(func() {
					f.hook = func(fc *fakeConn, b iscsi.BHS, _ []byte) bool {
						switch {
						case b.Opcode() == iscsi.OpTaskRequest:
							aborts++
							return !c.answers
						case b.Opcode() == iscsi.OpSCSICommand && b.CDB()[0] == opWrite16 && c.lost > 0:
							c.lost--
							fc.expCmd = b.CmdSN() + 1
							return true
						}
						return false
					}
				})
				begin := time.Now()
				_, err := v.WriteAt(make([]byte, 512), 0)
				if !errors.Is(err, c.want) || c.want == nil && err != nil {
					t.Errorf("%v", err)
				}
				if d := time.Since(begin); d < 10*time.Second || d > 60*time.Second {
					t.Errorf("after %v", d)
				}
				f.set(func() {
					if aborts == 0 || len(f.logins) != c.logins {
						t.Errorf("%d aborts, %d logins", aborts, len(f.logins))
					}
				})
				closeAll(t, f, v)
			})
		})
	}
}

// A target that answers pings and opens its command window no more is dropped.
func TestATargetThatTakesNoCommandIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.window = 1
		v := f.mustOpen(Options{CommandTimeout: 10 * time.Second}, "")
		f.set(func() {
			f.window = 0
			f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
				if b.Opcode() == iscsi.OpLoginRequest {
					f.set(func() { f.window = 16 })
				}
				return false
			}
		})
		for range 2 { // the first uses up the window
			if _, err := v.ReadAt(make([]byte, 512), 0); err != nil {
				t.Error(err)
			}
		}
		f.set(func() {
			if len(f.logins) != 2 {
				t.Errorf("%d logins", len(f.logins))
			}
		})
		closeAll(t, f, v)
	})
}

// Commands that another initiator's reset or PREEMPT AND ABORT has cleared are found and done again, whether the target
// says TASK ABORTED for each or nothing but a unit attention; those that cannot be repeated end and say so.
func TestCommandsThatAnotherHostCleared(t *testing.T) {
	for name, c := range map[string]struct {
		tas       bool
		asc, ascq byte
	}{
		"reset":                  {false, 0x29, 0x03},
		"cleared":                {false, 0x2f, 0x00},
		"reset, with TAS":        {true, 0x29, 0x03},
		"cleared, with TAS":      {true, 0x2f, 0x00},
		"power on, in a session": {false, 0x29, 0x01},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				v := f.mustOpen(Options{Keepalive: time.Hour, CommandTimeout: -1}, "")
				u := &unit{hold: func(op byte) bool { return op == opWrite16 }}
				u.on(f)
				done := goWrite(v, 8)
				synctest.Wait()
				held := 0
				u.set(func() {
					held = len(u.held)
					u.hold, u.held = nil, nil
					u.ua = [2]byte{c.asc, c.ascq}
				})
				if held != 8 {
					t.Errorf("%d commands are out", held)
				}
				if c.tas {
					s := v.paths[0].sess.Load()
					var tags []uint32
					s.mu.Lock()
					for i := range s.tasks {
						if s.tasks[i].life != taskFree {
							tags = append(tags, s.tasks[i].itt)
						}
					}
					s.mu.Unlock()
					f.set(func() {
						for fc := range f.conns {
							go func() {
								for _, itt := range tags {
									fc.status(itt, statusTaskAborted, nil)
								}
							}()
						}
					})
				} else if _, err := v.ReadAt(make([]byte, 512), 4096); err != nil {
					t.Error(err)
				}
				for range 8 {
					select {
					case err := <-done:
						if err != nil {
							t.Error(err)
						}
					case <-time.After(time.Hour):
						t.Fatal("a cleared command is waited for for ever")
					}
				}
				closeAll(t, f, v)
			})
		})
	}
}
