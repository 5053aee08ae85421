package iscsi

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/delay"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/transport"
)

// both runs a test in virtual time on each mover: TCP over net.Pipe, iSER over the twin.
func both(t *testing.T, fn func(t *testing.T, f *fixture, dial func() *peer), opts ...func(*Options)) {
	t.Run("TCP", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, dial := newPipeFixture(t, opts...)
			fn(t, f, dial)
		})
	})
	t.Run("iSER", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newTwinFixture(t, opts...)
			fn(t, f, func() *peer { return f.dialISER(iscsi.CMPrivate(true)) })
		})
	})
}

// enter logs in on either mover.
func (p *peer) enter() {
	p.t.Helper()
	if _, ok := p.w.(*iserWire); ok {
		p.loginISER()
		return
	}
	p.login()
}

// startWrite sends a write of 4096 immediate bytes and does not wait.
func (p *peer) startWrite(lba int, seed int) *iscsi.SCSICommand {
	p.t.Helper()
	c := p.command(write10(lba, 8))
	c.Write, c.EDTL = true, 4096
	p.send(c, nil, pattern(4096, seed))
	return c
}

// arrivals collects what the target sends, in the background.
func (p *peer) arrivals() chan pdu {
	ch := make(chan pdu, 64)
	ended := make(chan struct{})
	if w, ok := p.w.(*iserWire); ok {
		w.reader = ended
	}
	go func() {
		defer close(ch)
		defer close(ended)
		for {
			r, err := p.w.recv()
			if err != nil {
				return
			}
			ch <- r
		}
	}()
	return ch
}

// RFC 7143 section 6.3.5: "the target MUST ... all the active tasks ... are terminated" before the new session works; a
// write of the old session must never land after one of the new.
func TestReinstatementWaitsForTheOldSessionsTasks(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		old := dial()
		old.enter()
		old.ready()
		f.dev.shut()
		old.startWrite(0, 1)
		<-f.dev.arrived // on its way to the medium

		again := dial()
		if w, ok := again.w.(*iserWire); ok {
			w.full(32)
		}
		kv := []string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget}
		if again.w != nil {
			if _, ok := again.w.(*iserWire); ok {
				kv = append(kv, "RDMAExtensions=Yes")
			}
		}
		again.send(again.loginReq(iscsi.StageOperational, iscsi.StageFullFeature, true), nil, keys(kv...))
		ch := again.arrivals()
		synctest.Wait()
		time.Sleep(50 * time.Second) // virtual: neither the login timeout nor anything else lets it through
		synctest.Wait()
		select {
		case r, ok := <-ch:
			t.Fatalf("the login was answered (%v, % x) while a write of the old session was under way", ok, []byte(r.b))
		default:
		}
		old.wantEnd()
		f.dev.open()
		r := <-ch
		if r.b.Opcode() != iscsi.OpLoginResponse || r.b[36] != 0 || !r.b.Final() {
			t.Fatalf("login response % x", []byte(r.b))
		}
		if n := len(f.srv.Sessions()); n != 1 {
			t.Fatalf("%d sessions", n)
		}
		f.logged("session lost", "made room")
		again.w.close()
		for range ch { //nolint:revive // until the reader has gone
		}
	})
}

// The same with a medium that takes its time, as blockdev/delay has it: the answer comes when the write has landed, and
// not before.
func TestReinstatementWaitsOutASlowMedium(t *testing.T) {
	const slow = 40 * time.Second
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		old := dial()
		old.enter()
		old.ready()
		d, err := delay.Open(f.dev.Device, delay.Options{Before: true, For: func(r *blockdev.Request) time.Duration {
			if r.Op == blockdev.Write {
				return slow
			}
			return 0
		}})
		must(t, err)
		f.dev.Device = d
		began := time.Now()
		old.startWrite(0, 1)
		synctest.Wait()

		again := dial()
		kv := []string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget}
		if w, ok := again.w.(*iserWire); ok {
			w.full(32)
			kv = append(kv, "RDMAExtensions=Yes")
		}
		again.send(again.loginReq(iscsi.StageOperational, iscsi.StageFullFeature, true), nil, keys(kv...))
		ch := again.arrivals()
		r := <-ch
		if took := time.Since(began); r.b.Opcode() != iscsi.OpLoginResponse || r.b[36] != 0 || took < slow {
			t.Fatalf("after %v the login was answered with % x; the old session's write takes %v", took, []byte(r.b), slow)
		}
		old.wantEnd()
		f.logged("session lost", "made room")
		again.w.close()
		for range ch { //nolint:revive // until the reader has gone
		}
	})
}

