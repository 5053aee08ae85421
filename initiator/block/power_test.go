package block

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
)

// openPaths is mustOpen with n paths to one portal group of one target.
func (f *fake) openPaths(o Options, n int) *Volume {
	f.t.Helper()
	o.DialTCP = f.dial
	i, err := New(o)
	if err != nil {
		f.t.Fatal(err)
	}
	var urls []string
	for k := range n {
		urls = append(urls, fmt.Sprintf("iscsi://%c/iqn.2026-01.org.example:fake/0", 'a'+k))
	}
	v, err := i.Open(context.Background(), urls...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = v.Close()
		f.drop()
		f.wg.Wait()
		if err := i.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return v
}

// A target that reports POWER ON, or a deferred error, has lost writes that it had acknowledged: the next flush says so,
// once. Where nothing was unflushed, or what there was had FUA, there is nothing to be told; and nothing is written again.
func TestAFlushTellsOfALossOfPower(t *testing.T) {
	deferred := fixedSense(keyMedium, 0x0c, 0)
	deferred[0] = 0x71
	for _, c := range []struct {
		name  string
		sense []byte
		fua   bool
		flush bool // before the loss
		drop  bool // the session too
		want  error
	}{
		{"POWER ON", fixedSense(keyUnitAttention, 0x29, 0x01), false, false, false, ErrPowerLost},
		{"POWER ON, RESET OR BUS DEVICE RESET", fixedSense(keyUnitAttention, 0x29, 0x00), false, false, false, ErrPowerLost},
		{"a new session's POWER ON", fixedSense(keyUnitAttention, 0x29, 0x00), false, false, true, ErrPowerLost},
		{"a deferred error", deferred, false, false, false, blockdev.ErrMedium},
		{"flushed before", fixedSense(keyUnitAttention, 0x29, 0x00), false, true, false, nil},
		{"FUA", fixedSense(keyUnitAttention, 0x29, 0x00), true, false, false, nil},
		{"I_T nexus loss", fixedSense(keyUnitAttention, 0x29, 0x07), false, false, true, nil},
		{"bus device reset", fixedSense(keyUnitAttention, 0x29, 0x03), false, false, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				v := f.mustOpen(Options{Keepalive: time.Hour}, "")
				u := &unit{}
				u.on(f)
				ctx := context.Background()
				b, err := v.Memory().Get(512)
				if err != nil {
					t.Fatal(err)
				}
				defer b.Release()
				if err := v.WriteSpans(ctx, 0, c.fua, b.Span()); err != nil {
					t.Fatal(err)
				}
				if c.flush {
					if err := v.Flush(ctx); err != nil {
						t.Fatal(err)
					}
				}
				told := false
				u.set(func() {
					u.answer = func(fc *fakeConn, b iscsi.BHS) bool {
						if told || b.CDB()[0] == opInquiry {
							return false
						}
						told = true
						fc.status(b.ITT(), statusCheck, c.sense)
						return true
					}
				})
				if c.drop {
					f.drop()
				}
				if _, err := v.ReadAt(make([]byte, 512), 0); err != nil {
					t.Errorf("the read that meets it: %v", err)
				}
				for k := range 3 {
					err := v.Flush(ctx)
					if k > 0 && err != nil || k == 0 && !errors.Is(err, c.want) {
						t.Errorf("flush %d after the loss: %v", k+1, err)
					}
				}
				u.set(func() {
					if u.writes != 1 {
						t.Errorf("%d writes", u.writes)
					}
				})
				closeAll(t, f, v)
			})
		})
	}
}

