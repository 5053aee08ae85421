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

// unit is the logical unit behind a fake, and what a test does to it.
type unit struct {
	mu     sync.Mutex
	writes int // that have arrived
	ua     [2]byte
	shut   bool // every command has ua but INQUIRY, which opens
	hold   func(op byte) bool
	held   []func()
	answer func(c *fakeConn, b iscsi.BHS) bool
}

func (u *unit) on(f *fake) {
	f.set(func() {
		f.hook = func(c *fakeConn, b iscsi.BHS, data []byte) bool {
			if b.Opcode() != iscsi.OpSCSICommand {
				return false
			}
			op := b.CDB()[0]
			u.mu.Lock()
			defer u.mu.Unlock()
			if op == opWrite16 {
				u.writes++
			}
			if u.hold != nil && u.hold(op) {
				c.expCmd = b.CmdSN() + 1
				again, body := append(iscsi.BHS(nil), b...), append([]byte(nil), data...)
				u.held = append(u.held, func() { c.command(again, body) })
				return true
			}
			if u.answer != nil && u.answer(c, b) {
				c.expCmd = b.CmdSN() + 1
				return true
			}
			if op == opInquiry {
				u.shut = false
			} else if u.ua != [2]byte{} {
				c.expCmd = b.CmdSN() + 1
				c.status(b.ITT(), statusCheck, fixedSense(keyUnitAttention, u.ua[0], u.ua[1]))
				if !u.shut {
					u.ua = [2]byte{}
				}
				return true
			}
			if !u.shut {
				u.ua = [2]byte{}
			}
			return false
		}
	})
}

func (u *unit) set(do func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	do()
}

func (u *unit) release() {
	u.mu.Lock()
	held := u.held
	u.held, u.hold = nil, nil
	u.mu.Unlock()
	for _, h := range held {
		h()
	}
}

func goWrite(v *Volume, n int) chan error {
	done := make(chan error, n)
	for k := range n {
		go func() {
			_, err := v.WriteAt(make([]byte, 512), int64(k)*512)
			done <- err
		}()
	}
	return done
}

func closeAll(t *testing.T, f *fake, v *Volume) {
	t.Helper()
	f.set(func() { f.hook = nil })
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	synctest.Wait()
}

// After a unit attention that puts in doubt what the unit is, no write leaves before it has said its name; where the name
// is another, all writes fail and say so, until the volume is back.
func TestNothingIsSentToAUnitThatIsAnother(t *testing.T) {
	for name, ua := range map[string][2]byte{"3F/0E": {0x3f, 0x0e}, "3F/03": {0x3f, 0x03}, "28/00": {0x28, 0}, "29/00": {0x29, 0}, "29/03": {0x29, 0x03}} {
		for _, shut := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake(t)
					v := f.mustOpen(Options{Keepalive: time.Hour}, "")
					u := &unit{ua: ua, shut: shut, hold: func(op byte) bool { return op == opInquiry }}
					f.set(func() { f.serial = "other" })
					u.on(f)
					first := goWrite(v, 1)
					synctest.Wait()
					more := goWrite(v, 31)
					synctest.Wait()
					u.set(func() {
						if u.writes != 1 {
							t.Errorf("%d writes were sent before the unit said its name", u.writes)
						}
					})
					begin := time.Now()
					u.release()
					for k := range 32 {
						c := more
						if k == 0 {
							c = first
						}
						if err := <-c; !errors.Is(err, ErrOtherUnit) {
							t.Errorf("a write to another unit: %v", err)
						}
					}
					if d := time.Since(begin); d > loginTimeout {
						t.Errorf("told after %v", d)
					}
					if _, err := v.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrOtherUnit) {
						t.Errorf("a read of another unit: %v", err)
					}
					time.Sleep(time.Minute)
					u.set(func() {
						if u.writes != 1 {
							t.Errorf("%d writes were sent to another unit", u.writes)
						}
					})
					f.set(func() { f.serial = "fake" })
					time.Sleep(time.Minute)
					if err := <-goWrite(v, 1); err != nil {
						t.Errorf("the volume is back: %v", err)
					}
					closeAll(t, f, v)
				})
			})
		}
	}
}

