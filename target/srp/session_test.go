package srp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

// another is one more channel of an initiator's session.
func (f *fixture) another(initiator byte) *srpinit.Channel {
	f.t.Helper()
	req := f.request(initiator)
	req.Flags |= wire.MultiMulti
	return f.dial(req)
}

func result(c *srpinit.Channel) uint8 { return c.Login.Flags &^ wire.ImmedSupport }

// Channels of one initiator port are one I_T nexus: what the first is told and holds counts for the second. Their tags are their own.
func TestChannelsOfANexus(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a := f.login(1)
		b := f.another(1)
		if result(a) != wire.ResultNone || result(b) != wire.ResultKept {
			t.Fatalf("results %d and %d", result(a), result(b))
		}
		good(t, b.Do(f.ctx(), srpinit.Command{CDB: []byte{0}})) // no unit attention of its own
		if l := f.srv.Sessions(); len(l) != 1 || l[0].Channels != 2 || l[0].Window != 128 {
			t.Fatalf("%+v", l)
		}
		good(t, a.Do(f.ctx(), srpinit.Command{CDB: []byte{0x16, 0, 0, 0, 0, 0}}))
		good(t, b.Do(f.ctx(), srpinit.Command{CDB: write10(0, 512), Out: noise(512, 1)}))
		stranger := f.dial(f.request(2))
		for range 2 {
			if r := stranger.Do(f.ctx(), srpinit.Command{CDB: write10(0, 512), Out: noise(512, 2)}); r.Err != nil || r.Status == 0 {
				t.Fatalf("a write past a reservation: %v, status %02X", r.Err, r.Status)
			}
		}
		good(t, b.Do(f.ctx(), srpinit.Command{CDB: []byte{0x17, 0, 0, 0, 0, 0}}))
		errs := make(chan error, 400)
		for i := range cap(errs) {
			go func() {
				c, want := []*srpinit.Channel{a, b}[i%2], noise(4096, uint64(i))
				r := c.Do(f.ctx(), srpinit.Command{CDB: write10(i*8, 4096), Out: want, Immediate: i%3 == 0})
				if r.Err == nil && r.Status == 0 {
					r = []*srpinit.Channel{b, a}[i%2].Do(f.ctx(), srpinit.Command{CDB: read10(i*8, 4096), In: 4096})
				}
				if r.Err == nil && (r.Status != 0 || !bytes.Equal(r.In, want)) {
					r.Err = fmt.Errorf("command %d: status %02X", i, r.Status)
				}
				errs <- r.Err
			}()
		}
		for range cap(errs) {
			must(t, <-errs)
		}
	})
}

// ABORT TASK is about a tag of its own channel. What aborts a set is about that of the nexus, and what it answers comes behind the responses on all channels.
func TestTagsAreAChannels(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a, b := f.login(1), f.another(1)
		f.dev.shut()
		pa := f.start(a, srpinit.Command{CDB: write10(0, 512), Out: noise(512, 1)})
		var pb *srpinit.Pending
		for pb == nil || pb.Tag != pa.Tag { // they are counted from the login on
			if pb = f.start(b, srpinit.Command{CDB: write10(8, 512), Out: noise(512, 2)}); pb.Tag != pa.Tag {
				<-f.dev.arrived
			}
		}
		<-f.dev.arrived
		<-f.dev.arrived
		abort := f.managing(b, wire.AbortTask, 0, pb.Tag)
		f.dev.open()
		if r := abort.Wait(); r.Response() != wire.FunctionComplete {
			t.Fatalf("%+v", r)
		}
		good(t, pa.Wait())
		select {
		case <-pb.Done():
			t.Error("the aborted write is answered")
		default:
		}
		b.Abandon(pb)
		f.dev.shut()
		pa = f.start(a, srpinit.Command{CDB: write10(0, 512), Out: noise(512, 3)})
		<-f.dev.arrived
		reset := f.managing(b, wire.LUNReset, 0, 0)
		f.dev.open()
		if r := reset.Wait(); r.Response() != wire.FunctionComplete {
			t.Fatalf("%+v", r)
		}
		a.Abandon(pa)
		f.ready(a)
	})
}