// A target that fails a flush for what it has lost, and reports POWER ON too, tells of one loss: one flush fails. What the flush was
// not for is told by another.
func TestAFlushThatTheMediumFailsTellsOfTheLossOfPowerToo(t *testing.T) {
	for name, drop := range map[string]bool{"the flush comes after the report": false, "it waits for the session that brings it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				v := f.mustOpen(Options{Keepalive: time.Hour}, "")
				if err := <-goWrite(v, 1); err != nil {
					t.Fatal(err)
				}
				told, failed := false, false
				u := &unit{answer: func(c *fakeConn, b iscsi.BHS) bool {
					switch op := b.CDB()[0]; {
					case op == opInquiry || failed:
						return false
					case !told:
						told = true
						c.status(b.ITT(), statusCheck, fixedSense(keyUnitAttention, 0x29, 0x01))
					case op == opSyncCache16:
						failed = true
						c.status(b.ITT(), statusCheck, fixedSense(keyMedium, 0x0c, 0))
					default:
						return false
					}
					return true
				}}
				u.on(f)
				if drop {
					f.drop()
				}
				for k, want := range []error{blockdev.ErrMedium, nil, nil} {
					if err := v.Flush(context.Background()); !errors.Is(err, want) {
						t.Errorf("flush %d after the loss: %v", k+1, err)
					}
				}
				closeAll(t, f, v)
			})
		})
	}
	// The failed flush began before writes that the loss took.
	p := &power{}
	early := stateOf(&blockdev.Request{Op: blockdev.Flush})
	p.dirty.Store(true)
	p.begin(early)
	if err := p.ended(stateOf(&blockdev.Request{Op: blockdev.Write}), 0, false); err != nil {
		t.Error(err)
	}
	p.lose()
	p.told(early, &SenseError{Key: keyMedium, ASC: 0x0c})
	later := stateOf(&blockdev.Request{Op: blockdev.Flush})
	p.begin(later)
	if err := p.ended(later, p.losses(), false); !errors.Is(err, ErrPowerLost) {
		t.Errorf("the flush of writes that came after the one that failed: %v", err)
	}
}

// Of several paths each reports a loss of power for itself. It is one: one flush fails. Writes of the time after it, which
// another path has seen go by, are not claimed to be lost.
func TestOneLossOfPowerIsOneFailedFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.openPaths(Options{Keepalive: time.Hour}, 2)
		pending := map[*fakeConn]bool{}
		u := &unit{}
		u.answer = func(c *fakeConn, b iscsi.BHS) bool {
			if !pending[c] || b.CDB()[0] == opInquiry {
				return false
			}
			delete(pending, c)
			c.status(b.ITT(), statusCheck, fixedSense(keyUnitAttention, 0x29, 0x01))
			return true
		}
		u.on(f)
		write := func() {
			t.Helper()
			if _, err := v.WriteAt(make([]byte, 512), 0); err != nil {
				t.Error(err)
			}
		}
		write()
		f.set(func() {
			u.set(func() {
				for c := range f.conns {
					pending[c] = true
				}
			})
		})
		// Traffic of all kinds goes on, until both have told.
		for range 8 {
			if _, err := v.ReadAt(make([]byte, 512), 0); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if err := v.Flush(context.Background()); !errors.Is(err, ErrPowerLost) {
			t.Errorf("the flush after the loss: %v", err)
		}
		write()
		// One path's late report of that loss.
		f.set(func() {
			u.set(func() {
				for c := range f.conns {
					pending[c] = true
					break
				}
			})
		})
		for range 4 {
			write()
		}
		if err := v.Flush(context.Background()); err != nil {
			t.Errorf("nothing has been lost since: %v", err)
		}
		closeAll(t, f, v)
	})
}

// A report of POWER ON that is taken by a session which dies before it is in use is not forgotten.
func TestAReportOfALossOfPowerOutlivesItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{Keepalive: time.Hour}, "")
		if err := <-goWrite(v, 1); err != nil {
			t.Fatal(err)
		}
		n := 0
		u := &unit{answer: func(c *fakeConn, b iscsi.BHS) bool {
			n++
			switch n {
			case 1:
				c.status(b.ITT(), statusCheck, fixedSense(keyUnitAttention, 0x29, 0x01))
			case 2:
				_ = c.nc.Close()
			default:
				return false
			}
			return true
		}}
		u.on(f)
		f.drop()
		if err := v.Flush(context.Background()); !errors.Is(err, ErrPowerLost) {
			t.Error(err)
		}
		closeAll(t, f, v)
	})
}

// A request of several commands, some answered before the loss and some after, is not acknowledged before all of it has
// been written after.
func TestAHalfDoneWriteIsNotAcknowledgedAfterALossOfPower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{Keepalive: time.Hour, Piece: 512, Depth: 1}, "")
		u := &unit{}
		u.answer = func(c *fakeConn, b iscsi.BHS) bool {
			if b.CDB()[0] != opWrite16 || u.writes != 5 {
				return false
			}
			f.mu.Lock()
			clear(f.disk[:])
			f.mu.Unlock()
			c.status(b.ITT(), statusCheck, fixedSense(keyUnitAttention, 0x29, 0x01))
			return true
		}
		u.on(f)
		want := bytes.Repeat([]byte{7}, 4096)
		if _, err := v.WriteAt(want, 0); err != nil {
			t.Fatal(err)
		}
		f.set(func() {
			if !bytes.Equal(f.disk[:4096], want) {
				t.Error("the write was acknowledged, and its first pieces are lost")
			}
		})
		if err := v.Flush(context.Background()); err != nil {
			t.Errorf("nothing that was acknowledged has been lost: %v", err)
		}
		closeAll(t, f, v)
	})
}

