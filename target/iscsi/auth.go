package iscsi

import (
	"fmt"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// Auth is a CHAP configuration (RFC 7143 section 12.1.3).
type Auth struct {
	// Secret returns the secret of an initiator's user name.
	Secret func(user string) (secret string, ok bool)
	// Binding says what a user and an initiator's name have to do with each other. A user that proves its secret is not
	// yet the host that it says it is (RFC 7143 section 9.2). Nil: Unbound for all.
	Binding func(user, initiator string) Binding
	// Algorithms are accepted; nil for SHA3-256, SHA-256, SHA-1 and MD5.
	Algorithms []Algorithm
	// Mutual answers an initiator that wants proof from the target. Empty: such an initiator is refused.
	Mutual Secret
}

// Algorithm is a CHAP algorithm by its number in the registry of RFC 7143 section 12.1.3: 5 is MD5, 6 SHA-1, 7 SHA-256 and
// 8 SHA3-256.
type Algorithm uint8

// Secret is a name and the secret that proves it. It prints without the secret.
type Secret struct{ Name, Secret string }

// String implements fmt.Stringer.
func (s Secret) String() string { return s.Name + ":***" }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return fmt.Sprintf("iscsi.Secret{%q}", s.Name) }

// chap is the algorithms in the form of the protocol.
func (a *Auth) chap() []iscsi.CHAPAlgorithm {
	var out []iscsi.CHAPAlgorithm
	for _, x := range a.Algorithms {
		out = append(out, iscsi.CHAPAlgorithm(x))
	}
	return out
}

// Binding is the relation of a user to an initiator's name.
type Binding uint8

// Bindings.
const (
	Unbound  Binding = iota // neither is configured to belong to the other: the user may log in, but takes over no other user's session
	Bound                   // the user may use this name
	Stranger                // the user has other names, or the name other users
)

// SecretMap is an Auth.Secret for a fixed set of users.
func SecretMap(m map[string]string) func(string) (string, bool) {
	return func(user string) (string, bool) {
		s, ok := m[user]
		return s, ok
	}
}

func (a *Auth) binding(user, initiator string) Binding {
	if a.Binding == nil {
		return Unbound
	}
	return a.Binding(user, initiator)
}

// judge says whether the target admits, as it is now, a login that began under an earlier configuration. It returns the
// target as it is.
func (c *conn) judge(l *login) (*targetEntry, error) {
	was, name := l.target, l.target.Name
	t := c.srv.target(name)
	if t == nil {
		return nil, refuse(iscsi.LoginNotFound, "", "target %s was removed during the login", name)
	}
	if r := t.Redirect; r != nil {
		return nil, r.refusal()
	}
	if t.SCSI != was.SCSI {
		return nil, refuse(iscsi.LoginUnavailable, "", "target %s was made again during the login", name)
	}
	if _, ok := t.allow(l.initiator); !ok {
		return nil, refuse(iscsi.LoginNotAuthorized, fmt.Sprintf("add %s to the target's initiators", l.initiator), "initiator %q was taken off the access list of %s during the login", clip(l.initiator), name)
	}
	if t.Auth == nil {
		return t, nil
	}
	if !l.proved || l.chap == nil {
		return nil, refuse(iscsi.LoginAuthFailed, "configure CHAP on the initiator", "target %s has come to want authentication during the login", name)
	}
	secret, known := t.Auth.Secret(l.chap.Name())
	b := t.Auth.binding(l.chap.Name(), l.initiator)
	if !known || !l.chap.Proved(secret) || b == Stranger {
		return nil, refuse(iscsi.LoginAuthFailed, "", "the secret of user %q was changed or taken away during the login", clip(l.chap.Name()))
	}
	l.bound = b == Bound
	return t, nil
}

func (r *Redirect) refusal() error {
	st := iscsi.LoginMovedTemporarily
	if r.Permanent {
		st = iscsi.LoginMovedPermanently
	}
	return &refusalError{status: st, detail: "redirected", addr: r.Address}
}

// user is the name that the initiator gave for its proof, if any.
func (l *login) user() string {
	if l.chap == nil {
		return ""
	}
	return l.chap.Name()
}

// security runs CHAP where it is wanted (section 12.1).
func (c *conn) security(l *login, kvs []iscsi.KV) error {
	var chap []iscsi.KV
	for _, kv := range kvs {
		if len(kv.Key) > 5 && kv.Key[:5] == "CHAP_" {
			chap = append(chap, kv)
		}
	}
	if l.auth == nil {
		if len(chap) > 0 {
			return refuse(iscsi.LoginInitiatorError, "", "CHAP was not agreed upon")
		}
		return nil
	}
	if l.chap == nil {
		if l.neg.Value("AuthMethod") != "CHAP" {
			if len(chap) > 0 {
				return refuse(iscsi.LoginAuthFailed, "", "CHAP was not agreed upon")
			}
			if l.neg.Value("AuthMethod") == "None" && l.pdus > 1 {
				return refuse(iscsi.LoginAuthFailed, "configure CHAP on the initiator", "the initiator offers no CHAP")
			}
			return nil
		}
		l.chap = &iscsi.CHAPTarget{Lookup: l.auth.Secret, Own: iscsi.Secret(l.auth.Mutual), Algorithms: l.auth.chap()}
	}
	if len(chap) == 0 {
		return nil
	}
	out, err := l.chap.Step(chap)
	if err != nil {
		return err
	}
	for _, kv := range out {
		l.neg.Send(kv.Key, kv.Value)
	}
	if !l.chap.Done() {
		return nil
	}
	b := l.auth.binding(l.chap.Name(), l.initiator)
	if b == Stranger {
		return refuse(iscsi.LoginAuthFailed, fmt.Sprintf("write %s behind the secret of the user in the secrets file, or give it a user of its own", l.initiator),
			"user %q is not the one of initiator %q (RFC 7143 section 9.2)", clip(l.chap.Name()), clip(l.initiator))
	}
	l.proved, l.bound = true, b == Bound
	c.rec.Note("CHAP: %s proved who it is, as %s", l.initiator, clip(l.chap.Name()))
	return nil
}
