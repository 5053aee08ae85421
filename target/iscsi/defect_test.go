package iscsi

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
)

// connOf is the connection of the session that a peer has.
func (f *fixture) connOf(p *peer) *conn {
	f.srv.mu.Lock()
	defer f.srv.mu.Unlock()
	return f.srv.sessions[p.tsih].conn
}

// A defect that shows in parsing, or in what is one connection's own, ends that connection with every lock free: its session goes, its
// initiator can log in again, and others notice nothing. The defects here are nil pointers put where a PDU comes across them.
func TestADefectInOneConnectionEndsThatOne(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*conn)
		pdu   func(*peer)
	}{
		"no lock held":    {func(c *conn) { c.text, c.textTTT, c.textIn = nil, 0, &iscsi.Negotiator{} }, text1},
		"an illegal move": {func(c *conn) { c.free = []*task{{c: c, state: taskDeferred}} }, func(p *peer) { p.send(p.command(make([]byte, 6)), nil, nil) }},
		"a lock deferred": {func(c *conn) { c.free = []*task{nil} }, func(p *peer) { p.send(p.command(make([]byte, 6)), nil, nil) }},
	} {
		for _, over := range []string{"TCP", "iSER"} {
			t.Run(name+" "+over, func(t *testing.T) {
				var f *fixture
				var dial func() *peer
				if over == "TCP" {
					f = newFixture(t)
					dial = f.dial
				} else {
					f = newTwinFixture(t)
					dial = func() *peer { return f.dialISER(iscsi.CMPrivate(true)) }
				}
				p, q := dial(), dial()
				q.isid[5] = 9
				for _, x := range []*peer{p, q} {
					f.enter(x)
					x.ready()
				}
				bad := f.connOf(p)
				bad.mu.Lock()
				c.spoil(bad)
				bad.mu.Unlock()
				c.pdu(p)
				p.wantEnd()
				f.gone(bad)
				if !bad.mu.TryLock() {
					t.Fatal("a lock is held by nothing that runs")
				}
				bad.mu.Unlock()
				f.logged("a defect of this program ends a connection", "target/iscsi")
				again := dial()
				f.enter(again)
				again.ready()
				q.send(q.command(make([]byte, 6)), nil, nil)
				if r := q.want(iscsi.OpSCSIResponse); r.b[3] != 0 {
					t.Errorf("another session's command: status %02x", r.b[3])
				}
			})
		}
	}
	t.Run("an illegal move with a lock held", func(t *testing.T) {
		f := newFixture(t)
		p := f.dial()
		p.login("InitialR2T=Yes", "ImmediateData=No")
		p.ready()
		w := p.command(write10(0, 16))
		w.Write, w.EDTL = true, 8192
		p.send(w, nil, nil)
		r2t := p.want(iscsi.OpR2T)
		bad := f.connOf(p)
		bad.mu.Lock()
		bad.tasks[0].state = taskDeferred // as if nothing of it were outstanding: it would be used again while its data is moved
		bad.mu.Unlock()
		p.answerR2T(r2t, make([]byte, 8192), 8192)
		p.wantEnd()
		f.gone(bad)
		if !bad.mu.TryLock() {
			t.Fatal("a lock is held by nothing that runs")
		}
		bad.mu.Unlock()
		f.logged("a defect of this program ends a connection", "a task's move cannot go from")
		q := f.dial()
		q.login()
		q.ready()
	})
	t.Run("a lock held, in a login", func(t *testing.T) {
		f := newFixture(t)
		p := f.dial()
		p.step(iscsi.StageSecurity, iscsi.StageOperational, true, append(names(testInitiator, testTarget), "AuthMethod=None")...)
		f.srv.mu.Lock()
		bad := f.srv.logins[0]
		f.srv.mu.Unlock()
		bad.mu.Lock()
		bad.loginTimer.Stop()
		bad.loginTimer = nil
		bad.mu.Unlock()
		p.send(p.loginReq(iscsi.StageOperational, iscsi.StageFullFeature, true), nil, nil)
		p.wantEnd()
		f.logged("a defect of this program ends a connection", "target/iscsi")
		q := f.dial()
		q.login()
		q.ready()
		if n := len(f.srv.Sessions()); n != 1 {
			t.Errorf("%d sessions", n)
		}
	})
	t.Run("login", func(t *testing.T) {
		f := newFixture(t)
		must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: &Auth{Secret: func(string) (string, bool) { panic("no secrets") }}}))
		p := f.dial()
		p.step(iscsi.StageSecurity, iscsi.StageOperational, true, append(names(testInitiator, testTarget), "AuthMethod=CHAP,None")...)
		p.step(iscsi.StageSecurity, iscsi.StageOperational, false, "CHAP_A=5")
		p.send(p.loginReq(iscsi.StageSecurity, iscsi.StageOperational, true), nil, keys("CHAP_N=host", "CHAP_R=0x00112233445566778899aabbccddeeff"))
		p.wantEnd()
		must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st}))
		q := f.dial()
		q.login()
		q.ready()
	})
}

func text1(p *peer) {
	p.send(&iscsi.TextRequest{Immediate: true, Final: true, ITT: 5, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, keys("X-org.example.a=b"))
}

// enter logs a peer in by either transport.
func (f *fixture) enter(p *peer) {
	f.t.Helper()
	if _, ok := p.w.(*tcpWire); ok {
		p.login()
		return
	}
	p.loginISER()
}

// gone waits until nothing of a connection's session is left.
func (f *fixture) gone(c *conn) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := f.srv.changed.Wait(ctx, func() bool {
		ss := f.srv.sessions[c.sess.tsih]
		return ss == nil || ss.conn != c
	})
	if err != nil {
		f.t.Fatal("the session stays")
	}
}

// broken is a device with a defect.
type brokenDevice struct{ blockdev.Device }

func (brokenDevice) Submit(*blockdev.Request) { panic("a defect in shared state") }

// A defect in what sessions share ends the process: what is half changed there is not written on with.
func TestADefectInWhatIsSharedEndsTheProcess(t *testing.T) {
	const key = "SLUICE_TEST_SHARED_DEFECT"
	if os.Getenv(key) == "" {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), key+"=1")
		out, err := c.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "panic: a defect in shared state") || strings.Contains(string(out), "went on") {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	f := newFixture(t)
	f.dev.Device = brokenDevice{f.dev.Device}
	p := f.dial()
	p.login()
	p.ready()
	c := p.command(read10(0, 1))
	c.Read, c.EDTL = true, 512
	p.send(c, nil, nil)
	_, _ = p.w.recv()
	t.Fatal("the process went on")
}
