package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"sort"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/version"
	"github.com/sluice-storage/sluice/target/admin"
)

// The daemon is what the administrative interface changes.
var _ admin.Backend = (*Daemon)(nil)

// Info implements admin.Backend.
func (d *Daemon) Info() admin.Info {
	state := "serving"
	if d.Ready() != nil {
		state = "draining"
	}
	return admin.Info{Version: version.String(), PID: os.Getpid(), Started: d.started, Config: d.source, State: state, Dir: d.stateDir, Unbound: d.unbound()}
}

// Volumes implements admin.Backend.
func (d *Daemon) Volumes() []admin.Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]admin.Volume, 0, len(d.volumes))
	for name, v := range d.volumes {
		g := v.dev.Geometry()
		a := admin.Volume{Name: name, Engine: v.cfg.Engine, Path: v.cfg.place(), Size: g.Size, Block: g.Logical, ReadOnly: v.cfg.ReadOnly, Managed: d.cfg.managedVolume(name)}
		if e, ok := v.dev.(blockdev.Explainer); ok {
			a.How = e.Path()
		}
		if q, _ := blockdev.QueueOf(v.dev); q.Why != nil {
			a.Slow = q.Why.Error()
		}
		if a.Problem = v.lu.Unerased(); v.why != nil {
			a.Problem = v.why.Error()
		}
		for _, t := range d.cfg.Targets {
			for _, l := range t.LUNs {
				if l.Volume == name {
					lun := int(l.LUN)
					a.Target, a.LUN = t.Name, &lun
				}
			}
		}
		out = append(out, a)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// Targets implements admin.Backend.
func (d *Daemon) Targets() []admin.Target {
	sessions := map[string]int{}
	for _, s := range d.Sessions() {
		sessions[s.Target]++
	}
	provided := len(d.devices()) > 0 // asked first: an adapter that is being opened may take its time
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]admin.Target, 0, len(d.cfg.Targets))
	for _, t := range d.cfg.Targets {
		a := admin.Target{Name: t.Name, Alias: t.Alias, LUNs: []admin.LUN{}, Initiators: []string{}, CHAP: t.Auth != nil, Problem: d.unserved[t.Name], Sessions: sessions[t.Name], Managed: d.cfg.managedTarget(t.Name)}
		for _, l := range t.LUNs {
			a.LUNs = append(a.LUNs, admin.LUN{LUN: l.LUN, Volume: l.Volume})
		}
		for _, i := range t.Initiators {
			a.Initiators = append(a.Initiators, i.Name)
		}
		a.SRP, a.NotSRP = d.srpPortsLocked(t, provided)
		out = append(out, a)
	}
	return out
}

// Portals implements admin.Backend.
func (d *Daemon) Portals() []admin.Portal {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]admin.Portal, 0, len(d.portals))
	for _, p := range d.portals {
		out = append(out, admin.Portal{Address: p.l.Addr().String(), Group: p.cfg.Group})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Address < out[j].Address })
	return out
}

// Exports implements admin.Backend.
func (d *Daemon) Exports() []admin.Export {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]admin.Export, 0, len(d.cfg.Exports))
	for _, e := range d.cfg.Exports {
		out = append(out, admin.Export{Name: e.Name, Path: e.Path, Problem: d.absent[path.Clean(e.Name)], Managed: d.cfg.managedExport(e.Name)})
	}
	return out
}

// Ready implements admin.Backend.
func (d *Daemon) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.drained:
		return &admin.Error{Kind: 503, Msg: "the daemon is draining"}
	default:
	}
	if !d.serving {
		return &admin.Error{Kind: 503, Msg: "the daemon is not serving"}
	}
	return nil
}

// ShowConfig implements admin.Backend.
func (d *Daemon) ShowConfig() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg.Show()
}

// Drain implements admin.Backend: Run ends as on SIGTERM.
func (d *Daemon) Drain(context.Context) (admin.Done, error) {
	d.drainOne.Do(func() { close(d.drained) })
	return admin.Done{Changes: []string{"the daemon ends when what runs has finished"}}, nil
}

// ReloadConfig implements admin.Backend.
func (d *Daemon) ReloadConfig(ctx context.Context, dryRun bool) (admin.Done, error) {
	var changes []Change
	var but error
	if dryRun {
		d.mu.Lock()
		now := d.cfg
		d.mu.Unlock()
		next, err := d.read(now, nil)
		if err != nil {
			return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: err.Error()}
		}
		d.mu.Lock()
		changes, err = d.cfg.Diff(next), d.wouldRefuseLocked(next)
		d.mu.Unlock()
		if err != nil {
			return admin.Done{}, wrong(fmt.Errorf("configuration would not be changed: %w", err))
		}
	} else {
		var err error
		if changes, but, err = d.reloadFile(ctx); err != nil {
			kind := admin.Conflict
			if ce := (*ConfigError)(nil); errors.As(err, &ce) {
				kind = admin.Invalid
			}
			return admin.Done{}, &admin.Error{Kind: kind, Msg: err.Error()}
		}
	}
	done := admin.Done{Changes: []string{}, DryRun: dryRun}
	for _, c := range changes {
		line := c.Kind + " " + c.Name + " " + c.What
		if c.Restart {
			line += " (takes effect when the daemon starts again)"
		}
		done.Changes = append(done.Changes, line)
	}
	if len(changes) == 0 {
		done.Changes = append(done.Changes, "nothing has changed")
	}
	done.Changes = append(done.Changes, doneBut(but)...)
	return done, nil
}
