package iscsi

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/peerlog"
)

const otherTarget = "iqn.2026-11.dev.sluice:other"

func names(initiator, target string) []string {
	return []string{"InitiatorName=" + initiator, "TargetName=" + target}
}

// Every refusal has the status of RFC 7143 section 11.13.5 and a line in the log that names what to change.
func TestLoginRefusals(t *testing.T) {
	const op, full, sec = iscsi.StageOperational, iscsi.StageFullFeature, iscsi.StageSecurity
	me := names(testInitiator, testTarget)
	for _, c := range []struct {
		name   string
		req    func(*iscsi.LoginRequest)
		keys   []string
		status iscsi.LoginStatus
		log    string
	}{
		{"no initiator", nil, []string{"TargetName=" + testTarget}, iscsi.LoginMissingParameter, "names no initiator"},
		{"no target", nil, []string{"InitiatorName=" + testInitiator}, iscsi.LoginMissingParameter, "names no target"},
		{"illegal initiator", nil, names("bob", testTarget), iscsi.LoginInitiatorError, "legal name"},
		{"unknown target", nil, names(testInitiator, "iqn.2026-11.dev.sluice:nope"), iscsi.LoginNotFound, "add the target"},
		{"not on the list", nil, names(testInitiator, otherTarget), iscsi.LoginNotAuthorized, "add " + testInitiator},
		{"session type", nil, append(me, "SessionType=Party"), iscsi.LoginSessionType, "Party"},
		{"version", func(r *iscsi.LoginRequest) { r.VersionMin, r.VersionMax = 1, 1 }, me, iscsi.LoginUnsupportedVersion, "version 1"},
		{"join nothing", func(r *iscsi.LoginRequest) { r.TSIH = 999 }, me, iscsi.LoginNoSession, "no session 999"},
		{"stage 2", func(r *iscsi.LoginRequest) { r.CSG = 2 }, me, iscsi.LoginInitiatorError, "stage"},
		{"stage 3", func(r *iscsi.LoginRequest) { r.CSG = 3 }, me, iscsi.LoginInitiatorError, "stage"},
		{"transit backwards", func(r *iscsi.LoginRequest) { r.NSG = sec }, me, iscsi.LoginInitiatorError, "transit"},
		{"T and C", func(r *iscsi.LoginRequest) { r.Continue = true }, me, iscsi.LoginInitiatorError, "T and C"},
		{"bad number", nil, append(me, "MaxBurstLength=lots", "MaxRecvDataSegmentLength=1"), iscsi.LoginInitiatorError, "MaxRecvDataSegmentLength"},
		{"key twice", nil, append(me, "ErrorRecoveryLevel=0", "ErrorRecoveryLevel=1"), iscsi.LoginInitiatorError, "twice"},
		{"no pair", nil, append(me, "nonsense"), iscsi.LoginInitiatorError, "key=value"},
		{"CHAP alone", func(r *iscsi.LoginRequest) { r.CSG, r.NSG = sec, op }, append(me, "AuthMethod=CHAP"), iscsi.LoginAuthFailed, "AuthMethod"},
		{"CHAP skipped", nil, names(testInitiator, testTarget+"-chap"), iscsi.LoginAuthFailed, "configure CHAP"},
		{"discovery with TSIH", func(r *iscsi.LoginRequest) { r.TSIH = 4 }, []string{"InitiatorName=" + testInitiator, "SessionType=Discovery"}, iscsi.LoginNoSession, "discovery"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			must(t, f.srv.AddTarget(Target{Name: otherTarget, SCSI: f.st, Initiators: []Initiator{{Name: "iqn.2026-11.dev.sluice:else"}}}))
			must(t, f.srv.AddTarget(Target{Name: testTarget + "-chap", SCSI: f.st, Auth: &Auth{Secret: SecretMap(map[string]string{"u": "secretsecret"})}}))
			p := f.dial()
			r := p.loginReq(op, full, true)
			if c.req != nil {
				c.req(r)
			}
			p.send(r, nil, keys(c.keys...))
			l, _ := p.loginResp()
			if l.Status != c.status || l.Transit {
				t.Errorf("status %04x (transit %v), expected %04x", uint16(l.Status), l.Transit, uint16(c.status))
			}
			p.wantEnd()
			f.logged("login refused", fmt.Sprintf("%04x", uint16(c.status)), c.log)
		})
	}
}

