package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/internal/hist"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/iscsi"
)

func (d *Daemon) managedExport(name string) bool {
	return d.cfg.managed != nil && slices.ContainsFunc(d.cfg.managed.Exports, func(e ExportConfig) bool { return e.Name == name })
}

// AddPortal implements admin.Backend.
func (d *Daemon) AddPortal(_ context.Context, p admin.Portal, dryRun bool) (admin.Done, error) {
	if _, _, err := net.SplitHostPort(p.Address); err != nil {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: fmt.Sprintf("portal address %q is not host:port (IPv6 as [::1]:3260)", p.Address)}
	}
	d.mu.Lock()
	known := slices.ContainsFunc(d.cfg.Portals, func(o PortalConfig) bool { return o.Address == p.Address })
	d.mu.Unlock()
	if known {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "there is a portal " + p.Address + " already"}
	}
	return d.change(dryRun, "portal "+p.Address+" opened", func(m *managed) error {
		m.Portals = append(m.Portals, PortalConfig{Address: p.Address, Group: p.Group})
		return nil
	})
}

// RemovePortal implements admin.Backend.
func (d *Daemon) RemovePortal(_ context.Context, address string, dryRun bool) (admin.Done, error) {
	return d.change(dryRun, "portal "+address+" closed", func(m *managed) error {
		n := len(m.Portals)
		m.Portals = slices.DeleteFunc(m.Portals, func(p PortalConfig) bool { return p.Address == address })
		if len(m.Portals) == n {
			return &admin.Error{Kind: admin.NotFound, Msg: "this interface opened no portal " + address + "; those of " + d.source + " are changed there"}
		}
		return nil
	})
}

// CreateExport implements admin.Backend.
func (d *Daemon) CreateExport(_ context.Context, s admin.ExportSpec) (admin.Done, error) {
	d.mu.Lock()
	first, known := d.files == nil, slices.ContainsFunc(d.cfg.Exports, func(o ExportConfig) bool { return o.Name == s.Name })
	d.mu.Unlock()
	fi, err := os.Stat(s.Path)
	switch {
	case known:
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "there is an export " + s.Name + " already"}
	case !filepath.IsAbs(s.Path):
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "the path of an export must be absolute"}
	case err != nil || !fi.IsDir():
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: s.Path + " is no directory"}
	}
	e := ExportConfig{Name: s.Name, Path: s.Path, AnonUID: s.AnonUID, AnonGID: s.AnonGID, Async: s.Async}
	for _, c := range s.Clients {
		e.Clients = append(e.Clients, ClientConfig{Match: c.Match, ReadOnly: c.ReadOnly, Squash: c.Squash, AnyPort: c.AnyPort})
	}
	done, err := d.change(s.DryRun, "export "+s.Name+" of "+s.Path+" added", func(m *managed) error {
		m.Exports = append(m.Exports, e)
		return nil
	})
	if err != nil || !first {
		return done, err
	}
	if s.DryRun {
		done.Changes = append(done.Changes, "the file service opened, on its default addresses")
		return done, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files != nil {
		done.Changes = append(done.Changes, "the file service opened: "+d.files.url(s.Name))
		if why := d.files.nfs.Squashed(); why != "" {
			done.Changes = append(done.Changes, "note: every caller acts as the daemon's own user, for "+why)
		}
	}
	return done, nil
}

// DeleteExport implements admin.Backend.
func (d *Daemon) DeleteExport(_ context.Context, name string, dryRun bool) (admin.Done, error) {
	return d.change(dryRun, "export "+name+" removed; its files stay", func(m *managed) error {
		n := len(m.Exports)
		m.Exports = slices.DeleteFunc(m.Exports, func(e ExportConfig) bool { return e.Name == name })
		if len(m.Exports) == n {
			return &admin.Error{Kind: admin.NotFound, Msg: "this interface made no export " + name + "; those of " + d.source + " are changed there"}
		}
		return nil
	})
}