// A third login while the second still waits: the second is cut, the third gets in after the first has gone.
func TestReinstatementOfAWaitingLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dial := newPipeFixture(t)
		first := dial()
		first.enter()
		first.ready()
		f.dev.shut()
		first.startWrite(0, 1)
		<-f.dev.arrived
		var chs []chan pdu
		for range 2 {
			p := dial()
			p.send(p.loginReq(iscsi.StageOperational, iscsi.StageFullFeature, true), nil, keys("InitiatorName="+testInitiator, "TargetName="+testTarget))
			chs = append(chs, p.arrivals())
			synctest.Wait()
		}
		if r, ok := <-chs[0]; ok {
			t.Fatalf("the second login was answered: % x", []byte(r.b))
		}
		select {
		case <-chs[1]:
			t.Fatal("the third login was answered too early")
		default:
		}
		f.dev.open()
		if r := <-chs[1]; r.b.Opcode() != iscsi.OpLoginResponse || r.b[36] != 0 {
			t.Fatalf("third login: % x", []byte(r.b))
		}
	})
}

// A session of another ISID is another nexus: nobody waits.
func TestAnotherISIDIsAnotherSession(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		a := dial()
		a.enter()
		b := dial()
		b.isid[5] = 77
		b.enter()
		if n := len(f.srv.Sessions()); n != 2 {
			t.Fatalf("%d sessions", n)
		}
		a.ready()
		b.ready()
	})
}

// When the connection is lost every task ends, the memory comes back and the session goes.
func TestConnectionLossGivesEverythingBack(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		synctest.Wait()
		p := dial()
		p.enter()
		p.ready()
		f.dev.shut()
		for i := range 3 {
			p.startWrite(i*8, i)
			<-f.dev.arrived
		}
		// And one whose data never comes.
		c := p.command(write10(100, 256))
		c.Write, c.EDTL = true, 131072
		if w, ok := p.w.(*iserWire); ok {
			_, rem, _ := p.expose(131072, transport.RemoteRead)
			p.sendISER(&iscsi.ISERHeader{WriteValid: true, WriteSTag: rem.STag, WriteBase: rem.Off}, c, nil, nil)
			_ = w
		} else {
			p.send(c, nil, nil)
			p.want(iscsi.OpR2T)
		}
		synctest.Wait()
		p.w.close()
		synctest.Wait()
		if f.pool.Used() == 0 {
			t.Fatal("memory that the medium still reads was given back")
		}
		f.dev.open()
		synctest.Wait()
		if n := f.pool.Used(); n != 0 {
			t.Fatalf("%d bytes are still out", n)
		}
		f.srv.mu.Lock()
		left := len(f.srv.sessions) + len(f.srv.conns) + len(f.srv.byName) + len(f.srv.logins)
		f.srv.mu.Unlock()
		if left != 0 {
			t.Fatalf("%d things left in the server", left)
		}
	})
}

func TestLoginTimeout(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		start := time.Now()
		p.wantEnd()
		if d := time.Since(start); d != 15*time.Second {
			t.Fatalf("cut after %v", d)
		}
	})
}

// The target pings a silent initiator and ends the session when no answer comes.
func TestKeepalive(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		for range 3 {
			start := time.Now()
			r := p.want(iscsi.OpNopIn)
			if r.b.ITT() != iscsi.Reserved || r.b.TTT() == iscsi.Reserved {
				t.Fatalf("ping % x", []byte(r.b))
			}
			if d := time.Since(start); d < 10*time.Second || d > 30*time.Second {
				t.Fatalf("pinged after %v", d)
			}
			p.send(&iscsi.NopOut{Immediate: true, ITT: iscsi.Reserved, TTT: r.b.TTT(), CmdSN: p.cmdSN, ExpStatSN: p.statSN}, nil, nil)
		}
		p.want(iscsi.OpNopIn)
		start := time.Now()
		p.wantEnd()
		if d := time.Since(start); d > 31*time.Second {
			t.Fatalf("cut after %v", d)
		}
		synctest.Wait()
		f.logged("session lost", "does not answer")
	})
}