func TestRedirection(t *testing.T) {
	f := newFixture(t)
	for _, perm := range []bool{false, true} {
		n := fmt.Sprintf("%s-%v", otherTarget, perm)
		must(t, f.srv.AddTarget(Target{Name: n, Redirect: &Redirect{Address: "192.0.2.7:3260,2", Permanent: perm}}))
		p := f.dial()
		l, data := p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, names(testInitiator, n)...)
		want := iscsi.LoginMovedTemporarily
		if perm {
			want = iscsi.LoginMovedPermanently
		}
		if l.Status != want || value(data, "TargetAddress") != "192.0.2.7:3260,2" {
			t.Errorf("%04x %q", uint16(l.Status), data)
		}
		p.wantEnd()
	}
}

// ErrorRecoveryLevel 1 and 2 and several connections a session are negotiated down.
func TestNegotiatedDown(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	ans := p.login("ErrorRecoveryLevel=2", "MaxConnections=16", "DefaultTime2Retain=20", "DefaultTime2Wait=2", "MaxOutstandingR2T=8", "RDMAExtensions=Yes",
		"InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=16776192", "IFMarker=Yes", "TaskReporting=FastAbort,RFC3720", "iSCSIProtocolLevel=31")
	for k, want := range map[string]string{"ErrorRecoveryLevel": "0", "MaxConnections": "1", "DefaultTime2Retain": "0", "DefaultTime2Wait": "2", "MaxOutstandingR2T": "1",
		"RDMAExtensions": "No", "InitialR2T": "No", "ImmediateData": "Yes", "MaxBurstLength": "1048576", "IFMarker": "Reject", "TaskReporting": "RFC3720", "iSCSIProtocolLevel": "2",
		"MaxRecvDataSegmentLength": "262144"} {
		if got := value(ans, k); got != want {
			t.Errorf("%s=%s, expected %s", k, got, want)
		}
	}
	// A second connection for this session is one too many.
	q := f.dial()
	q.tsih = p.tsih
	if l, _ := q.step(iscsi.StageOperational, iscsi.StageFullFeature, true, names(testInitiator, testTarget)...); l.Status != iscsi.LoginTooManyConnections {
		t.Errorf("status %04x", uint16(l.Status))
	}
	p.ready() // and harms nobody
}

// A login in three stages with text over several PDUs, as open-iscsi does it.
func TestLoginInStagesWithContinuation(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	all := keys(append(names(testInitiator, testTarget), "SessionType=Normal", "AuthMethod=None")...)
	r := p.loginReq(iscsi.StageSecurity, iscsi.StageSecurity, false)
	r.Continue = true
	p.send(r, nil, all[:50])
	if l, data := p.loginResp(); l.Status != 0 || l.Transit || len(data) != 0 {
		t.Fatalf("%+v %q", l, data)
	}
	p.send(p.loginReq(iscsi.StageSecurity, iscsi.StageOperational, true), nil, all[50:])
	l, data := p.loginResp()
	if l.Status != 0 || !l.Transit || l.NSG != iscsi.StageOperational || l.TSIH != 0 || value(data, "AuthMethod") != "None" || value(data, "TargetPortalGroupTag") != "1" {
		t.Fatalf("%+v %q", l, data)
	}
	l, data = p.step(iscsi.StageOperational, iscsi.StageOperational, false, "HeaderDigest=None", "MaxRecvDataSegmentLength=65536")
	if l.Status != 0 || l.Transit || value(data, "HeaderDigest") != "None" {
		t.Fatalf("%+v %q", l, data)
	}
	l, _ = p.step(iscsi.StageOperational, iscsi.StageFullFeature, true)
	if l.Status != 0 || !l.Transit || l.NSG != iscsi.StageFullFeature || l.TSIH == 0 {
		t.Fatalf("%+v", l)
	}
	p.ready()
}

