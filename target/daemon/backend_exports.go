package daemon

import (
	"context"
	"os"
	"path/filepath"

	"github.com/sluice-storage/sluice/target/admin"
)

// AddPortal implements admin.Backend.
func (d *Daemon) AddPortal(ctx context.Context, p admin.Portal, dryRun bool) (admin.Done, error) {
	portal := PortalConfig{Address: p.Address, Group: p.Group}
	if err := checkKeys(portal, "portal ", below("$")); err != nil {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: err.Error()}
	}
	return d.change(ctx, dryRun, "portal "+p.Address+" opened", func(m *managed) error {
		if has(d.cfg.Portals, p.Address) {
			return &admin.Error{Kind: admin.Conflict, Msg: "there is a portal " + p.Address + " already"}
		}
		m.Portals = append(m.Portals, portal)
		return nil
	})
}

// RemovePortal implements admin.Backend.
func (d *Daemon) RemovePortal(ctx context.Context, address string, dryRun bool) (admin.Done, error) {
	return d.change(ctx, dryRun, "portal "+address+" closed", func(m *managed) error {
		if !has(m.Portals, address) {
			return &admin.Error{Kind: admin.NotFound, Msg: "this interface opened no portal " + address + "; those of " + d.source + " are changed there"}
		}
		m.Portals = without(m.Portals, address)
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
		if has(d.cfg.Exports, s.Name) {
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
		if !has(m.Exports, name) {
			return &admin.Error{Kind: admin.NotFound, Msg: "this interface made no export " + name + "; those of " + d.source + " are changed there"}
		}
		m.Exports = without(m.Exports, name)
		return nil
	})
}
