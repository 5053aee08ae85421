package iscsi

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/transport"
)

// Beyond the limit on connections nobody gets in, and those inside go on.
func TestConnectionLimit(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		a := dial()
		a.enter()
		synctest.Wait()
		if _, ok := a.w.(*iserWire); ok {
			qp, err := f.far.NewQP(transport.QPOptions{})
			must(t, err)
			if _, err := f.far.Dial(t.Context(), f.rdma, qp, transport.ConnParams{}); err == nil {
				t.Error("a connection beyond the limit was accepted")
			}
		} else {
			b := dial()
			b.wantEnd()
		}
		a.ready()
		f.logged("too many are open", "limits.connections")
	}, func(o *Options) { o.Limits.Connections = 1 })
}

// Two sessions write and read at the same time, each on its own mover, and each sees what it wrote.
func TestTwoMoversAtOnce(t *testing.T) {
	f := newTwinFixture(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.srv.Serve(ctx, l, Portal{Group: 2}) }()
	rd := f.dialISER(iscsi.CMPrivate(true))
	rd.loginISER()
	rd.ready()
	tp := f.dial()
	tp.isid[5] = 50
	tp.login()
	tp.ready()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 40 {
			data := pattern(16384, i)
			rd.writeISER(i*32, data, 4096, false, true)
			if got := rd.readISER(i*32, 32, true); !bytes.Equal(got, data) {
				t.Error("iSER reads something else")
				return
			}
		}
	})
	wg.Go(func() {
		for i := range 40 {
			data := pattern(16384, 1000+i)
			c := tp.command(write10(8192+i*32, 32))
			c.Write, c.EDTL = true, uint32(len(data))
			tp.send(c, nil, data[:4096])
			tp.finishWrite(data, 8192)
			if got := tp.readTCP(8192+i*32, 32); !bytes.Equal(got, data) {
				t.Error("TCP reads something else")
				return
			}
		}
	})
	wg.Wait()
	cancel()
	must(t, <-served)
}

// Whatever sizes are negotiated and however a write is cut, what is read back is what was written, and the peer's checks
// of DataSN, offsets, StatSN and MaxCmdSN (peer.recv, peer.dataIn) hold.
func TestAnyCutOfAWrite(t *testing.T) {
	f := newFixture(t)
	isid := byte(0)
	rapid.Check(t, func(r *rapid.T) {
		isid++
		p := f.dial()
		p.isid[5] = isid
		first := rapid.IntRange(512, 70000).Draw(r, "FirstBurstLength")
		burst := rapid.IntRange(first, 300000).Draw(r, "MaxBurstLength")
		recv := rapid.IntRange(512, 300000).Draw(r, "MaxRecvDataSegmentLength")
		unsol := rapid.Bool().Draw(r, "unsolicited")
		kv := []string{fmt.Sprintf("FirstBurstLength=%d", first), fmt.Sprintf("MaxBurstLength=%d", burst), fmt.Sprintf("MaxRecvDataSegmentLength=%d", recv)}
		if rapid.Bool().Draw(r, "digests") {
			kv = append(kv, "HeaderDigest=CRC32C", "DataDigest=CRC32C")
		}
		if unsol {
			kv = append(kv, "InitialR2T=No")
		}
		ans := p.login(kv...)
		p.ready()
		var fb int
		if _, err := fmt.Sscan(value(ans, "FirstBurstLength"), &fb); err != nil {
			r.Fatal(err)
		}
		for range 2 {
			blocks := rapid.IntRange(1, 300).Draw(r, "blocks")
			data := pattern(blocks*512, blocks)
			c := p.command(write10(0, blocks))
			c.Write, c.EDTL = true, uint32(len(data))
			imm := rapid.IntRange(0, min(fb, len(data), 262144)).Draw(r, "immediate")
			limit := min(fb, len(data))
			c.Final = !unsol || imm == limit
			p.send(c, nil, data[:imm])
			if !c.Final {
				for off, sn := imm, uint32(0); off < limit; sn++ {
					k := rapid.IntRange(1, min(limit-off, 262144)).Draw(r, "cut")
					if sn > 6 {
						k = min(limit-off, 262144)
					}
					p.send(&iscsi.DataOut{Final: off+k == limit, ITT: c.ITT, TTT: iscsi.Reserved, DataSN: sn, Offset: uint32(off)}, nil, data[off:off+k])
					off += k
				}
			}
			if resp := p.finishWrite(data, rapid.IntRange(5000, 262144).Draw(r, "step")); resp.b[3] != 0 {
				r.Fatalf("status % x %x", []byte(resp.b), resp.data)
			}
			if got := p.readTCP(0, blocks); !bytes.Equal(got, data) {
				r.Fatal("read back differs")
			}
		}
		p.w.close()
	})
}

// IPv6 works wherever IPv4 does, a wildcard portal too.
func TestIPv6AndWildcard(t *testing.T) {
	need.IPv6(t)
	f := newFixture(t)
	l, err := net.Listen("tcp", "[::]:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.srv.Serve(ctx, l, Portal{Group: 9}) }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	f.addr = net.JoinHostPort("::1", port)
	p := f.dial()
	if st, _ := p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, "InitiatorName="+testInitiator, "SessionType=Discovery"); st.Status != 0 {
		t.Fatal(st.Status)
	}
	p.send(&iscsi.TextRequest{Immediate: true, Final: true, ITT: 5, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, keys("SendTargets=All"))
	r := p.want(iscsi.OpTextResponse)
	if want := "TargetAddress=" + f.addr + ",9"; !bytes.Contains(r.data, []byte(want)) {
		t.Errorf("no %s in %q", want, r.data)
	}
	cancel()
	must(t, <-served)
}