func TestOtherPDUDuringLogin(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.send(&iscsi.NopOut{Immediate: true, ITT: 3, TTT: iscsi.Reserved}, nil, nil)
	if l, _ := p.loginResp(); l.Status != iscsi.LoginInvalidRequest {
		t.Fatalf("%+v", l)
	}
	p.wantEnd()
}

// A login that goes on for ever is cut.
func TestEndlessLogin(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	for i := range iscsi.MaxLoginPDUs + 1 {
		var kv []string
		if i == 0 {
			kv = names(testInitiator, testTarget)
		}
		if l, _ := p.step(iscsi.StageOperational, iscsi.StageOperational, false, kv...); l.Status != 0 {
			if i < 10 {
				t.Fatalf("refused after %d requests", i)
			}
			p.wantEnd()
			return
		}
	}
	t.Fatal("never cut")
}

// chap runs an initiator's CHAP and returns the last status.
func (p *peer) chap(names []string, c *iscsi.CHAPInitiator) (iscsi.LoginStatus, error) {
	p.t.Helper()
	pairs := func(kv []iscsi.KV) (l []string) {
		for _, k := range kv {
			l = append(l, k.Key+"="+k.Value)
		}
		return l
	}
	parse := func(b []byte) (kv []iscsi.KV) {
		for _, s := range text(b) {
			k, v, _ := strings.Cut(s, "=")
			kv = append(kv, iscsi.KV{Key: k, Value: v})
		}
		return kv
	}
	l, data := p.step(iscsi.StageSecurity, iscsi.StageOperational, true, append(names, "AuthMethod=CHAP,None")...)
	if l.Status != 0 || l.Transit || value(data, "AuthMethod") != "CHAP" {
		return l.Status, fmt.Errorf("%+v %q", l, data)
	}
	l, data = p.step(iscsi.StageSecurity, iscsi.StageOperational, false, pairs(c.Start())...)
	for l.Status == 0 {
		out, err := c.Step(parse(data))
		if err != nil {
			return 0, err
		}
		if len(out) == 0 {
			break
		}
		l, data = p.step(iscsi.StageSecurity, iscsi.StageOperational, true, pairs(out)...)
		if l.Transit {
			_, err := c.Step(parse(data))
			if err != nil && !c.Done() {
				return 0, err
			}
			if p.beforeEnd != nil {
				p.beforeEnd()
			}
			l, _ = p.step(iscsi.StageOperational, iscsi.StageFullFeature, true)
			return l.Status, nil
		}
	}
	return l.Status, nil
}

