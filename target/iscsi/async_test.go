package iscsi

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
)

// RFC 7143 section 11.9.1, event 0: the sense data of a unit attention goes to whoever has a session, before anybody
// asks; the condition itself waits for a command all the same (SAM-5 section 5.14).
func TestUnitAttentionsAreReportedAsynchronously(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.ready()
	must(t, f.st.SetPortGroup(1, scsi.ActiveNonOptimized))
	r := p.want(iscsi.OpAsync)
	var a iscsi.Async
	a.Parse(r.b)
	if a.Event != iscsi.AsyncSCSI || a.LUN != 0 || r.b.ITT() != iscsi.Reserved {
		t.Errorf("%+v", a)
	}
	if key, asc := sense(r); key != 6 || asc != 0x2A06 || int(r.data[0])<<8+int(r.data[1]) != len(r.data)-2 {
		t.Errorf("sense % x", r.data)
	}
	// RFC 7144 section 6.4.2: the query sees it, and how many there are, without taking it away.
	for range 2 {
		p.tmf(iscsi.QueryAsyncEvent, iscsi.Reserved)
		var q iscsi.TaskResponse
		if q.Parse(p.want(iscsi.OpTaskResponse).b); q.Response != iscsi.TaskSucceeded || q.Info != [3]byte{0x16, 0x2A, 0x06} {
			t.Errorf("%+v", q)
		}
	}
	p.send(p.command(make([]byte, 6)), nil, nil)
	if key, asc := sense(p.want(iscsi.OpSCSIResponse)); key != 6 || asc != 0x2A06 {
		t.Errorf("TEST UNIT READY: %X/%04X", key, asc)
	}
	p.tmf(iscsi.QueryAsyncEvent, iscsi.Reserved)
	var q iscsi.TaskResponse
	if q.Parse(p.want(iscsi.OpTaskResponse).b); q.Response != iscsi.TaskComplete || q.Info != [3]byte{} {
		t.Errorf("%+v", q)
	}
}

// RFC 7144 section 6.4.1 has the additional response information in bytes 8 to 10.
func TestAdditionalResponseInformationIsWhereTheRFCHasIt(t *testing.T) {
	b := iscsi.BHS(iscsi.Append(nil, &iscsi.TaskResponse{Info: [3]byte{1, 2, 3}}))
	if !bytes.Equal(b[8:11], []byte{1, 2, 3}) || !bytes.Equal(b[36:48], make([]byte, 12)) {
		t.Errorf("% x", []byte(b))
	}
}

// RFC 7143 section 11.5.1 and RFC 7144 section 6.3: ABORT TASK and QUERY TASK of a management request are rejected.
func TestManagementRequestsAreNoTasks(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.ready()
	f.dev.shut()
	c := p.startWrite(0, 1)
	<-f.dev.arrived
	p.tmf(iscsi.AbortTask, c.ITT) // waits for the medium
	for _, fn := range []iscsi.TaskFunction{iscsi.AbortTask, iscsi.QueryTask} {
		for _, ref := range []uint32{5000, 6000} { // the one that waits, and its own
			p.send(&iscsi.TaskRequest{Immediate: true, Function: fn, ITT: 6000, RefTag: ref, RefCmdSN: p.cmdSN, CmdSN: p.cmdSN, ExpStatSN: p.statSN}, nil, nil)
			if r := p.want(iscsi.OpTaskResponse); r.b.ITT() != 6000 || r.b[2] != byte(iscsi.TaskRejected) {
				t.Errorf("function %d of %d: response %d", fn, ref, r.b[2])
			}
		}
	}
	f.dev.open()
	if r := p.want(iscsi.OpTaskResponse); r.b.ITT() != 5000 || r.b[2] != byte(iscsi.TaskComplete) {
		t.Errorf("the abort: response %d", r.b[2])
	}
	// Its tag is a task's again.
	p.tmf(iscsi.AbortTask, 5000)
	if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(iscsi.TaskRejected) {
		t.Errorf("of itself: response %d", r.b[2])
	}
	p.send(&iscsi.TaskRequest{Immediate: true, Function: iscsi.AbortTask, ITT: 6000, RefTag: 5000, RefCmdSN: p.cmdSN, CmdSN: p.cmdSN, ExpStatSN: p.statSN}, nil, nil)
	if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(iscsi.TaskNotFound) {
		t.Errorf("of a tag that is over: response %d", r.b[2])
	}
}

