package srp

import (
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

// hanging lends its writes to who submits them, and hangs in each until the valve is opened.
type hanging struct {
	blockdev.Device
	valve   chan struct{}
	entered chan struct{}
}

func (h *hanging) Can(op blockdev.Op) bool { return blockdev.Can(h.Device, op) }

func (h *hanging) Submit(r *blockdev.Request) {
	if r.Op == blockdev.Write && r.Deferrer != nil && r.Deferrer.Defer(h, r) {
		return
	}
	h.Device.Submit(r)
}

func (h *hanging) Perform(r *blockdev.Request) {
	h.entered <- struct{}{}
	<-h.valve
	h.Device.Submit(r)
}

// A channel ends while its owners hang in writes, and others wait: the server can close, and says what is left.
func TestAChannelEndsWhileItsOwnerIsInAWrite(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		h := &hanging{Device: f.dev.Device, valve: make(chan struct{}), entered: make(chan struct{}, 100)}
		f.dev.Device = h
		c := f.login(1)
		for i := range 8 {
			if _, err := c.Start(f.ctx(), srpinit.Command{CDB: write10(i, block), Out: noise(block, 1), Immediate: true}); err != nil {
				t.Fatal(err)
			}
		}
		<-h.entered
		c.Close()
		closed := make(chan error, 1)
		go func() { closed <- f.srv.Close(f.ctx()) }()
		select {
		case err := <-closed:
			if err == nil {
				t.Error("Close says nothing of a medium that hangs")
			}
		case <-time.After(15 * time.Second):
			t.Error("Close waits for a medium that hangs")
		}
		close(h.valve)
	}, func(o *Options) { o.Drain = 100 * time.Millisecond })
}
