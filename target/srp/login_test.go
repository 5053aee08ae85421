package srp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

// refusedBy logs in and returns the reason of the refusal.
func (f *fixture) refusedBy(req wire.LoginReq) wire.RejectReason {
	f.t.Helper()
	_, err := srpinit.Dial(f.ctx(), f.far, f.farM, f.addr, req)
	return f.reason(err)
}

func (f *fixture) reason(err error) wire.RejectReason {
	f.t.Helper()
	var r *srpinit.RejectedError
	if !errors.As(err, &r) {
		f.t.Fatalf("not refused: %v", err)
	}
	return r.Reason
}

func TestRefusals(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		for name, c := range map[string]struct {
			change func(*wire.LoginReq)
			want   wire.RejectReason
		}{
			"another target's port":   {func(l *wire.LoginReq) { l.Target[15]++ }, wire.RejNoNexus},
			"the port of a group":     {func(l *wire.LoginReq) { l.Target = wire.PortID(TargetPort(testTarget, group+1)) }, wire.RejNoNexus},
			"who is not on the list":  {func(l *wire.LoginReq) { l.Initiator = port(99) }, wire.RejNoNexus},
			"a format without a name": {func(l *wire.LoginReq) { l.Formats |= 1 << 9 }, wire.RejFormat},
			"units that are too long": {func(l *wire.LoginReq) { l.MaxITUnit = maxUnit + 1 }, wire.RejUnitTooLarge},
			"a multichannel action":   {func(l *wire.LoginReq) { l.Flags |= 2 }, wire.RejUnable},
		} {
			req := f.request(1)
			c.change(&req)
			if got := f.refusedBy(req); got != c.want {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
		for name, private := range map[string][]byte{"nothing": nil, "half a request": make([]byte, 30), "another unit": append(make([]byte, 11), append([]byte{2}, make([]byte, 44)...)...)} {
			_, err := srpinit.DialRaw(f.ctx(), f.far, f.farM, f.addr, private)
			if got := f.reason(err); got != wire.RejUnable {
				t.Errorf("%s: %v", name, got)
			}
		}
		if l := f.srv.Sessions(); len(l) != 0 {
			t.Errorf("sessions of refused logins: %+v", l)
		}
		counts := f.srv.Counts()
		if counts.Refused["00010003"] != 3 || counts.Refused["00010000"] != 4 || counts.Logins != 0 {
			t.Errorf("%+v", counts)
		}
		if n := f.logs.FilterMessage("SRP login refused").Len(); n != 9 {
			t.Errorf("%d lines", n)
		}
		f.login(1) // and none of them is in the way
	})
}

// The response promises what the target does: units of the length that was asked for, and no more requests than there are receives.
func TestResponses(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		for _, c := range []struct {
			unit, offset    int
			flags           uint8
			credits, atmost int
			immediate       bool
		}{
			{8260, 68, wire.ImmedRequest, 64, 8320, true}, {8260, 68, 0, 64, 8320, false}, {64, 0, 0, 64, 64, false}, {0, 0, 0, 64, 64, false}, {260, 68, wire.ImmedRequest, 64, 320, true},
			{64 << 10, 68, wire.ImmedRequest, 28, 64 << 10, true}, {8260, 51, wire.ImmedRequest, 64, 8320, false}, {8260, 65000, wire.ImmedRequest, 64, 8320, false},
		} {
			req := f.request(1)
			req.MaxITUnit, req.ImmOffset, req.Flags = uint32(c.unit), uint16(c.offset), c.flags
			req.Tag = 0x1122334455667788
			ch := f.dial(req)
			l := ch.Login
			if int(l.Credits) != c.credits || int(l.MaxITUnit) != c.atmost || l.MaxTIUnit != responseUnit || l.Tag != req.Tag || l.Formats != wire.FormatDirect|wire.FormatIndirect || l.Flags&wire.ImmedSupport != 0 != c.immediate {
				t.Errorf("units of %d, data at %d: %+v", c.unit, c.offset, l)
			}
			f.ready(ch)
			ch.End()
			f.settled()
		}
	})
}

// settled waits until no session is left.
func (f *fixture) settled() {
	f.t.Helper()
	must(f.t, f.srv.changed.Wait(f.ctx(), func() bool { return len(f.srv.channels) == 0 && len(f.srv.sessions) == 0 }))
}

