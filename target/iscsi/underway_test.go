package iscsi

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
)

// A command that waited for memory goes on in the middle of its immediate data. What is still under way is not asked for: an
// initiator would send it twice, and the second copy would land in a later part of the write.
func TestImmediateDataThatIsUnderWayIsNotAskedFor(t *testing.T) {
	const imm, total, begun = 64 << 10, 128 << 10, 40 << 10
	synctest.Test(t, func(t *testing.T) {
		pool := mem.NewPool(1) // the smallest there is
		_, dial := newPipeFixture(t, func(o *Options) { o.Memory = pool })
		p := dial()
		p.login("FirstBurstLength=65536", "MaxRecvDataSegmentLength=262144")
		p.ready()
		var held []*mem.Buf
		for n := mem.MaxBuf; n >= mem.PageSize; n /= 4 {
			for b, err := pool.Get(n); err == nil; b, err = pool.Get(n) {
				held = append(held, b)
			}
		}
		data := pattern(total, 1)
		c := p.command(write10(0, total/512))
		c.Write, c.EDTL = true, total
		b := iscsi.BHS(iscsi.Append(nil, c))
		b.SetDataLen(imm)
		w := p.w.(*tcpWire).nc
		_, err := w.Write(append([]byte(b), data[:begun]...))
		must(t, err)
		synctest.Wait()
		ch := p.arrivals()
		for _, b := range held {
			b.Release()
		}
		synctest.Wait()
		_, err = w.Write(data[begun:imm])
		must(t, err)
		for r := range ch {
			switch r.b.Opcode() {
			case iscsi.OpR2T:
				if off := int(r.b.Offset()); off < imm {
					t.Errorf("an R2T for %d bytes at %d, which were under way", r.b.Residual(), off)
				}
				p.answerR2T(r, data, total)
				continue
			case iscsi.OpSCSIResponse:
				if r.b[3] != 0 {
					t.Errorf("status %x %x", r.b[3], r.data)
				}
			default:
				t.Errorf("received %s", r.b.Opcode())
			}
			break
		}
		c = p.command(read10(0, total/512))
		c.Read, c.EDTL = true, total
		p.send(c, nil, nil)
		var got []byte
		for r := range ch {
			if got = append(got, r.data...); r.b.Flags()&iscsi.FlagStatus != 0 || r.b.Opcode() != iscsi.OpDataIn {
				break
			}
		}
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes, other ones than were written", len(got))
		}
		p.w.close()
		for range ch { //nolint:revive // until the reader has gone
		}
	})
}
