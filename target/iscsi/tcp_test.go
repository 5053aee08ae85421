package iscsi

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

func TestReadAndWriteOverTCP(t *testing.T) {
	for _, c := range []struct {
		name string
		keys []string
	}{
		{"plain", nil},
		{"digests", []string{"HeaderDigest=CRC32C", "DataDigest=CRC32C"}},
		{"small PDUs", []string{"MaxRecvDataSegmentLength=512", "MaxBurstLength=4096", "FirstBurstLength=1024"}},
		{"no immediate", []string{"ImmediateData=No", "InitialR2T=Yes"}},
		{"unsolicited", []string{"ImmediateData=Yes", "InitialR2T=No", "DataDigest=CRC32C", "MaxRecvDataSegmentLength=262144"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			p := f.dial()
			ans := p.login(c.keys...)
			p.ready()
			imm := value(ans, "ImmediateData") != "No"
			for i, blocks := range []int{1, 8, 9, 128, 300, 2048} {
				data := pattern(blocks*512, i)
				c := p.command(write10(i*2048, blocks))
				c.Write, c.EDTL = true, uint32(len(data))
				var first []byte
				if imm {
					first = data[:min(len(data), 1024)]
				}
				p.send(c, nil, first)
				r := p.finishWrite(data, 700)
				if r.b[3] != 0 || r.b.Residual() != 0 {
					t.Fatalf("write of %d blocks: % x %x", blocks, []byte(r.b), r.data)
				}
				if got := p.readTCP(i*2048, blocks); !bytes.Equal(got, data) {
					t.Fatalf("%d blocks read back differ", blocks)
				}
			}
		})
	}
}

func TestUnsolicitedDataOut(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login("InitialR2T=No", "FirstBurstLength=65536", "MaxRecvDataSegmentLength=262144")
	p.ready()
	for _, imm := range []int{0, 512, 20000} {
		for _, total := range []int{65536, 131072, 40960} {
			t.Run(fmt.Sprint(imm, total), func(t *testing.T) {
				data := pattern(total, imm+total)
				c := p.command(write10(0, total/512))
				c.Write, c.Final, c.EDTL = true, false, uint32(total)
				p.send(c, nil, data[:imm])
				off, sn := imm, uint32(0)
				for end := min(total, 65536); off < end; sn++ {
					k := min(16384, end-off)
					p.send(&iscsi.DataOut{Final: off+k == end, ITT: c.ITT, TTT: iscsi.Reserved, DataSN: sn, Offset: uint32(off)}, nil, data[off:off+k])
					off += k
				}
				if r := p.finishWrite(data, 262144); r.b[3] != 0 {
					t.Fatalf("status %x %x", r.b[3], r.data)
				}
				if got := p.readTCP(0, total/512); !bytes.Equal(got, data) {
					t.Fatal("data differs")
				}
			})
		}
	}
}
