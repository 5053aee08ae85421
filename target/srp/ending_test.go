package srp

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

// told waits for the end of a channel and returns what its initiator was told before.
func told(c *srpinit.Channel) []srpinit.Event {
	<-c.Done()
	return c.Events()
}

// Who is logged out is told so before the connection ends.
func TestLogout(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c := f.login(1)
		must(t, f.srv.CloseSession(f.srv.Sessions()[0].ID))
		if e := told(c); len(e) != 1 || e[0].Op != wire.OpTLogout || e[0].Reason != wire.LogoutNone {
			t.Errorf("told %+v", e)
		}
	})
}

// A server that closes lets what runs end, takes nothing more, and logs initiators out.
func TestDrain(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a, b := f.login(1), f.login(2)
		f.dev.shut()
		want := noise(4096, 1)
		p := f.start(a, srpinit.Command{CDB: write10(0, 4096), Out: want})
		<-f.dev.arrived
		closed := make(chan struct{})
		go func() {
			f.close()
			close(closed)
		}()
		if e := told(b); len(e) != 1 || e[0].Op != wire.OpTLogout { // it had nothing to wait for
			t.Errorf("told %+v", e)
		}
		late := f.start(a, srpinit.Command{CDB: write10(8, 4096), Out: want})
		f.dev.open()
		good(t, p.Wait())
		if e := told(a); len(e) != 1 || e[0].Op != wire.OpTLogout {
			t.Errorf("told %+v", e)
		}
		if r := late.Wait(); r.Err == nil {
			t.Errorf("a write that came while it closed is answered: %+v", r)
		}
		<-closed
		if !bytes.Equal(f.stored(0, 4096), want) || bytes.Equal(f.stored(8*block, 4096), want) {
			t.Error("other bytes")
		}
		if n := f.srv.Counts().Ended["shutdown"]; n != 2 {
			t.Errorf("%+v", f.srv.Counts())
		}
		if _, err := srpinit.Dial(f.ctx(), f.far, f.farM, f.addr, f.request(3)); err == nil {
			t.Error("logged in to a server that has closed")
		}
	})
}

// A medium that does not answer holds Close up for twice the drain, and no longer.
func TestCloseWithAMediumThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "twin")
		a := f.login(1)
		f.dev.shut()
		f.start(a, srpinit.Command{CDB: write10(0, 4096), Out: noise(4096, 1)})
		<-f.dev.arrived
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if err := f.srv.Close(ctx); err == nil || time.Since(began) != 2*f.srv.opt.Drain {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		f.dev.open()
		a.End()
		f.settled()
	})
}

// SRP_I_LOGOUT ends the channel.
func TestInitiatorLogsOut(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a := f.login(1)
		b := make([]byte, wire.ShortLen)
		must(t, a.Send(b[:wire.PutILogout(b, 1)]))
		if e := told(a); len(e) != 0 {
			t.Errorf("told %+v", e)
		}
		f.settled()
		if n := f.srv.Counts().Ended["logged_out"]; n != 1 {
			t.Errorf("%+v", f.srv.Counts())
		}
	})
}

// An initiator that is silent is asked whether it is there. One that answers stays; one that does not is gone after the peer timeout.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "twin")
		alive, dead := f.login(1), f.login(2)
		dead.Deaf(1 << 30)
		began := time.Now()
		<-dead.Done()
		if took := time.Since(began); took < f.srv.opt.Peer || took > f.srv.opt.Peer*3/2 {
			t.Errorf("gone after %v", took)
		}
		time.Sleep(10 * f.srv.opt.Peer)
		f.ready(alive)
		if n := len(alive.Events()); n < 10 {
			t.Errorf("asked %d times", n)
		}
		if n := f.srv.Counts().Ended["silent"]; n != 1 {
			t.Errorf("%+v", f.srv.Counts())
		}
		alive.End()
		f.close()
	})
}

