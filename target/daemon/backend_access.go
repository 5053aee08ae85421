package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	wire "github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/savefile"
	"github.com/sluice-storage/sluice/target/admin"
)

// onTarget edits a target that this interface made.
func (d *Daemon) onTarget(ctx context.Context, name string, dryRun bool, what string, edit func(*TargetConfig) error) (admin.Done, error) {
	if err := d.lockChange(ctx); err != nil {
		return admin.Done{}, err
	}
	defer d.changeMu.Unlock()
	return d.onTargetLocked(name, dryRun, what, edit)
}

func (d *Daemon) onTargetLocked(name string, dryRun bool, what string, edit func(*TargetConfig) error) (admin.Done, error) {
	if err := d.ours(name); err != nil {
		return admin.Done{}, err
	}
	return d.changeLocked(dryRun, what, func(m *managed) error {
		for i := range m.Targets {
			if m.Targets[i].Name == name {
				m.touched = map[string]bool{name: true}
				return edit(&m.Targets[i])
			}
		}
		return &admin.Error{Kind: admin.NotFound, Msg: "there is no target " + name}
	})
}

// AllowInitiator implements admin.Backend.
func (d *Daemon) AllowInitiator(ctx context.Context, target string, s admin.InitiatorSpec) (admin.Done, error) {
	sees := "every LUN"
	if len(s.LUNs) > 0 {
		sees = "of its LUNs " + strings.ReplaceAll(strings.Trim(fmt.Sprint(s.LUNs), "[]"), " ", " and ")
	}
	return d.onTarget(ctx, target, s.DryRun, s.Name+" may log in to "+target+" and sees "+sees, func(t *TargetConfig) error {
		t.Initiators = slices.DeleteFunc(t.Initiators, func(i InitiatorConfig) bool { return i.Name == s.Name })
		i := InitiatorConfig{Name: s.Name}
		if len(s.LUNs) > 0 {
			i.LUNs = s.LUNs
		}
		t.Initiators = append(t.Initiators, i)
		return nil
	})
}

// DenyInitiator implements admin.Backend. The last name cannot go: an empty list would let every initiator in.
func (d *Daemon) DenyInitiator(ctx context.Context, target, initiator string, dryRun bool) (admin.Done, error) {
	return d.onTarget(ctx, target, dryRun, initiator+" may not log in to "+target+" any more", func(t *TargetConfig) error {
		n := len(t.Initiators)
		t.Initiators = slices.DeleteFunc(t.Initiators, func(i InitiatorConfig) bool { return i.Name == initiator })
		switch len(t.Initiators) {
		case n:
			return &admin.Error{Kind: admin.NotFound, Msg: initiator + " is not on the list of " + target}
		case 0:
			return &admin.Error{Kind: admin.Conflict, Msg: initiator + " is the last on the list of " + target + ", and an empty list lets everybody in; delete the target, or allow another first"}
		}
		return nil
	})
}

// secretsOf is the file that holds the secrets of a target this interface made.
func (d *Daemon) secretsOf(target string) string { return filepath.Join(d.stateDir, "secrets", target) }

// SetSecret implements admin.Backend.
func (d *Daemon) SetSecret(ctx context.Context, target string, s admin.SecretSpec) (admin.Done, error) {
	switch {
	case s.User == "" || strings.ContainsAny(s.User+s.Secret, " \t\r\n") || strings.HasPrefix(s.User, "#"):
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a user and a secret are words without white space"}
	case s.User == mutual:
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "no user is called mutual: the word begins the line of the target's own secret"}
	case s.Mutual && len(s.Initiators) > 0:
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "the target's own secret belongs to no initiator"}
	case len(s.Secret) < 12:
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a secret has at least 12 characters (RFC 7143 section 9.2.1)"}
	}
	for _, i := range s.Initiators {
		if err := wire.CheckName(i); err != nil {
			return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: fmt.Sprintf("initiator %q: %v", i, err)}
		}
	}
	what := "secret of " + s.User + " set for " + target
	if len(s.Initiators) > 0 {
		what += ", for " + strings.Join(s.Initiators, " and ")
	}
	return d.editSecrets(ctx, target, s.DryRun, what, func(sec *secrets, a *AuthConfig) error {
		if s.Mutual {
			if len(sec.users) == 0 {
				return &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("there is no user yet who could log in to %s and ask for its proof; first: sluice target secret %[1]s USER", target)}
			}
			sec.mutual[s.User] = s.Secret
			a.MutualUser = s.User
			return nil
		}
		sec.users[s.User] = s.Secret
		if len(s.Initiators) > 0 { // without, a new secret for a user leaves it the names that it has
			sec.names[s.User] = s.Initiators
		}
		return nil
	})
}