// What a unit has to tell is told once to the nexus, on whichever of its channels the next command comes: a change by another host, and a reset by one.
func TestChannelsAreToldOnce(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a, b, other := f.login(1), f.another(1), f.login(2)
		f.ready(b)
		asc := func(c *srpinit.Channel) uint16 {
			t.Helper()
			r := c.Do(f.ctx(), srpinit.Command{CDB: []byte{0}})
			must(t, r.Err)
			switch {
			case r.Status == 0:
				return 0
			case r.Sense[0]&0x7F < 0x72:
				return binary.BigEndian.Uint16(r.Sense[12:])
			}
			return binary.BigEndian.Uint16(r.Sense[2:])
		}
		for i, c := range []*srpinit.Channel{a, b, a} {
			alone := b
			if c == b {
				alone = a
			}
			must(t, f.st.SetPortGroup(1, []scsi.AccessState{scsi.ActiveNonOptimized, scsi.ActiveOptimized}[i%2]))
			if x, y, z := asc(c), asc(alone), asc(c); x != 0x2A06 || y != 0 || z != 0 {
				t.Errorf("of a change the channels are told %04X, %04X and %04X", x, y, z)
			}
			f.ready(other)
			if r := f.manage(other, wire.LUNReset, 0, 0).Wait(); r.Response() != wire.FunctionComplete {
				t.Fatalf("%+v", r)
			}
			if x, y, z := asc(c), asc(alone), asc(c); x != 0x2903 || y != 0 || z != 0 {
				t.Errorf("of a reset the channels are told %04X, %04X and %04X", x, y, z)
			}
		}
	})
}

// A channel that ends takes its own commands with it. The session goes on with the others, and its commands on them.
func TestAChannelEndsAlone(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a, b := f.login(1), f.another(1)
		good(t, b.Do(f.ctx(), srpinit.Command{CDB: []byte{0x16, 0, 0, 0, 0, 0}}))
		f.dev.shut()
		pa := f.start(a, srpinit.Command{CDB: write10(0, 4096), Out: noise(4096, 1)})
		pb := f.start(b, srpinit.Command{CDB: write10(8, 4096), Out: noise(4096, 2)})
		<-f.dev.arrived
		<-f.dev.arrived
		a.End()
		must(t, f.srv.changed.Wait(f.ctx(), func() bool {
			for c := range f.srv.channels {
				if c.sess != nil && len(c.sess.channels) == 1 {
					return true
				}
			}
			return false
		}))
		f.dev.open()
		good(t, pb.Wait())
		if r := pa.Wait(); r.Err == nil {
			t.Errorf("answered on a channel that has ended: %+v", r)
		}
		good(t, b.Do(f.ctx(), srpinit.Command{CDB: []byte{0}}))
		if r := f.dial(f.request(2)).Do(f.ctx(), srpinit.Command{CDB: write10(0, 512), Out: noise(512, 1)}); r.Err != nil || r.Status == 0 {
			t.Error("the reservation has gone with one of two channels")
		}
		c := f.another(1)
		if result(c) != wire.ResultKept {
			t.Errorf("result %d", result(c))
		}
		b.End()
		c.End()
		must(t, f.srv.changed.Wait(f.ctx(), func() bool { return len(f.srv.sessions) == 1 }))
	})
}

// A login that wants to be alone ends the other channels, and is answered when nothing of them can reach the medium any more.
func TestReplacement(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a, b := f.login(1), f.another(1)
		old := noise(4096, 1)
		f.dev.shut()
		pa := f.start(a, srpinit.Command{CDB: write10(0, 4096), Out: old})
		pb := f.start(b, srpinit.Command{CDB: write10(0, 4096), Out: old, Immediate: true})
		<-f.dev.arrived
		<-f.dev.arrived
		got := make(chan *srpinit.Channel)
		go func() {
			c, err := srpinit.Dial(f.ctx(), f.far, f.farM, f.addr, f.request(1))
			must(t, err)
			got <- c
		}()
		<-a.Done()
		<-b.Done()
		select {
		case <-got:
			t.Fatal("the login is answered while writes of the session before are with the medium")
		default:
		}
		f.dev.open()
		c := <-got
		t.Cleanup(c.End)
		if result(c) != wire.ResultEnded {
			t.Errorf("result %d", result(c))
		}
		f.ready(c)
		want := noise(4096, 2)
		good(t, c.Do(f.ctx(), srpinit.Command{CDB: write10(0, 4096), Out: want}))
		if !bytes.Equal(f.stored(0, 4096), want) {
			t.Error("a write of the session before has landed on a later one")
		}
		for _, p := range []*srpinit.Pending{pa, pb} {
			if r := p.Wait(); r.Err == nil {
				t.Errorf("answered on a channel that has ended: %+v", r)
			}
		}
		if n := f.srv.Counts().Ended["reinstated"]; n != 1 {
			t.Errorf("%d sessions ended for it", n)
		}
	})
}

