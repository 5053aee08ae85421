package rpcserver

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
)

// The time that a client may take none of its replies begins when they have to wait for it, not with the last that did.
func TestTheTimeToTakeRepliesBeginsWithThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, l, end := servePipes(t, Options{})
		nc := l.dial("10.0.0.1:700")
		write(t, nc, record(1, procEcho, 1))
		if _, err := message(nc); err != nil {
			t.Fatal(err)
		}
		time.Sleep(unreadTime + 2*watchTick)
		write(t, nc, record(2, procBulk, 1<<20))
		time.Sleep(3 * watchTick) // a client that pauses
		if _, err := message(nc); err != nil {
			t.Errorf("a client that paused for %v has lost its connection: %v; %v", 3*watchTick, err, s.Stats().Refused)
		}
		_ = nc.Close()
		end()
	})
}

// A reply waits for company only as long as nothing else has to be waited for: neither for the rest of the record behind it, nor for room for that.
func TestAReplyDoesNotWaitForTheRecordBehindIt(t *testing.T) {
	first, next := record(1, procEcho, 1), large(2, procEcho, 2, 40<<10)
	fragment := append(append([]byte(nil), next[:4+100]...), 0, 0)
	oncrpc.PutMark(fragment, 100, false)
	for what, b := range map[string][]byte{"a part of its mark": next[:3], "its mark": next[:4], "a part of it": next[:100], "a fragment of it, and a part of the next mark": fragment} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, _, l, end := servePipes(t, Options{})
				nc := l.dial("10.0.0.1:700")
				r := readAll(nc)
				write(t, nc, append(append([]byte(nil), first...), b...))
				synctest.Wait()
				if r.n.Load() != 1 {
					t.Error("no reply")
				}
				_ = nc.Close()
				end()
			})
		})
	}
	t.Run("room for it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, end := serveFew(t)
			defer end()
			defer begin(t, l, "10.0.0.1", true)()
			nc := l.dial("10.0.0.1:999")
			defer func() { _ = nc.Close() }()
			r := readAll(nc)
			write(t, nc, record(1, procTrust, 1))
			synctest.Wait()
			write(t, nc, append(append([]byte(nil), record(3, procEcho, 1)...), next...))
			synctest.Wait()
			if r.n.Load() != 2 {
				t.Errorf("%d replies of 2, while a record waits for room", r.n.Load())
			}
		})
	})
}

// What a medium that hangs is to bring counts for nothing until it is there: the calls behind it on the connection, to other
// files, are answered.
func TestBulkResultsThatHangDoNotStopTheirConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, l, end := servePipes(t, Options{})
		nc := l.dial("10.0.0.1:700")
		r := readAll(nc)
		const hang = maxHeld/MaxPayload + 4
		var all error
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for i := range uint32(hang) {
				if _, err := nc.Write(record(i, procHold, MaxPayload)); err != nil {
					all = err
				}
				<-p.entered
			}
			if _, err := nc.Write(record(1000, procEcho, 1)); err != nil {
				all = err
			}
		}()
		synctest.Wait()
		if r.n.Load() != 1 {
			t.Errorf("%d replies while the bulk ones hang, not one", r.n.Load())
		}
		close(p.gate)
		<-sent
		synctest.Wait()
		if r.n.Load() != hang+1 || all != nil {
			t.Errorf("%d replies of %d; %v", r.n.Load(), hang+1, all)
		}
		_ = nc.Close()
		end()
	})
}

// A connection that was waited for in vain holds up the first call of one new connection, not of each: its calls are as late as
// they can be, and find out themselves that they are not to be executed.
func TestACallThatHangsHoldsUpOneNewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, l, end := servePipes(t, Options{})
		old := l.dial("10.0.0.1:700")
		write(t, old, record(1, procWait, 1))
		<-p.entered
		_ = old.Close()
		synctest.Wait()
		for i := range 3 {
			nc := l.dial("10.0.0.1:701")
			r := readAll(nc)
			write(t, nc, record(2, procEcho, 1))
			if i == 0 {
				time.Sleep(settleTime)
			}
			synctest.Wait()
			if r.n.Load() != 1 {
				t.Errorf("connection %d has %d replies", i, r.n.Load())
			}
			_ = nc.Close()
			synctest.Wait()
		}
		close(p.gate)
		end()
	})
}
