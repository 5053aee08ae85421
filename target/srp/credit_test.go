package srp

import (
	"bytes"
	"sync/atomic"
	"testing"
	"testing/synctest"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

// A command that ends without a response, and whose end is no answer to this channel either, brings its credit back by SRP_CRED_REQ.
func TestCreditsOfWhatIsNotAnswered(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		a, b := f.login(1), f.another(1)
		f.ready(b)
		all := a.Credits()
		f.dev.shut()
		p := f.start(a, srpinit.Command{CDB: write10(0, 512), Out: noise(512, 1)})
		<-f.dev.arrived
		q := f.managing(b, wire.AbortTaskSet, 0, 0)
		f.dev.open()
		if r := q.Wait(); r.Response() != wire.FunctionComplete {
			t.Fatalf("%+v", r)
		}
		a.Abandon(p)
		must(t, a.Await(f.ctx(), func() bool { return a.CreditsLocked() == all }))
		if e := a.Events(); len(e) != 1 || e[0].Op != wire.OpCredReq || e[0].Grant != 1 {
			t.Errorf("told %+v", e)
		}
		f.ready(a)
	})
}

// Responses that wait for memory of those before them come all, in order and with their credits: the initiator sees none of its completions for a while.
func TestResponsesThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "twin")
		a := f.login(1)
		want := noise(4096, 1)
		good(t, a.Do(f.ctx(), srpinit.Command{CDB: write10(0, 4096), Out: want}))
		for c := range f.srv.channels {
			c.mu.Lock()
			c.freeSend = c.freeSend[:1] // as if all others were under way
			c.mu.Unlock()
		}
		var all []*srpinit.Pending
		for range 30 {
			all = append(all, f.start(a, srpinit.Command{CDB: read10(0, 4096), In: 4096}), f.start(a, srpinit.Command{CDB: []byte{0xD0}}), f.start(a, srpinit.Command{CDB: write10(8, 512), Out: want[:512]}))
		}
		for i, p := range all {
			r := p.Wait()
			must(t, r.Err)
			if i%3 == 0 && !bytes.Equal(r.In, want) || (r.Status == 0) != (i%3 != 1) {
				t.Fatalf("command %d: status %02X", i, r.Status)
			}
		}
		a.End()
		f.close()
	})
}

// Commands and logins wait for memory, and get it, while each other request for some is refused and there is little of it.
func TestDryMemory(t *testing.T) {
	var asked atomic.Int64
	mem.SetDrought(&mem.Drought{Max: 1, Deny: func(int) bool { return asked.Add(1)%2 == 0 }})
	pool := mem.NewPool(1)
	mem.SetDrought(nil)
	f := newFixtureOf(t, "twin", pool)
	a, b := f.login(1), f.login(2)
	seed, busy := uint64(0), 0
	for range 5 {
		for name, shape := range shapes {
			for _, c := range []*srpinit.Channel{a, b} {
				seed++
				want := noise(8192, seed)
				w, r := shape, shape
				w.CDB, w.Out = write10(int(seed)*16, 8192), want
				r.CDB, r.In = read10(int(seed)*16, 8192), 8192
				for _, cmd := range []srpinit.Command{w, r} {
					got := c.Do(f.ctx(), cmd)
					for got.Err == nil && got.Status == uint8(scsi.StatusBusy) { // there was no memory for its table
						busy++
						got = c.Do(f.ctx(), cmd)
					}
					good(t, got)
					if cmd.In > 0 && !bytes.Equal(got.In, want) {
						t.Errorf("%s: other bytes", name)
					}
				}
			}
		}
	}
	if busy == 0 || asked.Load() < 100 {
		t.Errorf("%d requests for memory, %d commands told BUSY: it was not dry", asked.Load(), busy)
	}
}