// An answer to INQUIRY that is lost, empty or refused for the moment is no other name: the unit is asked again, and what
// waits is done.
func TestAUnitThatHasNotSaidItsNameIsNotTakenForAnother(t *testing.T) {
	for name, bad := range map[string]func(c *fakeConn, b iscsi.BHS){
		"empty":   func(c *fakeConn, b iscsi.BHS) { c.dataIn(b, nil) },
		"nothing": func(c *fakeConn, b iscsi.BHS) { c.dataIn(b, make([]byte, 4)) },
		"aborted": func(c *fakeConn, b iscsi.BHS) { c.status(b.ITT(), statusCheck, fixedSense(keyAborted, 0x4b, 0)) },
		"failed":  func(c *fakeConn, b iscsi.BHS) { c.status(b.ITT(), statusCheck, fixedSense(keyHardware, 0x44, 0)) },
		"cut":     func(c *fakeConn, _ iscsi.BHS) { _ = c.nc.Close() },
	} {
		for _, page := range []byte{0x00, 0x80} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake(t)
					v := f.mustOpen(Options{Keepalive: time.Hour}, "")
					n := 0
					u := &unit{ua: [2]byte{0x3f, 0x0e}}
					u.answer = func(c *fakeConn, b iscsi.BHS) bool {
						if cdb := b.CDB(); cdb[0] != opInquiry || cdb[1] != 1 || cdb[2] != page || n == 12 {
							return false
						}
						n++
						bad(c, b)
						return true
					}
					u.on(f)
					done := goWrite(v, 4)
					for range 4 {
						if err := <-done; err != nil {
							t.Error(err)
						}
					}
					closeAll(t, f, v)
				})
			})
		}
	}
}

// The user's INQUIRY tells a target that this host knows the unit, and opens it for whatever is on its way: it is asked
// when nothing is, and nothing follows before the unit's name has been compared.
func TestAnInquiryOfTheUsersOpensNoOtherUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{Keepalive: time.Hour}, "")
		inquiries := 0
		u := &unit{hold: func(op byte) bool { return op == opWrite16 }}
		u.answer = func(_ *fakeConn, b iscsi.BHS) bool {
			if b.CDB()[0] == opInquiry {
				inquiries++
			}
			return false
		}
		u.on(f)
		written := goWrite(v, 2)
		synctest.Wait()
		asked := make(chan error, 1)
		go func() {
			_, err := v.Inquiry(context.Background(), -1)
			asked <- err
		}()
		synctest.Wait()
		more := goWrite(v, 2)
		synctest.Wait()
		u.set(func() {
			if inquiries != 0 || u.writes != 2 {
				t.Errorf("%d INQUIRY and %d writes were sent", inquiries, u.writes)
			}
		})
		f.set(func() { f.serial = "other" }) // behind the two writes
		u.release()
		for range 2 {
			if err := <-written; err != nil {
				t.Error(err)
			}
		}
		if err := <-asked; err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-more; !errors.Is(err, ErrOtherUnit) {
				t.Error(err)
			}
		}
		u.set(func() {
			if u.writes != 2 {
				t.Errorf("%d writes were sent", u.writes)
			}
		})
		closeAll(t, f, v)
	})
}

// BUSY, TASK SET FULL, a unit that becomes ready and one in transition are waited for as long as a lost path is, and no
// longer.
func TestConditionsThatPassAreWaitedFor(t *testing.T) {
	for name, say := range map[string]func(c *fakeConn, itt uint32){
		"BUSY":          func(c *fakeConn, itt uint32) { c.status(itt, statusBusy, nil) },
		"TASK SET FULL": func(c *fakeConn, itt uint32) { c.status(itt, statusTaskSetFull, nil) },
		"04/01":         func(c *fakeConn, itt uint32) { c.status(itt, statusCheck, fixedSense(keyNotReady, 4, 1)) },
		"04/0A":         func(c *fakeConn, itt uint32) { c.status(itt, statusCheck, fixedSense(keyNotReady, 4, 0x0a)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				v := f.mustOpen(Options{Keepalive: time.Hour, ReconnectLimit: 20 * time.Second}, "")
				begin, still := time.Now(), 10*time.Second
				u := &unit{}
				u.answer = func(c *fakeConn, b iscsi.BHS) bool {
					if op := b.CDB()[0]; op != opRead16 && op != opWrite16 || time.Since(begin) > still {
						return false
					}
					say(c, b.ITT())
					return true
				}
				u.on(f)
				if err := <-goWrite(v, 1); err != nil {
					t.Errorf("it has passed after 10 s: %v", err)
				}
				u.set(func() { begin, still = time.Now(), time.Hour })
				if err := <-goWrite(v, 1); err == nil || time.Since(begin) > 25*time.Second {
					t.Errorf("%v after %v", err, time.Since(begin))
				}
				closeAll(t, f, v)
			})
		})
	}
}