// RemoveSecret implements admin.Backend. The last user cannot be removed: without a user no initiator could log in. The name may be that of
// a user, of the target's own secret, or of both; all that has the name is removed.
func (d *Daemon) RemoveSecret(ctx context.Context, target, user string, dryRun bool) (admin.Done, error) {
	both := false
	done, err := d.editSecrets(ctx, target, dryRun, "secret of "+user+" forgotten for "+target, func(sec *secrets, a *AuthConfig) error {
		_, known := sec.users[user]
		own := a.MutualUser == user
		switch {
		case own && !known:
			a.MutualUser = ""
		case !known:
			return &admin.Error{Kind: admin.NotFound, Msg: "there is no secret of " + user + " for " + target}
		case len(sec.users) == 1:
			return &admin.Error{Kind: admin.Conflict, Msg: user + " is the last who can log in to " + target + "; set another secret first, or delete the target"}
		default:
			delete(sec.users, user)
			delete(sec.names, user)
			if both = own; own {
				a.MutualUser = ""
			}
		}
		return nil
	})
	if err == nil && both {
		done.Changes = append(done.Changes, "and the target's own secret, which had the same name")
	}
	return done, err
}

// editSecrets changes the secrets file of a target. The file is put back when the change as a whole cannot be made. It is replaced
// before managed.yaml is, which names the target's own secret: a daemon that is killed between them finds the secrets of both
// configurations there, and what none of them names goes last.
func (d *Daemon) editSecrets(ctx context.Context, target string, dryRun bool, what string, edit func(*secrets, *AuthConfig) error) (admin.Done, error) {
	if err := d.lockChange(ctx); err != nil {
		return admin.Done{}, err
	}
	defer d.changeMu.Unlock()
	if err := d.ours(target); err != nil {
		return admin.Done{}, err
	}
	path := d.secretsOf(target)
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return admin.Done{}, err
	}
	wrote := false
	var after *secrets
	var own string
	done, err := d.onTargetLocked(target, dryRun, what, func(t *TargetConfig) error {
		sec := newSecrets()
		// Without auth, a file that is there belonged to an earlier target of this name.
		if before != nil && t.Auth != nil {
			var err error
			if sec, err = readSecrets(path); err != nil {
				return err
			}
		}
		if t.Auth == nil {
			t.Auth = &AuthConfig{SecretsFile: path}
		}
		if err := edit(sec, t.Auth); err != nil {
			return err
		}
		if dryRun && before == nil {
			return &admin.Error{Kind: admin.Conflict, Msg: "nothing can be tried before the first secret is set"}
		}
		if dryRun {
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		wrote, after, own = true, sec, t.Auth.MutualUser
		return savefile.Replace(path, sec.bytes())
	})
	if !wrote {
		return done, err
	}
	if err == nil {
		n := len(after.mutual)
		maps.DeleteFunc(after.mutual, func(user, _ string) bool { return user != own })
		if len(after.mutual) == n {
			return done, nil
		}
		if err := savefile.Replace(path, after.bytes()); err != nil {
			return done, &admin.Error{Kind: admin.Conflict, Msg: "it is done, but a secret that is not used any more could not be taken out of " + path + ": " + err.Error()}
		}
		return done, nil
	}
	if before == nil {
		return done, errors.Join(err, os.Remove(path))
	}
	return done, errors.Join(err, savefile.Replace(path, before))
}

// bytes is the file that readSecrets reads.
func (s *secrets) bytes() []byte {
	var b bytes.Buffer
	for _, part := range []struct {
		head string
		m    map[string]string
	}{{"", s.users}, {mutual + " ", s.mutual}} {
		users := make([]string, 0, len(part.m))
		for u := range part.m {
			users = append(users, u)
		}
		slices.Sort(users)
		for _, u := range users {
			fmt.Fprintf(&b, "%s%s %s", part.head, u, part.m[u])
			if part.head == "" {
				for _, i := range s.names[u] {
					fmt.Fprintf(&b, " %s", i)
				}
			}
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}