// Close asks initiators to leave, waits for their commands, and cuts whoever stays.
func TestCloseDrains(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		f.dev.shut()
		c := p.startWrite(0, 1)
		<-f.dev.arrived
		done := make(chan error, 1)
		go func() { done <- f.srv.Close(context.Background()) }()
		r := p.want(iscsi.OpAsync)
		if r.b[36] != byte(iscsi.AsyncLogout) {
			t.Fatalf("event %d", r.b[36])
		}
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Close returned %v with a command under way", err)
		default:
		}
		f.dev.open()
		if r := p.want(iscsi.OpSCSIResponse); r.b.ITT() != c.ITT || r.b[3] != 0 {
			t.Fatalf("response % x", []byte(r.b))
		}
		p.send(&iscsi.LogoutRequest{Immediate: true, ITT: 99, CmdSN: p.cmdSN, ExpStatSN: p.statSN}, nil, nil)
		if r := p.want(iscsi.OpLogoutResp); r.b[2] != 0 {
			t.Fatalf("logout: % x", []byte(r.b))
		}
		p.w.close()
		must(t, <-done)
	}, func(o *Options) { o.Timeouts.Drain = time.Minute })
}

func TestCloseCutsWhoStays(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		ch := p.arrivals()
		must(t, f.srv.Close(context.Background()))
		n := 0
		for r := range ch {
			if r.b.Opcode() != iscsi.OpAsync {
				t.Errorf("received %s", r.b.Opcode())
			}
			n++
		}
		if n != 1 {
			t.Errorf("%d messages", n)
		}
	})
}

// A flood of silent connections cannot keep others out: the oldest makes room.
func TestLoginFlood(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		var flood []*peer
		for range 12 {
			flood = append(flood, dial())
			synctest.Wait()
		}
		p := dial()
		p.enter()
		p.ready()
		flood[0].wantEnd()
		f.srv.mu.Lock()
		n := len(f.srv.conns)
		f.srv.mu.Unlock()
		if n > 6 {
			t.Errorf("%d connections", n)
		}
	}, func(o *Options) { o.Limits.Logins = 4 })
}

func TestRemoveTargetEndsItsSessions(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		must(t, f.srv.RemoveTarget(t.Context(), testTarget))
		p.wantEnd()
		q := dial()
		kv := []string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget, "RDMAExtensions=Yes"}
		if l, _ := q.step(iscsi.StageOperational, iscsi.StageFullFeature, true, kv...); l.Status != iscsi.LoginNotFound {
			t.Fatalf("status %v", l.Status)
		}
		if err := f.srv.RemoveTarget(t.Context(), testTarget); !errors.Is(err, ErrNoTarget) {
			t.Fatalf("second removal: %v", err)
		}
	})
}

func TestAccessListChangesLive(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Initiators: []Initiator{{Name: testInitiator, LUNs: []uint16{3}}}}))
		c := p.command(make([]byte, 6))
		p.send(c, nil, nil)
		var r pdu
		for r = p.recv(); r.b.Opcode() == iscsi.OpAsync; {
			r = p.recv()
		}
		if key, asc := sense(r); r.b[3] != 2 || key != 5 || asc != 0x2500 {
			t.Fatalf("status %x, sense %x %04x, expected LOGICAL UNIT NOT SUPPORTED", r.b[3], key, asc)
		}
		must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Initiators: []Initiator{}}))
		for {
			if _, err := p.w.recv(); err != nil {
				break
			}
		}
	})
}

// An idle session's window falls back, and its memory with it.
func TestIdleSessionIsSmall(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		base := f.pool.Used()
		p := dial()
		p.enter()
		p.ready()
		synctest.Wait()
		if n := f.pool.Used() - base; n > 64<<10 {
			t.Errorf("an idle session holds %d registered bytes", n)
		}
	})
}

func TestSessionsAndCloseSession(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		p.startWrite(0, 5)
		p.want(iscsi.OpSCSIResponse)
		s := f.srv.Sessions()
		if len(s) != 1 || s[0].Initiator != testInitiator || s[0].Target != testTarget || s[0].TSIH != p.tsih || s[0].BytesIn != 4096 || s[0].Active != 0 {
			t.Fatalf("%+v", s)
		}
		must(t, f.srv.CloseSession(p.tsih))
		p.wantEnd()
		synctest.Wait()
		if err := f.srv.CloseSession(p.tsih); !errors.Is(err, ErrNoSession) {
			t.Fatal(err)
		}
	})
}

func TestDataOverPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := newPipeFixture(t)
		p := dial()
		p.login()
		p.ready()
		data := pattern(100*512, 1)
		c := p.command(write10(0, 100))
		c.Write, c.EDTL = true, uint32(len(data))
		p.send(c, nil, nil)
		if r := p.finishWrite(data, 8000); r.b[3] != 0 {
			t.Fatal(r)
		}
		if got := p.readTCP(0, 100); !bytes.Equal(got, data) {
			t.Fatal("differs")
		}
	})
}
