package iscsi

import (
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// A host that counts the command window itself and reads no response is cut: what waits for it would grow with every command. It is
// so over TCP, and over iSER where the responses wait for memory too.
func TestAHostThatReadsNoResponsesIsCut(t *testing.T) {
	flood := func(f *fixture, p *peer) {
		for range 20 * maxQueuedControl {
			if p.w.send(nil, iscsi.BHS(iscsi.Append(nil, p.command(make([]byte, 6)))), nil, nil) != nil {
				break
			}
			synctest.Wait()
			if w, is := p.w.(*iserWire); is {
				w.poll() // what it has sent is sent; no response can come
			}
		}
		synctest.Wait()
		f.logged("session lost", "does not read")
	}
	t.Run("tcp", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, dial := newPipeFixture(t)
			p := dial()
			p.login()
			flood(f, p)
		})
	})
	t.Run("iser", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			pool, with := small()
			f := newTwinFixture(t, with)
			p := f.dialISER(iscsi.CMPrivate(true))
			p.loginISER()
			p.ready()
			refill := starved(t, f, pool)
			flood(f, p)
			refill()
		})
	})
}
