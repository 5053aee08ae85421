package block

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// slowDevice is a fabric that lets go of the memory of Sends late: their completions, and their count, are held back.
type slowDevice struct {
	transport.Device
	counts bool

	mu   sync.Mutex
	held bool
	wcs  []transport.WC
	n    uint64 // posted
	kept uint64 // counted when held began
	nops int
}

type slowQP struct {
	transport.QP
	d *slowDevice
}

// countingQP is one that counts.
type countingQP struct{ *slowQP }

func (d *slowDevice) NewQP(o transport.QPOptions) (transport.QP, error) {
	q, err := d.Device.NewQP(o)
	if err != nil {
		return nil, err
	}
	if d.counts {
		return countingQP{&slowQP{q, d}}, nil
	}
	return &slowQP{q, d}, nil
}

func (d *slowDevice) Dial(ctx context.Context, addr string, q transport.QP, p transport.ConnParams) (transport.Peer, error) {
	if c, ok := q.(countingQP); ok {
		q = c.slowQP
	}
	return d.Device.Dial(ctx, addr, q.(*slowQP).QP, p)
}

func (d *slowDevice) hold(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held, d.kept = on, d.n
}

func (q *slowQP) Post(wrs []transport.WR) (int, error) {
	q.d.mu.Lock()
	for i := range wrs {
		if wrs[i].Op == transport.OpSend {
			q.d.n++
			if wrs[i].Token&tokKind == tokControl {
				q.d.nops++
			}
		}
	}
	q.d.mu.Unlock()
	return q.QP.Post(wrs)
}

func (q *slowQP) Poll(wc []transport.WC) (int, error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if !q.d.held && len(q.d.wcs) > 0 {
		n := copy(wc, q.d.wcs)
		q.d.wcs = q.d.wcs[n:]
		return n, nil
	}
	n, err := q.QP.Poll(wc)
	k := 0
	for _, c := range wc[:n] {
		if q.d.held && c.Op == transport.OpSend && c.Err == nil {
			q.d.wcs = append(q.d.wcs, c)
			continue
		}
		wc[k] = c
		k++
	}
	return k, err
}

func (q countingQP) SendsDone() uint64 {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.d.held {
		return q.d.kept
	}
	return q.d.n
}

// A target may answer a write whose data it has not read. The memory is the caller's again when the fabric has let go of it,
// not before: what it is used for next would be sent to the target.
func TestMemoryIsNotReusedBeforeTheFabricLetsGo(t *testing.T) {
	for name, counts := range map[string]bool{"a fabric that counts Sends": true, "one that completes them": false} {
		t.Run(name, func(t *testing.T) {
			answered := make(chan struct{}, 1)
			i, url := newRDMAFake(t, iscsi.CMPrivate(true), func(f *rdmaFake, _ iscsi.ISERHeader, b iscsi.BHS) bool {
				if b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opWrite16 {
					return false
				}
				f.cmd = b.CmdSN() + 1
				f.send(&iscsi.SCSIResponse{ITT: b.ITT(), Numbers: f.numbers()}, nil, 0)
				answered <- struct{}{}
				return true
			})
			d := &slowDevice{Device: i.o.Device, counts: counts}
			i.o.Device = d
			v, err := i.Open(context.Background(), url)
			if err != nil {
				t.Fatal(err)
			}
			buf, err := v.Memory().Get(512)
			if err != nil {
				t.Fatal(err)
			}
			defer buf.Release()
			d.hold(true)
			done := make(chan error, 1)
			v.Submit(&blockdev.Request{Op: blockdev.Write, Length: 512, Data: []mem.Span{buf.Span()}, Done: func(r *blockdev.Request) { done <- r.Err }})
			<-answered
			// The answer to a later command has been received: so has that to the write.
			if err := v.Do(context.Background(), &blockdev.Request{Op: blockdev.Flush}); err != nil {
				t.Error(err)
			}
			select {
			case <-done:
				t.Error("the write is complete while the fabric may still read its memory")
			default:
			}
			d.hold(false)
			go func() { _ = v.Do(context.Background(), &blockdev.Request{Op: blockdev.Flush}) }() // makes the owner look
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(30 * time.Second):
				t.Error("the write does not end")
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
			if d.nops == 0 && counts {
				t.Error("nothing was sent whose completion tells that of the write")
			}
		})
	}
}
