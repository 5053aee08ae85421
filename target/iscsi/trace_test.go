package iscsi

import (
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/target/flight"
)

// The flight recorder tells login, commands and end of a session, also after it is over, and the audit log has one line each.
func TestTheFlightRecorderOutlivesItsSession(t *testing.T) {
	core, lines := observer.New(zap.InfoLevel)
	f := newFixture(t, func(o *Options) { o.Audit = zap.New(core) })
	p := f.dial()
	p.login()
	p.ready()
	p.readTCP(0, 8)
	id := f.srv.Sessions()[0].TSIH
	// A command's answer may be here before the command is over there.
	tr, err := f.srv.Trace(id)
	for deadline := time.Now().Add(30 * time.Second); err == nil && len(tr.Commands) < 3 && time.Now().Before(deadline); tr, err = f.srv.Trace(id) {
		time.Sleep(time.Millisecond) // no event tells
	}
	must(t, err)
	told := func(tr Trace) string {
		var b strings.Builder
		for _, e := range tr.Events {
			b.WriteString(e.What + "\n")
		}
		return b.String()
	}
	for _, want := range []string{"connection from", "login request 1", "negotiated", "session 1 began"} {
		if !strings.Contains(told(tr), want) {
			t.Errorf("no %q in\n%s", want, told(tr))
		}
	}
	if n := len(tr.Commands); n == 0 || tr.Ended != "" || !strings.HasPrefix(tr.Commands[n-1].Command, "READ") || tr.Commands[n-1].Outcome != "GOOD" {
		t.Errorf("commands %+v", tr.Commands)
	}
	must(t, f.srv.CloseSession(id))
	for deadline := time.Now().Add(30 * time.Second); len(f.srv.Sessions()) > 0 || len(f.srv.PastSessions()) == 0; time.Sleep(time.Millisecond) { // no event tells
		if time.Now().After(deadline) {
			t.Fatal("the session does not end")
		}
	}
	tr, err = f.srv.Trace(id)
	must(t, err)
	if !strings.Contains(tr.Ended, "dropped by the operator") || !strings.Contains(told(tr), "ended: ") {
		t.Errorf("ended %q\n%s", tr.Ended, told(tr))
	}
	if c := f.srv.Counts(); c.Logins != 1 || c.Ended["dropped_by_operator"] != 1 {
		t.Errorf("counts %+v", c)
	}
	if lines.FilterMessage("session began").Len() != 1 || lines.FilterMessage("session lost").Len() != 1 {
		t.Errorf("audit lines %v", lines.All())
	}
	if _, err := f.srv.Trace(4711); err != ErrNoSession {
		t.Error(err)
	}
}

// A recorder keeps the last events, whatever a peer makes happen.
func TestTheFlightRecorderIsBounded(t *testing.T) {
	f := newFixture(t)
	c := f.srv.newConn(t.Context(), &net.TCPAddr{}, &net.TCPAddr{}, Portal{})
	defer c.cancel()
	for i := range 10 * flight.Events {
		c.rec.Note("event %d", i)
	}
	c.mu.Lock()
	tr := c.traceLocked()
	c.mu.Unlock()
	if n := len(tr.Events); n != flight.Events || tr.Events[n-1].What != "event 319" || tr.Events[0].What != "event 288" {
		t.Errorf("%d events, %v", n, tr.Events)
	}
}
