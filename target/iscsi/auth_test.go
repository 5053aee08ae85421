package iscsi

import (
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
)

// A request that lacks a part of CHAP is told so (RFC 7143 section 11.13.5, status 0207), not that its secret is wrong.
func TestAMissingCHAPKeyIsAMissingParameter(t *testing.T) {
	auth := &Auth{Secret: SecretMap(map[string]string{"host": "a secret of host"})}
	for _, missing := range []string{"CHAP_A", "CHAP_N", "CHAP_R"} {
		t.Run(missing, func(t *testing.T) {
			f := newFixture(t)
			must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: auth}))
			p := f.dial()
			l, _ := p.step(iscsi.StageSecurity, iscsi.StageOperational, true, append(names(testInitiator, testTarget), "AuthMethod=CHAP,None")...)
			if l.Status != 0 {
				t.Fatalf("status %04x", uint16(l.Status))
			}
			if missing == "CHAP_A" {
				l, _ = p.step(iscsi.StageSecurity, iscsi.StageOperational, false, "CHAP_N=host")
			} else {
				l, _ = p.step(iscsi.StageSecurity, iscsi.StageOperational, false, "CHAP_A=5")
				if l.Status != 0 {
					t.Fatalf("status %04x", uint16(l.Status))
				}
				l, _ = p.step(iscsi.StageSecurity, iscsi.StageOperational, true, map[string]string{"CHAP_N": "CHAP_R=0x00112233445566778899aabbccddeeff", "CHAP_R": "CHAP_N=host"}[missing])
			}
			if l.Status != iscsi.LoginMissingParameter {
				t.Errorf("status %04x without %s", uint16(l.Status), missing)
			}
			p.wantEnd()
		})
	}
}

// Who logs in to what is settled by the first request. It may be said again, as libiscsi does, but not otherwise.
func TestANameIsSaidAgainButNotChanged(t *testing.T) {
	for again, status := range map[string]iscsi.LoginStatus{
		"InitiatorName=" + testInitiator:        0,
		"TargetName=" + testTarget:              0,
		"SessionType=Normal":                    0,
		"InitiatorName=" + testInitiator + ".b": iscsi.LoginInitiatorError,
		"TargetName=" + otherTarget:             iscsi.LoginInitiatorError,
		"SessionType=Discovery":                 iscsi.LoginInitiatorError,
	} {
		f := newFixture(t)
		p := f.dial()
		l, _ := p.step(iscsi.StageSecurity, iscsi.StageOperational, true, append(names(testInitiator, testTarget), "SessionType=Normal", "AuthMethod=None")...)
		if l.Status != 0 || !l.Transit {
			t.Fatalf("%+v", l)
		}
		if l, _ = p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, again); l.Status != status {
			t.Errorf("%s: status %04x", again, uint16(l.Status))
		}
	}
}

// A user takes over no session of another one (RFC 7143 sections 6.3.5 and 9.2), unless the name is configured to be its own.
func TestAnotherUserTakesNoSessionOver(t *testing.T) {
	secrets := map[string]string{"ann": "the secret of ann", "bob": "the secret of bob", "new": "the secret of new"}
	f := newFixture(t)
	must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: &Auth{Secret: SecretMap(secrets), Binding: func(user, initiator string) Binding {
		if user == "new" && initiator == testInitiator {
			return Bound
		}
		return Unbound
	}}}))
	as := func(user string) (*peer, iscsi.LoginStatus) {
		p := f.dial()
		st, err := p.chap(names(testInitiator, testTarget), &iscsi.CHAPInitiator{Own: iscsi.Secret{Name: user, Secret: secrets[user]}})
		must(t, err)
		return p, st
	}
	ann, st := as("ann")
	if st != 0 {
		t.Fatalf("status %04x", uint16(st))
	}
	if _, st := as("bob"); st != iscsi.LoginAuthFailed {
		t.Errorf("another user: status %04x", uint16(st))
	}
	ann.ready() // it is still there
	again, st := as("ann")
	if st != 0 {
		t.Errorf("the same user: status %04x", uint16(st))
	}
	ann.wantEnd()
	if _, st := as("new"); st != 0 {
		t.Errorf("a user that the name belongs to: status %04x", uint16(st))
	}
	again.wantEnd()
	f.logged("login refused", "user:bob")
}