// A write of zeroes with FUA is written again where the power was lost before the flush that is its second half.
func TestZeroesWithFUAAreWrittenAgainAfterALossOfPower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{Keepalive: time.Hour}, "")
		lost := false
		u := &unit{answer: func(c *fakeConn, b iscsi.BHS) bool {
			if b.CDB()[0] != opSyncCache16 || lost {
				return false
			}
			lost = true
			c.status(b.ITT(), statusCheck, fixedSense(keyUnitAttention, 0x29, 0x01))
			return true
		}}
		u.on(f)
		r := &blockdev.Request{Op: blockdev.WriteZeroes, FUA: true, Length: 4096}
		if err := v.Do(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		u.set(func() {
			if u.writes != 2 {
				t.Errorf("written %d times", u.writes)
			}
		})
		closeAll(t, f, v)
	})
}

// Flushes that are under way at the loss all tell of it: each was asked to make durable what is gone.
func TestEveryFlushUnderWayTellsOfALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{Keepalive: time.Hour}, "")
		if err := <-goWrite(v, 1); err != nil {
			t.Fatal(err)
		}
		u := &unit{hold: func(op byte) bool { return op == opSyncCache16 }}
		u.on(f)
		done := make(chan error, 3)
		for range 3 {
			go func() { done <- v.Flush(context.Background()) }()
		}
		synctest.Wait()
		u.set(func() { u.hold, u.held, u.ua = nil, nil, [2]byte{0x29, 0x01} })
		f.drop()
		for range 3 {
			if err := <-done; !errors.Is(err, ErrPowerLost) {
				t.Error(err)
			}
		}
		if err := v.Flush(context.Background()); err != nil {
			t.Error(err)
		}
		closeAll(t, f, v)
	})
}

// A command that is answered with POWER ON takes the report for all that is behind it in the session: a flush that was out with it,
// and is answered well, has flushed what came after the loss, and does not vouch for what was lost.
func TestAFlushBehindAReportOfALossDoesNotClaimWhatIsLost(t *testing.T) {
	for name, flush := range map[string]*blockdev.Request{"flush": {Op: blockdev.Flush}, "zeroes with FUA": {Op: blockdev.WriteZeroes, FUA: true, Length: 4096}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				v := f.mustOpen(Options{Keepalive: time.Hour}, "")
				ctx := context.Background()
				zeroes := flush.Op == blockdev.WriteZeroes
				if !zeroes {
					if err := <-goWrite(v, 1); err != nil {
						t.Fatal(err)
					}
				}
				var taken, answer func()
				u := &unit{}
				// The read stands for any command that meets the report.
				u.answer = func(c *fakeConn, b iscsi.BHS) bool {
					itt := b.ITT()
					switch {
					case b.CDB()[0] == opRead16 && taken == nil:
						taken = func() { c.status(itt, statusCheck, fixedSense(keyUnitAttention, 0x29, 0x01)) }
					case b.CDB()[0] == opSyncCache16 && answer == nil:
						answer = func() { c.status(itt, statusGood, nil) }
					default:
						return false
					}
					return true
				}
				u.on(f)
				read := make(chan error, 1)
				go func() {
					_, err := v.ReadAt(make([]byte, 512), 0)
					read <- err
				}()
				synctest.Wait()
				done := make(chan error, 1)
				go func() { done <- v.Do(ctx, flush) }()
				synctest.Wait()
				before := 0
				u.set(func() { before = u.writes })
				taken()
				answer()
				if err := <-read; err != nil {
					t.Error(err)
				}
				err := <-done
				if zeroes {
					u.set(func() {
						if err != nil || u.writes == before {
							t.Errorf("%v, and what was written before the loss is not written again", err)
						}
					})
				} else if !errors.Is(err, ErrPowerLost) {
					t.Errorf("the flush: %v", err)
				}
				if err := v.Flush(ctx); err != nil {
					t.Errorf("the flush after it: %v", err)
				}
				closeAll(t, f, v)
			})
		})
	}
}