// onTarget edits a target that this interface made.
func (d *Daemon) onTarget(name string, dryRun bool, what string, edit func(*TargetConfig) error) (admin.Done, error) {
	if err := d.ours(name); err != nil {
		return admin.Done{}, err
	}
	return d.change(dryRun, what, func(m *managed) error {
		for i := range m.Targets {
			if m.Targets[i].Name == name {
				return edit(&m.Targets[i])
			}
		}
		return &admin.Error{Kind: admin.NotFound, Msg: "there is no target " + name}
	})
}

// AllowInitiator implements admin.Backend.
func (d *Daemon) AllowInitiator(_ context.Context, target string, s admin.InitiatorSpec) (admin.Done, error) {
	return d.onTarget(target, s.DryRun, s.Name+" may log in to "+target, func(t *TargetConfig) error {
		t.Initiators = slices.DeleteFunc(t.Initiators, func(i InitiatorConfig) bool { return i.Name == s.Name })
		t.Initiators = append(t.Initiators, InitiatorConfig{Name: s.Name, LUNs: s.LUNs})
		return nil
	})
}

// DenyInitiator implements admin.Backend. The last name cannot go: an empty list would let everybody in.
func (d *Daemon) DenyInitiator(_ context.Context, target, initiator string, dryRun bool) (admin.Done, error) {
	return d.onTarget(target, dryRun, initiator+" may not log in to "+target+" any more", func(t *TargetConfig) error {
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
func (d *Daemon) SetSecret(_ context.Context, target string, s admin.SecretSpec) (admin.Done, error) {
	switch {
	case s.User == "" || strings.ContainsAny(s.User+s.Secret, " \t\r\n") || strings.HasPrefix(s.User, "#"):
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a user and a secret are words without white space"}
	case len(s.Secret) < 12:
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a secret has at least 12 characters (RFC 7143 section 9.2.1)"}
	}
	what := "secret of " + s.User + " set for " + target
	return d.editSecrets(target, s.DryRun, what, func(sec *secrets, a *AuthConfig) error {
		if s.Mutual {
			sec.mutual = map[string]string{s.User: s.Secret}
			a.MutualUser = s.User
			return nil
		}
		sec.users[s.User] = s.Secret
		return nil
	})
}

// RemoveSecret implements admin.Backend. The last user cannot go: without any nobody could log in.
func (d *Daemon) RemoveSecret(_ context.Context, target, user string, dryRun bool) (admin.Done, error) {
	return d.editSecrets(target, dryRun, "secret of "+user+" forgotten for "+target, func(sec *secrets, a *AuthConfig) error {
		switch _, known := sec.users[user]; {
		case a.MutualUser == user:
			delete(sec.mutual, user)
			a.MutualUser = ""
		case !known:
			return &admin.Error{Kind: admin.NotFound, Msg: "there is no secret of " + user + " for " + target}
		case len(sec.users) == 1:
			return &admin.Error{Kind: admin.Conflict, Msg: user + " is the last who can log in to " + target + "; set another secret first, or delete the target"}
		default:
			delete(sec.users, user)
		}
		return nil
	})
}

// editSecrets changes the secrets file of a target. The file is put back when the change as a whole cannot be made.
func (d *Daemon) editSecrets(target string, dryRun bool, what string, edit func(*secrets, *AuthConfig) error) (admin.Done, error) {
	if err := d.ours(target); err != nil {
		return admin.Done{}, err
	}
	path := d.secretsOf(target)
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return admin.Done{}, err
	}
	wrote := false
	done, err := d.onTarget(target, dryRun, what, func(t *TargetConfig) error {
		sec := &secrets{users: map[string]string{}, mutual: map[string]string{}}
		if before != nil {
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
		wrote = true
		return replaceFile(path, sec.bytes())
	})
	if err == nil || !wrote {
		return done, err
	}
	if before == nil {
		return done, errors.Join(err, os.Remove(path))
	}
	return done, errors.Join(err, replaceFile(path, before))
}

// bytes is the file that readSecrets reads.
func (s *secrets) bytes() []byte {
	var b bytes.Buffer
	for _, part := range []struct {
		head string
		m    map[string]string
	}{{"", s.users}, {"mutual ", s.mutual}} {
		users := make([]string, 0, len(part.m))
		for u := range part.m {
			users = append(users, u)
		}
		slices.Sort(users)
		for _, u := range users {
			fmt.Fprintf(&b, "%s%s %s\n", part.head, u, part.m[u])
		}
	}
	return b.Bytes()
}

// Trace implements admin.Backend.
func (d *Daemon) Trace(id string) (admin.Trace, error) {
	tsih, err := strconv.ParseUint(id, 10, 16)
	if err != nil {
		return admin.Trace{}, &admin.Error{Kind: admin.Invalid, Msg: "a session's id is a number, as \"sluice session list\" shows it"}
	}
	t, err := d.server.Trace(uint16(tsih))
	if err != nil {
		return admin.Trace{}, &admin.Error{Kind: admin.NotFound, Msg: "there is no session " + id + ", and none of the last that ended was " + id}
	}
	out := admin.Trace{Session: sessionOf(t.Session), Ended: t.Ended, Events: []admin.TraceEvent{}, Commands: []admin.TraceCommand{}, Inflight: []admin.TraceCommand{}}
	for _, e := range t.Events {
		out.Events = append(out.Events, admin.TraceEvent(e))
	}
	conv := func(c iscsi.TraceCommand) admin.TraceCommand {
		return admin.TraceCommand{At: c.At, Took: int64(c.Took), Tag: c.Tag, LUN: c.LUN, Command: c.Command, Outcome: c.Outcome}
	}
	for _, c := range t.Commands {
		out.Commands = append(out.Commands, conv(c))
	}
	for _, c := range t.Inflight {
		out.Inflight = append(out.Inflight, conv(c))
	}
	return out, nil
}

// Stats implements admin.Backend.
func (d *Daemon) Stats() admin.Stats {
	mem := d.memory.Stats()
	out := admin.Stats{At: time.Now(), Volumes: []admin.VolumeStats{}, Exports: []admin.ExportStats{}, Sessions: d.Sessions(),
		Memory: admin.MemoryStats{Used: mem.Used, Cached: mem.Cached, Limit: mem.Max}}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, v := range d.volumes {
		s, l := v.lu.Stats(), v.lu.Latency()
		out.Volumes = append(out.Volumes, admin.VolumeStats{Name: name, Reads: s.Reads, Writes: s.Writes, Others: s.Others, ReadBytes: s.ReadBytes,
			WrittenBytes: s.WrittenBytes, Errors: s.ReadErrors + s.WriteErrors, InProgress: v.lu.InProgress(), ReadTimes: latencyOf(&l.Read), WriteTimes: latencyOf(&l.Write)})
	}
	slices.SortFunc(out.Volumes, func(a, b admin.VolumeStats) int { return strings.Compare(a.Name, b.Name) })
	if d.files != nil {
		for _, e := range d.files.nfs.Stats() {
			if e.Export == "" {
				continue // of no export
			}
			read, write, other := e.Kinds()
			out.Exports = append(out.Exports, admin.ExportStats{Name: e.Export, ReadBytes: int64(e.Read), WrittenBytes: int64(e.Written),
				ReadTimes: latencyOf(&read), WriteTimes: latencyOf(&write), OtherTimes: latencyOf(&other)})
		}
		slices.SortFunc(out.Exports, func(a, b admin.ExportStats) int { return strings.Compare(a.Name, b.Name) })
	}
	return out
}

func latencyOf(s *hist.Snapshot) admin.Latency {
	l := admin.Latency{Sum: int64(s.Sum)}
	for _, b := range hist.Bounds {
		l.Bounds = append(l.Bounds, int64(b))
	}
	for _, n := range s.Counts {
		l.Counts = append(l.Counts, int64(n))
	}
	return l
}
