package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
)

// portGroups is the device server's form of port_groups.
func (t TargetConfig) portGroups() ([]scsi.PortGroup, error) {
	var l []scsi.PortGroup
	for _, g := range t.PortGroups {
		s, err := scsi.ParseAccessState(g.State)
		if err != nil {
			return nil, fmt.Errorf("target %s: %w", t.Name, err)
		}
		l = append(l, scsi.PortGroup{ID: g.Group, State: s, Preferred: g.Preferred, Ports: g.Portals})
	}
	return l, nil
}

// statesOnly reports whether two configurations of one target have the same port groups but for their states, which can
// change while sessions go on.
func statesOnly(a, b TargetConfig) bool {
	shape := func(t TargetConfig) []PortGroupConfig {
		var l []PortGroupConfig
		for _, g := range t.PortGroups {
			g.State = ""
			l = append(l, g)
		}
		return l
	}
	return a.ALUA == b.ALUA && same(shape(a), shape(b))
}

// moveGroups takes over the states that next configures otherwise than old.
func moveGroups(st *scsi.Target, old, next TargetConfig) error {
	var errs []error
	for i, g := range next.PortGroups {
		if i < len(old.PortGroups) && old.PortGroups[i].State != g.State {
			s, err := scsi.ParseAccessState(g.State)
			if err == nil {
				err = st.Configure(g.Group, s)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// groupsOf finds a target that has port groups.
func (d *Daemon) groupsOf(name string) (*scsi.Target, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := indexOf(d.cfg.Targets, name)
	switch {
	case i < 0:
		return nil, &admin.Error{Kind: admin.NotFound, Msg: "there is no target " + name}
	case d.unserved[name] != "":
		return nil, &admin.Error{Kind: admin.Conflict, Msg: d.unserved[name] + "; it is not served"}
	case d.targets[name] == nil:
		return nil, &admin.Error{Kind: admin.Conflict, Msg: "target " + name + " sends its initiators elsewhere (redirect); it has no port groups here"}
	case d.cfg.Targets[i].ALUA == "none":
		return nil, &admin.Error{Kind: admin.Conflict, Msg: "target " + name + " has alua: none, which makes all its portals alike; set alua: implicit and reload"}
	}
	return d.targets[name], nil
}

var setBy = map[scsi.GroupStatus]string{scsi.GroupConfigured: "configuration", scsi.GroupExplicit: "initiator", scsi.GroupImplicit: "operator"}

// PortGroups implements admin.Backend.
func (d *Daemon) PortGroups(target string) ([]admin.PortGroup, error) {
	st, err := d.groupsOf(target)
	if err != nil {
		return nil, err
	}
	out := []admin.PortGroup{}
	for _, g := range st.PortGroups() {
		if g.Ports == nil {
			g.Ports = []uint16{}
		}
		out = append(out, admin.PortGroup{Group: g.ID, State: g.State.String(), Preferred: g.Preferred, Portals: g.Ports, SetBy: setBy[g.Status]})
	}
	return out, nil
}

// SetPortGroup implements admin.Backend. A state that is set here outlives a restart; the configuration's counts again when it is
// given another.
func (d *Daemon) SetPortGroup(_ context.Context, target string, group uint16, s admin.PortGroupSpec) (admin.Done, error) {
	st, err := d.groupsOf(target)
	if err != nil {
		return admin.Done{}, err
	}
	i := slices.IndexFunc(st.PortGroups(), func(g scsi.PortGroup) bool { return g.ID == group })
	if i < 0 {
		return admin.Done{}, &admin.Error{Kind: admin.NotFound, Msg: fmt.Sprintf("target %s has no port group %d", target, group)}
	}
	to := scsi.Transitioning // which a configuration cannot name: nothing would end it
	if s.State != to.String() {
		if to, err = scsi.ParseAccessState(s.State); err != nil || s.State == "" {
			return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: fmt.Sprintf("%q is no access state: active/optimized, active/non-optimized, standby, unavailable or transitioning", s.State)}
		}
	}
	done := admin.Done{Changes: []string{fmt.Sprintf("port group %d of %s from %v to %v", group, target, st.PortGroups()[i].State, to)}, DryRun: s.DryRun}
	if s.DryRun {
		return done, nil
	}
	if err := st.SetPortGroup(group, to); err != nil {
		return admin.Done{}, err
	}
	d.log.Info("port group", zap.String("target", target), zap.Uint16("group", group), zap.Stringer("state", to))
	return done, nil
}
