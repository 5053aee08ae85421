package srp

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

// A login that waits for the commands of an earlier session is judged again when it goes on: the target may not be offered any more.
func TestALoginThatWaitsIsJudgedAgain(t *testing.T) {
	var gone atomic.Bool
	each(t, func(t *testing.T, f *fixture) {
		gone.Store(false)
		c := f.login(1)
		f.dev.shut()
		p := f.start(c, srpinit.Command{CDB: write10(0, 4096), Out: noise(4096, 1)})
		<-f.dev.arrived
		login := make(chan error, 1)
		go func() {
			_, err := srpinit.Dial(f.ctx(), f.far, f.farM, f.addr, f.request(1))
			login <- err
		}()
		// The new login ends the channel, whose write keeps it waiting.
		if e := told(c); len(e) != 1 || e[0].Op != wire.OpTLogout || e[0].Reason != wire.LogoutMultichannel {
			t.Errorf("the channel that made room was told %+v", e)
		}
		gone.Store(true)
		f.srv.EndSessions(testTarget, func(scsi.SRPPort) bool { return false })
		err := <-login // the write is with the medium all the while
		var r *srpinit.RejectedError
		if !errors.As(err, &r) || r.Reason != wire.RejNoNexus {
			t.Errorf("the login got %v", err)
		}
		p.Wait()
		f.dev.open()
		must(t, f.srv.Await(f.ctx(), testTarget))
	}, func(o *Options) {
		find := o.Find
		o.Find = func(g uint16, target, initiator scsi.SRPPort) (Grant, error) {
			if gone.Load() {
				return Grant{}, errors.New("the target was removed")
			}
			return find(g, target, initiator)
		}
	})
}

// The longest unit that is accepted logs in, alone and with half of it, and bears a command. One that is longer is refused at once.
func TestLongestUnit(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		for _, unit := range []uint32{maxUnit/2 + 1, maxUnit} {
			req := f.request(1)
			req.MaxITUnit = unit
			c := f.dial(req)
			f.ready(c)
			if c.Login.MaxITUnit < unit || c.Login.Credits < 2 {
				t.Errorf("login response %+v", c.Login)
			}
			n := (int(unit) - srpinit.ImmOffset - 4) &^ (block - 1)
			want := noise(n, uint64(unit))
			good(t, c.Do(f.ctx(), srpinit.Command{CDB: write10(0, n), Out: want, Immediate: true}))
			if !bytes.Equal(f.stored(0, n), want) {
				t.Error("the medium has other bytes")
			}
		}
		req := f.request(1)
		req.MaxITUnit = maxUnit + 1
		_, err := srpinit.Dial(f.ctx(), f.far, f.farM, f.addr, req)
		var r *srpinit.RejectedError
		if !errors.As(err, &r) || r.Reason != wire.RejUnitTooLarge {
			t.Errorf("a longer unit: %v", err)
		}
	})
}
