package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-storage/sluice/target/admin"
)

func (d *Daemon) managedExport(name string) bool {
	return d.cfg.managed != nil && !d.cfg.taken["export "+name] && slices.ContainsFunc(d.cfg.managed.Exports, func(e ExportConfig) bool { return e.Name == name })
}

// AddPortal implements admin.Backend.
func (d *Daemon) AddPortal(ctx context.Context, p admin.Portal, dryRun bool) (admin.Done, error) {
	if !listens(p.Address) {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: fmt.Sprintf("portal address %q is not host:port (IPv6 as [::1]:3260)", p.Address)}
	}
	return d.change(ctx, dryRun, "portal "+p.Address+" opened", func(m *managed) error {
		if slices.ContainsFunc(d.cfg.Portals, func(o PortalConfig) bool { return o.Address == p.Address }) {
			return &admin.Error{Kind: admin.Conflict, Msg: "there is a portal " + p.Address + " already"}
		}
		m.Portals = append(m.Portals, PortalConfig{Address: p.Address, Group: p.Group})
		return nil
	})
}

// RemovePortal implements admin.Backend.
func (d *Daemon) RemovePortal(ctx context.Context, address string, dryRun bool) (admin.Done, error) {
	return d.change(ctx, dryRun, "portal "+address+" closed", func(m *managed) error {
		n := len(m.Portals)
		m.Portals = slices.DeleteFunc(m.Portals, func(p PortalConfig) bool { return p.Address == address })
		if len(m.Portals) == n {
			return &admin.Error{Kind: admin.NotFound, Msg: "this interface opened no portal " + address + "; those of " + d.source + " are changed there"}
		}
		return nil
	})
}

// CreateExport implements admin.Backend.
func (d *Daemon) CreateExport(ctx context.Context, s admin.ExportSpec) (admin.Done, error) {
	fi, err := os.Stat(s.Path)
	switch {
	case !filepath.IsAbs(s.Path):
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "the path of an export must be absolute"}
	case err != nil || !fi.IsDir():
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: s.Path + " is no directory"}
	}
	e := ExportConfig{Name: s.Name, Path: s.Path, AnonUID: s.AnonUID, AnonGID: s.AnonGID, Async: s.Async}
	for _, c := range s.Clients {
		e.Clients = append(e.Clients, ClientConfig{Match: c.Match, ReadOnly: c.ReadOnly, Squash: c.Squash, AnyPort: c.AnyPort})
	}
	first := false
	done, err := d.change(ctx, s.DryRun, "export "+s.Name+" of "+s.Path+" added", func(m *managed) error {
		first = d.files == nil
		if slices.ContainsFunc(d.cfg.Exports, func(o ExportConfig) bool { return o.Name == s.Name }) {
			return &admin.Error{Kind: admin.Conflict, Msg: "there is an export " + s.Name + " already"}
		}
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
func (d *Daemon) DeleteExport(ctx context.Context, name string, dryRun bool) (admin.Done, error) {
	return d.change(ctx, dryRun, "export "+name+" removed; its files stay", func(m *managed) error {
		n := len(m.Exports)
		m.Exports = slices.DeleteFunc(m.Exports, func(e ExportConfig) bool { return e.Name == name })
		if len(m.Exports) == n {
			return &admin.Error{Kind: admin.NotFound, Msg: "this interface made no export " + name + "; those of " + d.source + " are changed there"}
		}
		return nil
	})
}