// A login that would replace a session whose medium hangs is refused after its time, and the next one gets in when that answers.
func TestReplacementOfASessionThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "twin")
		a := f.login(1)
		f.dev.shut()
		f.start(a, srpinit.Command{CDB: write10(0, 4096), Out: noise(4096, 1)})
		<-f.dev.arrived
		began := time.Now()
		if got := f.refusedBy(f.request(1)); got != wire.RejResources || time.Since(began) != f.srv.opt.Login {
			t.Errorf("%v after %v", got, time.Since(began))
		}
		multi := f.request(1)
		multi.Flags |= wire.MultiMulti
		if got := f.refusedBy(multi); got != wire.RejResources {
			t.Errorf("a second channel of a session that ends: %v", got)
		}
		f.dev.open()
		f.settled()
		c := f.another(1)
		if result(c) != wire.ResultNone {
			t.Errorf("result %d", result(c))
		}
		f.ready(c)
		c.End()
		f.close()
	})
}

// Many logins of one port at once: one session is left, and it works.
func TestStormOfLogins(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		const n = 24
		got := make(chan *srpinit.Channel, n)
		for i := range n {
			go func() {
				req := f.request(1)
				if i%3 == 0 {
					req.Flags |= wire.MultiMulti
				}
				c, err := srpinit.Dial(f.ctx(), f.far, f.farM, f.addr, req)
				if err == nil {
					r := c.Do(f.ctx(), srpinit.Command{CDB: read10(0, 4096), In: 4096})
					_ = r
				}
				got <- c
			}()
		}
		for range n {
			if c := <-got; c != nil {
				t.Cleanup(c.End)
			}
		}
		f.login(1)
		if l := f.srv.Sessions(); len(l) != 1 || l[0].Channels != 1 {
			t.Errorf("%+v", l)
		}
	})
}

// What a session may no longer have ends with SRP_T_LOGOUT, and others stay.
func TestEndSessions(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a, b := f.login(1), f.login(2)
		f.srv.EndSessions(testTarget, func(p scsi.SRPPort) bool { return p == scsi.SRPPort(port(2)) })
		if e := told(a); len(e) != 1 || e[0].Op != wire.OpTLogout {
			t.Errorf("told %+v", e)
		}
		f.ready(b)
		f.srv.EndSessions("iqn.2026-11.dev.sluice:other", func(scsi.SRPPort) bool { return false })
		f.ready(b)
		f.srv.EndSessions(testTarget, func(scsi.SRPPort) bool { return false })
		must(t, f.srv.Await(f.ctx(), testTarget))
		if l := f.srv.Sessions(); len(l) != 0 {
			t.Errorf("%+v", l)
		}
		if n := f.srv.Counts().Ended["target_removed"]; n != 2 {
			t.Errorf("%d sessions ended", n)
		}
	})
}

// The flight recorders tell what a session of several channels did, also after its end.
func TestTrace(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a, b := f.login(1), f.another(1)
		good(t, b.Do(f.ctx(), srpinit.Command{CDB: write10(0, 512), Out: noise(512, 1)}))
		f.dev.shut()
		p := f.start(a, srpinit.Command{CDB: read10(0, 512), In: 512})
		<-f.dev.arrived
		id := f.srv.Sessions()[0].ID
		_, ended, tr, err := f.srv.Trace(id)
		must(t, err)
		if ended != "" || len(tr.Inflight) != 1 || tr.Inflight[0].Tag != p.Tag || len(tr.Commands) < 2 || tr.Commands[len(tr.Commands)-1].Outcome != "GOOD" {
			t.Errorf("%q %+v", ended, tr)
		}
		f.dev.open()
		good(t, p.Wait())
		a.End()
		b.End()
		f.settled()
		info, ended, tr, err := f.srv.Trace(id)
		must(t, err)
		ends := 0
		for _, e := range tr.Events {
			if e.What == "channel 1 ended: srp: the initiator closed the connection" || e.What == "channel 2 ended: srp: the initiator closed the connection" {
				ends++
			}
		}
		if ended == "" || ends != 2 || info.ID != id || info.Commands < 3 || len(tr.Inflight) != 0 {
			t.Errorf("%q, %d ends, %+v, %+v", ended, ends, info, tr)
		}
		if _, _, _, err := f.srv.Trace(id + 1); err != ErrNoSession {
			t.Error(err)
		}
	})
}

// A context that ends leaves a login nothing.
func TestDialThatGivesUp(t *testing.T) {
	f := newFixture(t, "twin")
	f.dev.shut()
	a := f.login(1)
	f.start(a, srpinit.Command{CDB: write10(0, 512), Out: noise(512, 1)})
	<-f.dev.arrived
	ctx, cancel := context.WithCancel(f.ctx())
	done := make(chan error)
	go func() {
		_, err := srpinit.Dial(ctx, f.far, f.farM, f.addr, f.request(1))
		done <- err
	}()
	<-a.Done() // it waits for the write now
	cancel()
	if err := <-done; err == nil {
		t.Error("logged in")
	}
	f.dev.open()
	f.settled()
}
