package daemon

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/sluice-storage/sluice/internal/savefile"
	"github.com/sluice-storage/sluice/target/admin"
)

// change edits the managed part of the configuration. The result is checked and written to a file beside managed.yaml; the daemon is
// changed; then the file takes its place. A change that cannot be made or written down is taken back as a whole. A dry run only checks.
func (d *Daemon) change(ctx context.Context, dryRun bool, what string, edit func(*managed) error) (admin.Done, error) {
	if err := d.lockChange(ctx); err != nil {
		return admin.Done{}, err
	}
	defer d.changeMu.Unlock()
	return d.changeLocked(dryRun, what, edit)
}

// lockChange takes changeMu, which another change may hold for minutes. It fails for a client that has gone meanwhile: what the client
// has given up must not be carried out. What an edit depends on is asked with the lock held.
func (d *Daemon) lockChange(ctx context.Context) error {
	err := d.changeMu.lock(ctx)
	if err == nil && ctx.Err() != nil {
		d.changeMu.Unlock()
		err = ctx.Err()
	}
	if err != nil {
		return &admin.Error{Kind: 503, Msg: "nothing was changed: the client was gone before the change could begin, behind another one"}
	}
	return nil
}

// changeLocked is change. The caller holds changeMu, because what it asked before must still be so.
func (d *Daemon) changeLocked(dryRun bool, what string, edit func(*managed) error) (admin.Done, error) {
	now, err := readManaged(d.stateDir)
	if err != nil {
		return admin.Done{}, err
	}
	next, err := now.clone()
	if err != nil {
		return admin.Done{}, err
	}
	if err := edit(next); err != nil {
		return admin.Done{}, err
	}
	text, err := next.text()
	if err != nil {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: err.Error()}
	}
	cfg, err := d.read(d.cfg, next)
	if err == nil {
		err = d.wouldRefuseLocked(cfg)
	}
	if err != nil {
		return admin.Done{}, wrong(err)
	}
	// The file may have taken over what the edit is about since it was read last.
	if what := takenOver(now, next, cfg); what != "" {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: what + " is defined in " + d.source + " by now; change it there and reload"}
	}
	gone, some := next.forgetGone(cfg)
	for _, mp := range gone {
		if !slices.Contains(now.Maps, mp) {
			return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "target " + mp.Target + " is not in " + d.source + " any more; it goes with the next change"}
		}
	}
	if some {
		if text, err = next.text(); err != nil {
			return admin.Done{}, err
		}
	}
	if cfg.touched = next.touched; cfg.touched == nil {
		cfg.touched = map[string]bool{}
	}
	if dryRun {
		return admin.Done{Changes: []string{what}, DryRun: true}, nil
	}
	// All that needs room or may be refused happens before anything is touched: what is left for the end is a rename.
	ready, err := savefile.Prepare(managedPath(d.stateDir), text)
	if err != nil {
		return admin.Done{}, err
	}
	defer ready.Drop()
	_, but, err := d.reloadLocked(cfg, ready.Put)
	if err != nil {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: err.Error()}
	}
	return admin.Done{Changes: append([]string{what}, doneBut(but)...)}, nil
}

// doneBut is what is said of a change that was made and left something undone.
func doneBut(err error) []string {
	if err == nil {
		return nil
	}
	return []string{"it is done, but " + err.Error()}
}

// wouldRefuseLocked says why next, which is a configuration, cannot follow what is served. The caller holds one of the daemon's locks.
func (d *Daemon) wouldRefuseLocked(next *Config) error {
	if err := next.takesAway(d.cfg); err != nil {
		return err
	}
	for _, v := range next.Volumes {
		if old := d.volumes[v.Name]; old != nil && old.why == nil {
			if _, err := old.follows(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// wrong is what an operator is told of a change that no configuration could hold: its values are wrong, whatever there is.
func wrong(err error) error {
	if ce := (*ConfigError)(nil); errors.As(err, &ce) {
		return &admin.Error{Kind: admin.Invalid, Msg: ce.Detail}
	}
	return &admin.Error{Kind: admin.Conflict, Msg: err.Error()}
}

// takenOver names what an edit from now to next is about and c has from the operator's file, where the edit would be without effect.
func takenOver(now, next *managed, c *Config) string {
	return cmp.Or(takenItem(now.Volumes, next.Volumes, c.Volumes, c.taken), takenItem(now.Targets, next.Targets, c.Targets, c.taken),
		takenItem(now.Portals, next.Portals, c.Portals, c.taken), takenItem(now.Exports, next.Exports, c.Exports, c.taken))
}
