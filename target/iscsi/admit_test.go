package iscsi

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/peerlog"
	"github.com/sluice-storage/sluice/target/scsi"
)

// discover logs in to a discovery session.
func (p *peer) discover() {
	p.t.Helper()
	if l, _ := p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, "InitiatorName="+testInitiator, "SessionType=Discovery"); l.Status != 0 || !l.Transit {
		p.t.Fatalf("%+v", l)
	}
}

// from connects by a local address.
func (f *fixture) from(ip string) *peer {
	f.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	nc, err := d.Dial("tcp", f.addr)
	must(f.t, err)
	p := newPeer(f.t, &tcpWire{nc: nc})
	f.t.Cleanup(p.w.close)
	return p
}

// A discovery session needs no secret, so it does not stay for pings.
func TestPingsDoNotKeepADiscoverySession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := newPipeFixture(t)
		p := dial()
		p.discover()
		for range 100 {
			b := iscsi.BHS(iscsi.Append(nil, &iscsi.NopOut{Immediate: true, ITT: 5, TTT: iscsi.Reserved, CmdSN: p.cmdSN}))
			if p.w.send(nil, b, nil, nil) != nil {
				return
			}
			if _, err := p.w.recv(); err != nil {
				return
			}
			time.Sleep(5 * time.Second) // virtual
		}
		t.Error("it is there after 500 s of nothing but pings")
	})
}

func TestDiscoverySessionsKeepNobodyOut(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Limits = Limits{Connections: 4, PerHost: 4} })
	var old []*peer
	for range 4 {
		p := f.dial()
		p.discover()
		old = append(old, p)
	}
	p := f.dial()
	p.login()
	p.ready()
	old[0].wantEnd()
	q := f.dial()
	q.discover()
	old[1].wantEnd()
	p.ready()
	f.logged("session lost", "makes room")
}

func TestOneHostLeavesRoomForOthers(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Limits = Limits{Connections: 4, PerHost: 2} })
	var mine []*peer
	for i := range 2 {
		p := f.from("127.0.0.1")
		p.isid[5] = byte(i)
		p.login()
		mine = append(mine, p)
	}
	f.from("127.0.0.1").wantEnd()
	f.logged("limits.per_host")
	other := f.from("127.0.0.2")
	other.isid[5] = 9
	other.login()
	other.ready()
	for _, p := range mine {
		p.ready()
	}
	// A place that is given back can be taken.
	mine[0].w.close()
	for deadline := time.Now().Add(patience); ; {
		if p := f.from("127.0.0.1"); p.w.send(nil, iscsi.BHS(iscsi.Append(nil, p.loginReq(iscsi.StageOperational, iscsi.StageFullFeature, true))), nil, nil) == nil {
			if _, err := p.w.recv(); err == nil { // an answer, if only that names are missing
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the place of a connection that has gone stays taken")
		}
	}
}

// What a host is refused for, and its discoveries, do not keep a login of it out of the record.
func TestRefusalsDoNotHideALogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dial := newPipeFixture(t)
		for range 3 * peerlog.Burst {
			p := dial()
			p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, names(testInitiator, "iqn.2026-11.dev.sluice:nope")...)
			p.w.close()
			p = dial()
			p.discover()
			p.w.close()
		}
		p := dial()
		p.login()
		synctest.Wait()
		f.logged("session began", "target:"+testTarget)
		p.w.close()
		// Who has proved a secret is recorded each time.
		must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: &Auth{Secret: SecretMap(map[string]string{"host": "a secret of host"})}}))
		before := f.logs.FilterMessage("session began").Len()
		for range 3 * peerlog.Burst {
			p := dial()
			if st, err := p.chap(names(testInitiator, testTarget), &iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "host", Secret: "a secret of host"}}); err != nil || st != 0 {
				t.Fatalf("%v %04x", err, uint16(st))
			}
			p.w.close()
		}
		synctest.Wait()
		if n := f.logs.FilterMessage("session began").Len() - before; n != 3*peerlog.Burst {
			t.Errorf("%d of %d logins are in the record", n, 3*peerlog.Burst)
		}
	})
}

// twoLUNs shows a second unit to other only.
func twoLUNs(t *testing.T, f *fixture, other string) {
	t.Helper()
	dev, err := bmem.Open(bmem.Options{Size: 1 << 20, Logical: 512})
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	lu, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: dev, Name: "second", Serial: "0002"})
	must(t, err)
	must(t, f.st.AddLUN(1, lu))
	must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Initiators: []Initiator{{Name: testInitiator, LUNs: []uint16{0}}, {Name: other, LUNs: []uint16{1}}}}))
}

// A reset of the target reaches the units that its sender is shown, and sessions of hosts that share one with it (RFC 7143 section
// 11.5.1 knows no access lists).
func TestAResetReachesWhatItsSenderIsShown(t *testing.T) {
	for _, fn := range []iscsi.TaskFunction{iscsi.TargetWarmReset, iscsi.TargetColdReset} {
		f := newFixture(t)
		const other = "iqn.2026-11.dev.sluice:other-host"
		twoLUNs(t, f, other)
		p := f.dial()
		p.login()
		p.ready()
		q := f.dial()
		if l, _ := q.step(iscsi.StageOperational, iscsi.StageFullFeature, true, names(other, testTarget)...); l.Status != 0 {
			t.Fatalf("%+v", l)
		}
		turn := func() pdu {
			c := q.command(make([]byte, 6))
			c.LUN = scsi.EncodeLUN(1)
			q.send(c, nil, nil)
			return q.want(iscsi.OpSCSIResponse)
		}
		for range 4 {
			if turn().b[3] == 0 {
				break
			}
		}
		p.send(&iscsi.TaskRequest{Immediate: true, Function: fn, ITT: 77, RefTag: iscsi.Reserved, CmdSN: p.cmdSN, ExpStatSN: p.statSN}, nil, nil)
		if r := p.want(iscsi.OpTaskResponse); r.b[2] != 0 {
			t.Fatalf("response %d", r.b[2])
		}
		if fn == iscsi.TargetColdReset {
			p.wantEnd()
		}
		if r := turn(); r.b[3] != 0 {
			key, asc := sense(r)
			t.Errorf("function %d: a unit that is hidden from its sender answers %x/%04x", fn, key, asc)
		}
	}
}