// An initiator that lost an answer and lives is asked anew when it is silent, and stays. It may still answer the older request.
func TestAnAnswerThatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "twin")
		a := f.login(1)
		asked := func(n int) uint64 {
			must(t, a.Await(f.ctx(), func() bool { return len(a.EventsLocked()) == n }))
			return a.Events()[n-1].Tag
		}
		a.Deaf(2)
		first := asked(1)
		f.ready(a) // the answer is gone for good, and the initiator is not
		began := time.Now()
		second := asked(2)
		if took := time.Since(began); took < f.srv.opt.Peer/2 || took > f.srv.opt.Peer*3/4 {
			t.Errorf("asked anew after %v", took)
		}
		rsp := make([]byte, wire.ShortLen)
		for _, tag := range []uint64{first, second} {
			must(t, a.Send(rsp[:wire.PutCredRsp(rsp, tag)]))
		}
		time.Sleep(10 * f.srv.opt.Peer)
		f.ready(a)
		must(t, a.Send(rsp[:wire.PutCredRsp(rsp, second)])) // twice
		if e := told(a); len(e) == 0 || e[len(e)-1].Reason != wire.LogoutUnasked {
			t.Errorf("told %+v", e)
		}
		a.End()
		f.close()
	})
}

// An initiator that sends commands and answers nothing is asked as often as there are receives for the answers, and is gone with the next silence.
func TestAnInitiatorThatNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "twin")
		a := f.login(1)
		a.Deaf(1 << 30)
		began, silences := time.Now(), 0
		for ; silences < 100; silences++ {
			time.Sleep(f.srv.opt.Peer * 5 / 6) // it is asked meanwhile
			if r := a.Do(f.ctx(), srpinit.Command{CDB: []byte{0}}); r.Err != nil {
				break
			}
			if silences == mostUnanswered {
				<-a.Done()
				break
			}
		}
		if n := len(a.Events()); n != mostUnanswered || silences != mostUnanswered {
			t.Errorf("asked %d times in %d silences of %v", n, silences, time.Since(began))
		}
		f.settled()
		if n := f.srv.Counts().Ended["silent"]; n != 1 {
			t.Errorf("%+v", f.srv.Counts())
		}
		a.End()
		f.close()
	})
}

// A command that the medium takes long for ends nothing, however long: the initiator answers.
func TestALongCommandIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "twin")
		a := f.login(1)
		f.dev.shut()
		p := f.start(a, srpinit.Command{CDB: write10(0, 4096), Out: noise(4096, 1)})
		<-f.dev.arrived
		time.Sleep(20 * f.srv.opt.Peer)
		f.dev.open()
		good(t, p.Wait())
		a.End()
		f.close()
	})
}

// An initiator that serves no Read holds memory for its writes. It is gone in bounded time, and its memory with it.
func TestStarvation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "twin")
		a, b := f.login(1), f.login(2)
		thaw := a.Freeze()
		p := f.start(a, srpinit.Command{CDB: write10(0, 1<<20), Out: noise(1<<20, 1)})
		began := time.Now()
		must(t, f.srv.changed.Wait(context.Background(), func() bool { return len(f.srv.sessions) == 1 }))
		if took := time.Since(began); took < f.srv.opt.Peer || took > 2*f.srv.opt.Peer {
			t.Errorf("gone after %v", took)
		}
		thaw()
		if r := p.Wait(); r.Err == nil {
			t.Errorf("answered: %+v", r)
		}
		f.ready(b)
		a.End()
		b.End()
		f.close()
	})
}

// Whatever moment the initiator vanishes in, nothing of it is left: the fixture looks.
func TestVanish(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		watch := f.login(9)
		for i := range 40 {
			a := f.login(1)
			for k := range 20 {
				shape := shapes[[]string{"direct", "immediate", "indirect", "tiny", "table"}[k%5]]
				if shape.CDB, shape.Out = write10(k*64, 8192), noise(8192, uint64(k)); k%2 == 0 {
					shape.CDB, shape.Out, shape.In = read10(k*64, 8192), nil, 8192
				}
				if _, err := a.Start(f.ctx(), shape); err != nil {
					t.Fatal(err)
				}
				if k == i%20 && i%2 == 0 {
					break
				}
			}
			a.End()
		}
		f.ready(watch)
	})
}
