package daemon

import (
	"errors"
	"fmt"

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
