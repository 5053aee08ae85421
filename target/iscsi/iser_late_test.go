package iscsi

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
)

// dry takes all memory of a pool and returns what gives it back.
func dry(t *testing.T, pool *mem.Pool) (refill func()) {
	t.Helper()
	var all []*mem.Buf
	for n := mem.MaxBuf; n >= 1; n /= 2 {
		for {
			b, err := pool.Get(n)
			if err != nil {
				break
			}
			all = append(all, b)
		}
	}
	return func() {
		for _, b := range all {
			b.Release()
		}
	}
}

// small gives the server the smallest pool that there is, which f.pool names too.
func small() (*mem.Pool, func(*Options)) {
	pool := mem.NewPool(1)
	return pool, func(o *Options) { o.Memory = pool }
}

// A login that finds the pool dry is answered when there is memory again: for its receive, for the response, and for the
// receives of the full-feature phase.
func TestALoginWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, with := small()
		f := newTwinFixture(t, with)
		refill := dry(t, pool)
		done := make(chan struct{})
		go func() {
			defer close(done)
			p := f.dialISER(iscsi.CMPrivate(true))
			p.loginISER()
			p.ready()
		}()
		time.Sleep(10 * time.Second)
		select {
		case <-done:
			t.Fatal("logged in without memory")
		default:
		}
		refill()
		<-done
	})
}

// Until the final login response has left, nothing of full-feature phase is taken (RFC 7143 section 6.3): the connection ends, the session
// that was to be does not, nor does another.
func TestNothingIsTakenWhileALoginWaitsForMemory(t *testing.T) {
	for name, q := range map[string]iscsi.PDU{
		"logout":     &iscsi.LogoutRequest{Immediate: true, ITT: 9, CmdSN: 1},
		"cold reset": &iscsi.TaskRequest{Immediate: true, Function: iscsi.TargetColdReset, ITT: 9, RefTag: iscsi.Reserved, CmdSN: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool, with := small()
				f := newTwinFixture(t, with)
				p := f.dialISER(iscsi.CMPrivate(true))
				if l, _ := p.step(iscsi.StageSecurity, iscsi.StageOperational, true, "InitiatorName="+testInitiator, "TargetName="+testTarget, "AuthMethod=None"); l.Status != 0 || !l.Transit {
					t.Fatalf("%+v", l)
				}
				refill := dry(t, pool)
				p.send(p.loginReq(iscsi.StageOperational, iscsi.StageFullFeature, true), nil, keys("RDMAExtensions=Yes"))
				synctest.Wait()
				p.send(q, nil, nil)
				p.wantEnd()
				refill()
				again := f.dialISER(iscsi.CMPrivate(true))
				again.loginISER()
				again.ready()
			})
		})
	}
}

// What is to be sent while the pool is dry leaves, in order, when there is memory again.
func TestResponsesWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, with := small()
		f := newTwinFixture(t, with)
		p := f.dialISER(iscsi.CMPrivate(true))
		p.loginISER()
		p.ready()
		refill := starved(t, f, pool)
		var itts []uint32
		for range firstWindow {
			c := p.command(make([]byte, 6))
			itts = append(itts, c.ITT)
			p.send(c, nil, nil)
		}
		ch := p.arrivals()
		time.Sleep(10 * time.Second)
		select {
		case r := <-ch:
			t.Fatalf("sent without memory: % x", []byte(r.b))
		default:
		}
		refill()
		for _, itt := range itts {
			if r := <-ch; r.b.Opcode() != iscsi.OpSCSIResponse || r.b.ITT() != itt || r.b[3] != 0 {
				t.Fatalf("received % x, expected the response to %d", []byte(r.b), itt)
			}
		}
		p.w.close()
		for range ch { //nolint:revive // until the reader has gone
		}
	})
}

// starved takes all memory, and the send slots that the one session keeps.
func starved(t *testing.T, f *fixture, pool *mem.Pool) (refill func()) {
	t.Helper()
	refill = dry(t, pool)
	synctest.Wait()
	f.srv.mu.Lock()
	defer f.srv.mu.Unlock()
	for c := range f.srv.conns {
		x := c.datamover.(*iserDatamover)
		c.mu.Lock()
		held := x.freeSend
		x.freeSend = nil
		c.mu.Unlock()
		was := refill
		refill = func() {
			c.mu.Lock()
			x.freeSend = append(x.freeSend, held...)
			c.mu.Unlock()
			was()
		}
	}
	return refill
}

// A pool that stays dry ends the session, and says why.
func TestResponsesDoNotWaitForMemoryForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, with := small()
		f := newTwinFixture(t, with)
		p := f.dialISER(iscsi.CMPrivate(true))
		p.loginISER()
		p.ready()
		refill := starved(t, f, pool)
		p.send(p.command(make([]byte, 6)), nil, nil)
		begin := time.Now()
		for len(f.srv.Sessions()) > 0 {
			// It says that it is there, until it cannot.
			_ = p.w.send(nil, iscsi.BHS(iscsi.Append(nil, &iscsi.NopOut{Immediate: true, ITT: iscsi.Reserved, TTT: 1, CmdSN: p.cmdSN})), nil, nil)
			time.Sleep(5 * time.Second)
		}
		if d := time.Since(begin); d > time.Minute {
			t.Errorf("after %v", d)
		}
		synctest.Wait()
		f.logged("session lost", "no memory for a response")
		refill()
	})
}