func TestCHAP(t *testing.T) {
	auth := &Auth{Secret: SecretMap(map[string]string{"host": "a secret of host"}), Mutual: Secret{Name: "disk", Secret: "a secret of disk"}}
	for _, c := range []struct {
		name   string
		ini    iscsi.CHAPInitiator
		status iscsi.LoginStatus
		ok     bool
	}{
		{"one way", iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "host", Secret: "a secret of host"}}, 0, true},
		{"MD5", iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "host", Secret: "a secret of host"}, Algorithms: []iscsi.CHAPAlgorithm{iscsi.CHAPMD5}}, 0, true},
		{"SHA-1", iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "host", Secret: "a secret of host"}, Algorithms: []iscsi.CHAPAlgorithm{iscsi.CHAPSHA1}}, 0, true},
		{"SHA-256", iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "host", Secret: "a secret of host"}, Algorithms: []iscsi.CHAPAlgorithm{iscsi.CHAPSHA256}}, 0, true},
		{"SHA3-256", iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "host", Secret: "a secret of host"}, Algorithms: []iscsi.CHAPAlgorithm{iscsi.CHAPSHA3256}}, 0, true},
		{"mutual", iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "host", Secret: "a secret of host"}, Target: iscsi.Secret{Name: "disk", Secret: "a secret of disk"}}, 0, true},
		{"wrong secret", iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "host", Secret: "a guess of host."}}, iscsi.LoginAuthFailed, false},
		{"unknown user", iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "root", Secret: "a secret of host"}}, iscsi.LoginAuthFailed, false},
	} {
		for _, kind := range []string{"normal", "discovery"} {
			t.Run(c.name+" "+kind, func(t *testing.T) {
				f := newFixture(t, func(o *Options) { o.DiscoveryAuth = auth })
				must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: auth}))
				p := f.dial()
				who := names(testInitiator, testTarget)
				if kind == "discovery" {
					who = []string{"InitiatorName=" + testInitiator, "SessionType=Discovery"}
				}
				ini := c.ini
				st, err := p.chap(who, &ini)
				if err != nil || st != c.status {
					t.Fatalf("status %04x, %v", uint16(st), err)
				}
				if !c.ok {
					f.logged("login refused", "0201", "secrets file")
					p.wantEnd()
					return
				}
				p.send(&iscsi.TextRequest{Immediate: true, Final: true, ITT: 5, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, keys("SendTargets="+map[string]string{"discovery": "All"}[kind]))
				if r := p.want(iscsi.OpTextResponse); value(r.data, "TargetName") != testTarget {
					t.Fatalf("SendTargets %q", r.data)
				}
			})
		}
	}
}

// A peer cannot flood the log.
func TestRefusalsDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dial := newPipeFixture(t)
		for range 50 {
			p := dial()
			p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, names(testInitiator, "iqn.2026-11.dev.sluice:nope")...)
			p.w.close()
		}
		synctest.Wait()
		if n := f.logs.FilterMessage("login refused").Len(); n > peerlog.Burst {
			t.Fatalf("%d lines", n)
		}
	})
}

func TestDiscovery(t *testing.T) {
	f := newFixture(t)
	must(t, f.srv.AddTarget(Target{Name: otherTarget, SCSI: f.st, Initiators: []Initiator{{Name: "iqn.2026-11.dev.sluice:else"}}}))
	for i := range 60 {
		must(t, f.srv.AddTarget(Target{Name: fmt.Sprintf("iqn.2026-11.dev.sluice:many.%02d", i), SCSI: f.st}))
	}
	p := f.dial()
	l, _ := p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, "InitiatorName="+testInitiator, "SessionType=Discovery", "MaxRecvDataSegmentLength=512")
	if l.Status != 0 || !l.Transit {
		t.Fatalf("%+v", l)
	}
	var got []byte
	ttt, kv := iscsi.Reserved, keys("SendTargets=All")
	for {
		p.send(&iscsi.TextRequest{Immediate: true, Final: true, ITT: 5, TTT: ttt, CmdSN: p.cmdSN}, nil, kv)
		r := p.want(iscsi.OpTextResponse)
		if len(r.data) > 512 {
			t.Fatalf("%d bytes in one PDU", len(r.data))
		}
		got = append(got, r.data...)
		ttt, kv = r.b.TTT(), nil
		if r.b.Final() {
			break
		}
		if !r.b.Continue() || ttt == iscsi.Reserved {
			t.Fatalf("% x", []byte(r.b))
		}
	}
	if n := strings.Count(string(got), "TargetName="); n != 61 {
		t.Errorf("%d targets", n)
	}
	if strings.Contains(string(got), otherTarget) {
		t.Error("a target is shown to one who may not use it")
	}
	if want := "TargetAddress=" + f.addr + ",1"; !strings.Contains(string(got), want) {
		t.Errorf("no %s in %q", want, got)
	}
	// A discovery session runs no commands.
	p.send(p.command(make([]byte, 6)), nil, nil)
	p.want(iscsi.OpReject)
	p.send(&iscsi.LogoutRequest{Immediate: true, ITT: 9, CmdSN: p.cmdSN}, nil, nil)
	p.want(iscsi.OpLogoutResp)
	p.wantEnd()
}