// Who may log in is decided by the target as it is when the login ends, not as it was when it began.
func TestALoginUnderWayIsJudgedByTheTargetAsItIsAtItsEnd(t *testing.T) {
	secrets := map[string]string{"host": "a secret of host"}
	auth := func(m map[string]string, b Binding) *Auth {
		return &Auth{Secret: SecretMap(m), Binding: func(string, string) Binding { return b }}
	}
	mine := []Initiator{{Name: testInitiator}}
	for _, c := range []struct {
		name   string
		before Target
		after  func(*fixture) error
		status iscsi.LoginStatus
	}{
		{"nothing changed", Target{}, func(*fixture) error { return nil }, 0},
		{"a list that has it", Target{}, func(f *fixture) error {
			return f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Initiators: mine})
		}, 0},
		{"removed", Target{}, func(f *fixture) error { return f.srv.RemoveTarget(t.Context(), testTarget) }, iscsi.LoginNotFound},
		{"made again", Target{}, func(f *fixture) error {
			st, err := scsi.NewTarget(scsi.TargetOptions{Name: testTarget, Memory: f.pool})
			must(t, err)
			must(t, f.srv.RemoveTarget(t.Context(), testTarget))
			return f.srv.AddTarget(Target{Name: testTarget, SCSI: st})
		}, iscsi.LoginUnavailable},
		{"denied", Target{Initiators: mine}, func(f *fixture) error {
			return f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Initiators: []Initiator{{Name: "iqn.2026-11.dev.sluice:else"}}})
		}, iscsi.LoginNotAuthorized},
		{"moved", Target{}, func(f *fixture) error {
			return f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Redirect: &Redirect{Address: "192.0.2.1:3260"}})
		}, iscsi.LoginMovedTemporarily},
		{"CHAP came", Target{}, func(f *fixture) error {
			return f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: auth(secrets, Unbound)})
		}, iscsi.LoginAuthFailed},
		{"CHAP stayed", Target{Auth: auth(secrets, Unbound)}, func(f *fixture) error {
			return f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: auth(secrets, Bound)})
		}, 0},
		{"another secret", Target{Auth: auth(secrets, Unbound)}, func(f *fixture) error {
			return f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: auth(map[string]string{"host": "a new secret of host"}, Unbound)})
		}, iscsi.LoginAuthFailed},
		{"no such user", Target{Auth: auth(secrets, Unbound)}, func(f *fixture) error {
			return f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: auth(map[string]string{"else": "a secret of host"}, Unbound)})
		}, iscsi.LoginAuthFailed},
		{"another's name", Target{Auth: auth(secrets, Unbound)}, func(f *fixture) error {
			return f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Auth: auth(secrets, Stranger)})
		}, iscsi.LoginAuthFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			c.before.Name, c.before.SCSI = testTarget, f.st
			must(t, f.srv.UpdateTarget(c.before))
			p := f.dial()
			if c.before.Auth == nil {
				l, _ := p.step(iscsi.StageSecurity, iscsi.StageOperational, true, append(names(testInitiator, testTarget), "AuthMethod=None")...)
				if l.Status != 0 || !l.Transit {
					t.Fatalf("%+v", l)
				}
			} else {
				p.beforeEnd = func() { must(t, c.after(f)) }
				st, err := p.chap(names(testInitiator, testTarget), &iscsi.CHAPInitiator{Own: iscsi.Secret{Name: "host", Secret: secrets["host"]}})
				if err != nil || st != c.status {
					t.Errorf("status %04x, %v", uint16(st), err)
				}
				return
			}
			must(t, c.after(f))
			if l, _ := p.step(iscsi.StageOperational, iscsi.StageFullFeature, true); l.Status != c.status {
				t.Errorf("status %04x", uint16(l.Status))
			}
			if n := len(f.srv.Sessions()); (n == 1) != (c.status == 0) {
				t.Errorf("%d sessions", n)
			}
		})
	}
}