// RFC 7144 section 6.3: the target MUST drop all connections of the session that I_T NEXUS RESET comes by; others stay.
func TestNexusResetEndsItsSession(t *testing.T) {
	f := newFixture(t)
	other := f.dial()
	other.isid[5] = 9
	other.login()
	other.ready()
	p := f.dial()
	p.login()
	p.ready()
	p.tmf(iscsi.ITNexusReset, iscsi.Reserved)
	if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(iscsi.TaskComplete) {
		t.Errorf("response %d", r.b[2])
	}
	p.wantEnd()
	other.ready()
}

// SAM-5 section 5.6: a host whose write another host's reset ends is told by the status TASK ABORTED, after its data has
// come, and by the unit attention 29/03; who waited for an answer that never comes would wait for ever.
func TestAResetByAnotherHostIsHeardOf(t *testing.T) {
	for name, fn := range map[string]iscsi.TaskFunction{"unit": iscsi.LogicalUnitReset, "target": iscsi.TargetWarmReset} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, f *fixture, dial func() *peer) {
				p := dial()
				p.enter()
				p.ready()
				other := dial()
				other.isid[5] = 9
				other.enter()
				other.ready()
				f.dev.shut()
				c := other.startWrite(0, 1)
				<-f.dev.arrived
				p.tmf(fn, iscsi.Reserved)
				synctest.Wait()
				f.dev.open()
				r := other.want(iscsi.OpSCSIResponse)
				if r.b.ITT() != c.ITT || r.b[3] != byte(scsi.StatusTaskAborted) {
					t.Errorf("the write: % x", []byte(r.b))
				}
				if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(iscsi.TaskComplete) {
					t.Errorf("response %d", r.b[2])
				}
				other.send(other.command(make([]byte, 6)), nil, nil)
				if key, asc := sense(other.want(iscsi.OpSCSIResponse)); key != 6 || asc != 0x2903 {
					t.Errorf("TEST UNIT READY: %X/%04X", key, asc)
				}
			})
		})
	}
}

// Whether a report of a loss of power was read is seen by ExpStatSN: one that went down with its connection comes again.
func TestAReportOfALossOfPowerIsMadeUntilItIsRead(t *testing.T) {
	both(t, func(t *testing.T, _ *fixture, dial func() *peer) {
		first := func() (*peer, uint16) {
			p := dial()
			p.enter()
			p.send(p.command(make([]byte, 6)), nil, nil)
			_, asc := sense(p.want(iscsi.OpSCSIResponse))
			return p, asc
		}
		for range 2 {
			if _, asc := first(); asc != 0x2900 {
				t.Fatalf("%04X, expected POWER ON, RESET, OR BUS DEVICE RESET OCCURRED", asc)
			}
		}
		p, _ := first()
		p.ready()
		if _, asc := first(); asc != 0x2907 {
			t.Fatalf("%04X, expected I_T NEXUS LOSS OCCURRED", asc)
		}
	})
}

// A reset that is answered when its connection has ended changes nothing of that: a connection that seems to live would take
// moves that never end.
func TestAResetDoesNotReviveADeadConnection(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		f.dev.shut()
		p.startWrite(0, 1)
		<-f.dev.arrived
		p.tmf(iscsi.ITNexusReset, iscsi.Reserved)
		synctest.Wait()
		c := f.connOf(p)
		p.w.close()
		synctest.Wait()
		f.dev.open()
		f.gone(c)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.managing) != 0 || c.state != stateDead {
			t.Errorf("state %d, %d requests of task management without an answer", c.state, len(c.managing))
		}
	})
}