// Zeroes behind the private data, as InfiniBand delivers them, change nothing.
func TestPaddedLogin(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		private := make([]byte, 92)
		req := f.request(1)
		req.Put(private)
		c, err := srpinit.DialRaw(f.ctx(), f.far, f.farM, f.addr, private)
		must(t, err)
		defer c.End()
		f.ready(c)
	})
}

func TestLimits(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		first := f.login(1)
		second := f.login(2)
		if got := f.refusedBy(f.request(3)); got != wire.RejResources {
			t.Errorf("a third channel of two: %v", got)
		}
		multi := f.request(1)
		multi.Flags |= wire.MultiMulti
		second.End()
		must(t, f.srv.changed.Wait(f.ctx(), func() bool { return len(f.srv.channels) == 1 }))
		if got := f.refusedBy(multi); got != wire.RejTooManyChannels {
			t.Errorf("a second channel of a session of one: %v", got)
		}
		f.ready(first)
	}, func(o *Options) { o.Connections, o.Channels = 2, 1 })
	each(t, func(t *testing.T, f *fixture) {
		f.login(1)
		if got := f.refusedBy(f.request(2)); got != wire.RejResources {
			t.Errorf("a second channel of a host: %v", got)
		}
	}, func(o *Options) { o.PerHost = 1 })
}

// Receives take no more than their part of the memory, however many channels log in.
func TestReceivesAreBounded(t *testing.T) {
	pool := mem.NewPool(1) // the smallest there is
	f := newFixtureOf(t, "twin", pool)
	n := 0
	for ; n < 100; n++ {
		c, err := srpinit.Dial(f.ctx(), f.far, f.farM, f.addr, f.request(byte(n)))
		if err != nil {
			if got := f.reason(err); got != wire.RejResources {
				t.Fatal(got)
			}
			break
		}
		t.Cleanup(c.End)
	}
	if most := pool.Stats().Max / 8; n == 0 || int64(n)*68*8320 > most {
		t.Errorf("%d channels of one host in a pool of %d", n, pool.Stats().Max)
	}
	if used := pool.Used(); used > pool.Stats().Max/4 {
		t.Errorf("%d bytes used", used)
	}
}

// A login waits for memory as long as a login may take, and is refused then.
func TestLoginWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := mem.NewPool(1)
		f := newFixtureOf(t, "twin", pool)
		var held []*mem.Buf
		for _, size := range []int{1 << 20, 256 << 10, 64 << 10, 16 << 10, 4 << 10} {
			for {
				b, err := pool.Get(size)
				if err != nil {
					break
				}
				held = append(held, b)
			}
		}
		began := time.Now()
		if got := f.refusedBy(f.request(1)); got != wire.RejResources || time.Since(began) != f.srv.opt.Login {
			t.Errorf("%v after %v", got, time.Since(began))
		}
		f.settled()
		got := make(chan *srpinit.Channel)
		go func() {
			c, err := srpinit.Dial(context.Background(), f.far, f.farM, f.addr, f.request(1))
			must(t, err)
			got <- c
		}()
		synctest.Wait()
		for _, b := range held {
			b.Release()
		}
		c := <-got
		f.ready(c)
		c.End()
		f.close()
	})
}

// What is not a login for a target that is there tells nothing of what there is.
func TestRefusalsTellNothing(t *testing.T) {
	f := newFixture(t, "twin")
	a, b := f.request(99), f.request(1)
	b.Target[15]++
	if x, y := f.refusedBy(a), f.refusedBy(b); x != y {
		t.Errorf("one who is not on the list is told %v, one who asks for no port %v", x, y)
	}
	for _, l := range f.logs.FilterMessage("SRP login refused").All() {
		if m := l.ContextMap(); !strings.HasPrefix(m["initiator"].(string), "srp.") || m["why"] == "" {
			t.Errorf("%v", m)
		}
	}
}

// The identifier of a target port is the same for ever: hosts have it in their configuration.
func TestTargetPort(t *testing.T) {
	p := TargetPort("iqn.2026-11.io.sluice:default", 2)
	if got := (wire.PortID(p)).Name(); got != "srp.0000000000000002aed3bb62671f8333" {
		t.Errorf("%s", got)
	}
	for _, o := range []scsi.SRPPort{TargetPort("iqn.2026-11.io.sluice:default", 3), TargetPort("iqn.2026-11.io.sluice:other", 2)} {
		if o == p {
			t.Errorf("two ports have the identifier %x", o)
		}
	}
	if p[8]&3 != 2 {
		t.Errorf("%02x is no local EUI-64", p[8])
	}
}
