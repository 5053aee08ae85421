package iscsi

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
)

// alive sends an answer to a ping every 5 seconds until the connection ends, which closes the channel.
func (p *peer) alive() chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			b := iscsi.BHS(iscsi.Append(nil, &iscsi.NopOut{Immediate: true, ITT: iscsi.Reserved, TTT: 1, CmdSN: p.cmdSN}))
			if p.w.send(nil, b, nil, nil) != nil {
				return
			}
			time.Sleep(5 * time.Second)
		}
	}()
	return ended
}

// longWrite begins a write of 1 MiB of which nothing comes by itself.
func (p *peer) longWrite(lba int) *iscsi.SCSICommand {
	p.t.Helper()
	c := p.command(write10(lba, 2048))
	c.Write, c.EDTL = true, 1<<20
	p.send(c, nil, nil)
	return c
}

// Sessions whose pings are answered hold the whole pool for writes whose data they never send. They make room in bounded
// time, and who waited for memory goes on.
func TestPeersThatStarveOthersMakeRoom(t *testing.T) {
	const starvers = 24 // of four commands each, which hold 256 KiB each
	synctest.Test(t, func(t *testing.T) {
		pool := mem.NewPool(1) // the smallest there is
		f, dial := newPipeFixture(t, func(o *Options) { o.Memory = pool })
		good := dial()
		good.isid[5] = 9
		good.login()
		good.ready()
		var ends []chan struct{}
		for k := range starvers {
			p := dial()
			p.isid[5] = byte(20 + k)
			p.login()
			p.ready()
			got := p.arrivals()
			go func() {
				for range got { //nolint:revive // R2Ts, which it does not answer
				}
			}()
			for range firstWindow {
				p.longWrite(0)
			}
			ends = append(ends, p.alive())
		}
		synctest.Wait()
		c := good.command(read10(0, 512))
		c.Read, c.EDTL = true, 512*512
		good.send(c, nil, nil)
		ch := good.arrivals()
		synctest.Wait()
		select {
		case r := <-ch:
			t.Fatalf("there is memory for a read: %d of %d are used, % x", pool.Used(), pool.Stats().Max, []byte(r.b))
		default:
		}
		begin := time.Now()
		live := good.alive()
		n := 0
		for r := range ch {
			if r.b.Opcode() == iscsi.OpDataIn {
				n += len(r.data)
			}
			if n == 512*512 {
				break
			}
		}
		if d := time.Since(begin); n != 512*512 || d > time.Minute {
			t.Fatalf("%d bytes after %v", n, d)
		}
		for _, e := range ends {
			<-e
		}
		synctest.Wait()
		f.logged("session lost", "moves none of the data")
		if n := f.srv.Counts().Ended["starving"]; n != starvers {
			t.Errorf("%d sessions are counted as starving others", n)
		}
		good.w.close()
		for range ch { //nolint:revive // until the reader has gone
		}
		<-live
	})
}

// Data-In that is not read holds memory the same.
func TestAPeerThatDoesNotReadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dial := newPipeFixture(t)
		p := dial()
		p.login()
		p.ready()
		c := p.command(read10(0, 512))
		c.Read, c.EDTL = true, 512*512
		p.send(c, nil, nil)
		begin := time.Now()
		<-p.alive()
		if d := time.Since(begin); d > time.Minute {
			t.Errorf("the session lasted %v", d)
		}
		synctest.Wait()
		f.logged("session lost", "moves none of the data")
	})
}

// A peer that is slow moves something: one KiB of its data in a quarter of the peer timeout keeps its session.
func TestASlowPeerIsNoStarvingOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := newPipeFixture(t)
		p := dial()
		p.login()
		p.ready()
		c := p.longWrite(0)
		data := pattern(1<<20, 3)
		r := p.want(iscsi.OpR2T)
		off, end := int(r.b.Offset()), int(r.b.Offset())+int(r.b.Residual())
		sn := uint32(0)
		for k := range 40 {
			p.send(&iscsi.DataOut{ITT: c.ITT, TTT: r.b.TTT(), DataSN: sn, Offset: uint32(off), ExpStatSN: p.statSN}, nil, data[off:off+1024])
			sn, off = sn+1, off+1024
			if k > 0 {
				time.Sleep(7 * time.Second)
			}
		}
		p.send(&iscsi.DataOut{Final: true, ITT: c.ITT, TTT: r.b.TTT(), DataSN: sn, Offset: uint32(off), ExpStatSN: p.statSN}, nil, data[off:end])
		if r := p.finishWrite(data, 256<<10); r.b[3] != 0 {
			t.Fatalf("% x", []byte(r.b))
		}
	})
}
