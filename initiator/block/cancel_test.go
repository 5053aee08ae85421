package block

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
)

// A request whose first pieces were answered well and whose last are not sent ends when it is cancelled: once, and when
// its commands are over.
func TestACancelledRequestOfSeveralPiecesEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{Piece: 512, Depth: 2, Keepalive: time.Hour}, "")
		var held []func()
		aborts := 0
		f.set(func() {
			f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
				switch {
				case b.Opcode() == iscsi.OpTaskRequest: // the response of the task comes first, as it must
					aborts++
					return true
				case b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opWrite16:
					return false
				}
				c.expCmd = b.CmdSN() + 1
				itt := b.ITT()
				held = append(held, func() { c.status(itt, statusGood, nil) })
				return true
			}
		})
		buf, err := v.Memory().Get(4096)
		if err != nil {
			t.Fatal(err)
		}
		defer buf.Release()
		ends := 0
		r := &blockdev.Request{Op: blockdev.Write, Length: 4096, Data: []mem.Span{buf.Span()}, Done: func(*blockdev.Request) { ends++ }}
		v.Submit(r)
		synctest.Wait()
		if len(held) != 2 {
			t.Fatalf("%d commands are out", len(held))
		}
		v.Cancel(r)
		synctest.Wait()
		if ends != 0 || aborts != 2 {
			t.Errorf("ended %d times with commands out; %d are being aborted", ends, aborts)
		}
		for _, h := range held {
			h()
		}
		synctest.Wait()
		if ends != 1 || !errors.Is(r.Err, ErrCancelled) || len(held) != 2 {
			t.Errorf("ended %d times, with %v, after %d commands", ends, r.Err, len(held))
		}
		f.set(func() { f.hook = nil })
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// A request that is cancelled while it waits in the queue of a session that has just died ends as well.
func TestARequestCancelledAsItsSessionDiesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{Depth: 1, Keepalive: time.Hour}, "")
		f.set(func() {
			f.hook = func(_ *fakeConn, b iscsi.BHS, _ []byte) bool { return b.Opcode() == iscsi.OpSCSICommand }
		})
		buf, err := v.Memory().Get(512)
		if err != nil {
			t.Fatal(err)
		}
		defer buf.Release()
		done := make(chan error, 2)
		var rs [2]*blockdev.Request
		for k := range rs {
			rs[k] = &blockdev.Request{Op: blockdev.Read, Length: 512, Data: []mem.Span{buf.Span()}, Done: func(r *blockdev.Request) { done <- r.Err }}
			v.Submit(rs[k])
		}
		synctest.Wait()
		s := v.paths[0].sess.Load()
		s.mu.Lock()
		s.failLocked(errors.New("cut"))
		go v.Cancel(rs[1])
		go v.Cancel(rs[0])
		s.mu.Unlock()
		for range rs {
			select {
			case err := <-done:
				if !errors.Is(err, ErrCancelled) {
					t.Error(err)
				}
			case <-time.After(time.Hour):
				t.Error("a request does not end")
			}
		}
		f.set(func() { f.hook = nil })
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

func TestARawCommandOfTooMuchIsRefused(t *testing.T) {
	v := newFake(t).mustOpen(Options{}, "")
	for _, in := range []bool{false, true} {
		if _, err := v.Raw(context.Background(), make([]byte, 16), make([]byte, mem.MaxBuf+1), in); !errors.Is(err, ErrBadRequest) {
			t.Error(err)
		}
	}
}

// A target without room is no broken medium and no write protection: a file system treats it otherwise.
func TestAFullTargetIsNoSpace(t *testing.T) {
	f := newFake(t)
	v := f.mustOpen(Options{}, "")
	f.set(func() {
		f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
			if b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opWrite16 {
				return false
			}
			c.expCmd = b.CmdSN() + 1
			c.status(b.ITT(), statusCheck, fixedSense(keyDataProtect, 0x27, 0x07))
			return true
		}
	})
	if _, err := v.WriteAt(make([]byte, 512), 0); !errors.Is(err, blockdev.ErrNoSpace) || errors.Is(err, blockdev.ErrReadOnly) || errors.Is(err, blockdev.ErrMedium) {
		t.Error(err)
	}
}
