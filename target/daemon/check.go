package daemon

import (
	"fmt"
	"net"
	"os"
	"path"
	"strings"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/filesystem"
)

// placeError is what Check found, with the YAML path of the value it is about.
type placeError struct {
	path string
	err  error
}

func (e *placeError) Error() string { return e.err.Error() }
func (e *placeError) Unwrap() error { return e.err }

func at(path, format string, a ...any) error { return &placeError{path, fmt.Errorf(format, a...)} }

// Check looks for what no parser can see: values that their keys do not allow, which the keys' declarations say, and then rules about
// several keys, which are here: names used twice, volumes that do not exist, sizes that make no sense.
func (c *Config) Check() error {
	if err := checkKeys(c, "", below("$")); err != nil {
		return err
	}
	if c.Limits.PerHost < 1 || c.Limits.PerHost > c.Limits.Connections {
		return at("$.limits.per_host", "limits.per_host %d is not from 1 to limits.connections, which is %d", c.Limits.PerHost, c.Limits.Connections)
	}
	if a := c.Admin; a.Listen != "" {
		if a.Cert == "" || a.Key == "" || a.ClientCA == "" {
			return at("$.admin", "admin.listen needs cert, key and client_ca: whoever reaches it can destroy volumes")
		}
	}
	for _, check := range []func() error{c.checkFabric, c.checkPortals, c.checkSRP, c.checkVolumes, c.checkTargets, c.checkExports} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// listens says whether an address has the form of one that can be listened on. What a dry run takes must not fail for its form when
// it is bound.
func listens(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	return err == nil && port != "" // which would be one by chance; 0 says so
}

// byChance reports a portal that a command of an earlier version opened without a port. It is served as it was: a daemon that does not
// start closes no portal.
func (c *Config) byChance(addr string) bool {
	if !c.managedPortal(addr) {
		return false
	}
	_, port, err := net.SplitHostPort(addr)
	return err == nil && port == ""
}

func (c *Config) checkPortals() error {
	seen := map[string]bool{}
	for i, p := range c.Portals {
		where := fmt.Sprintf("$.portals[%d].address", i)
		if !c.byChance(p.Address) {
			if err := checkKeys(p, "portal ", below(fmt.Sprintf("$.portals[%d]", i))); err != nil {
				return err
			}
		}
		if seen[p.Address] {
			return at(where, "portal %s is named twice", p.Address)
		}
		seen[p.Address] = true
	}
	if len(c.Portals) == 0 && len(c.Targets) > 0 {
		return at("$.targets", "targets are configured but no portal: add portals: [{address: \"127.0.0.1:3260\"}]")
	}
	return nil
}

func (c *Config) checkTargets() error {
	seen, used := map[string]bool{}, map[string]string{}
	volumes := map[string]bool{}
	for _, v := range c.Volumes {
		volumes[v.Name] = true
	}
	for i, t := range c.Targets {
		at := func(key, format string, a ...any) error {
			return at(fmt.Sprintf("$.targets[%d]%s", i, key), format, a...)
		}
		if err := iscsi.CheckName(t.Name); err != nil {
			return at(".name", "target %q: %w", t.Name, err)
		}
		if seen[t.Name] {
			return at(".name", "target %s is named twice", t.Name)
		}
		seen[t.Name] = true
		if err := checkKeys(t, "target "+t.Name+": ", below(fmt.Sprintf("$.targets[%d]", i))); err != nil {
			return err
		}
		if err := c.checkPortGroups(i, t); err != nil {
			return err
		}
		luns := map[uint16]bool{}
		for j, l := range t.LUNs {
			key := fmt.Sprintf(".luns[%d]", j)
			if err := checkKeys(l, "target "+t.Name+": ", below(fmt.Sprintf("$.targets[%d]%s", i, key))); err != nil {
				return err
			}
			switch {
			case !volumes[l.Volume]:
				return at(key, "target %s: lun %d names volume %q, which is not configured", t.Name, l.LUN, l.Volume)
			case luns[l.LUN]:
				return at(key, "target %s: lun %d is mapped twice", t.Name, l.LUN)
			case used[l.Volume] != "":
				return at(key, "volume %s is mapped by %s and %s; a volume belongs to one LUN", l.Volume, used[l.Volume], t.Name)
			}
			luns[l.LUN], used[l.Volume] = true, t.Name
		}
		for j, i := range t.Initiators {
			if err := checkInitiator(i.Name); err != nil {
				return at(fmt.Sprintf(".initiators[%d].name", j), "target %s: initiator %q: %w", t.Name, i.Name, err)
			}
		}
	}
	return nil
}

func (c *Config) checkPortGroups(i int, t TargetConfig) error {
	tags, ids, taken := map[uint16]bool{}, map[uint16]bool{}, map[uint16]uint16{}
	for _, p := range c.Portals {
		tags[p.Group] = true
	}
	for _, p := range c.SRP {
		tags[p.Group] = true
	}
	for j, g := range t.PortGroups {
		at := func(key, format string, a ...any) error {
			return at(fmt.Sprintf("$.targets[%d].port_groups[%d]%s", i, j, key), "target %s: "+format, append([]any{t.Name}, a...)...)
		}
		switch {
		case t.ALUA == "none":
			return at("", "port groups need alua implicit, explicit or both")
		case g.Group == 0:
			return at("", "a port group needs a number (group: 1 to 65535)")
		case ids[g.Group]:
			return at(".group", "port group %d is there twice", g.Group)
		case len(g.Portals) == 0:
			return at("", "port group %d has no portals: name the group tags of portals (portals: [1])", g.Group)
		}
		ids[g.Group] = true
		place := fmt.Sprintf("$.targets[%d].port_groups[%d]", i, j)
		if err := checkKeys(g, fmt.Sprintf("target %s: port group %d: ", t.Name, g.Group), below(place)); err != nil {
			return err
		}
		for _, p := range g.Portals {
			switch other, dup := taken[p]; {
			case !tags[p]:
				return at(".portals", "port group %d: no portal has the group tag %d", g.Group, p)
			case dup:
				return at(".portals", "portal group tag %d is in the port groups %d and %d", p, other, g.Group)
			}
			taken[p] = g.Group
		}
	}
	return nil
}

func (c *Config) checkExports() error {
	seen := map[string]bool{}
	for i, e := range c.Exports {
		name := path.Clean(e.Name) // as clients find it
		at := func(key, format string, a ...any) error {
			return at(fmt.Sprintf("$.exports[%d]%s", i, key), format, a...)
		}
		switch {
		case e.Path == "":
			return at("", "an export has no path")
		case !strings.HasPrefix(e.Name, "/"):
			return at(".name", "export %s: name %q must begin with a slash", e.Path, e.Name)
		case len(name) > filesystem.MaxExportPath:
			return at(".name", "export %s: a name has at most %d bytes", e.Path, filesystem.MaxExportPath)
		case seen[name]:
			return at(".name", "export %s is named twice", name)
		}
		seen[name] = true
		for j, r := range e.Clients {
			if err := checkKeys(r, "export "+e.Name+": ", below(fmt.Sprintf("$.exports[%d].clients[%d]", i, j))); err != nil {
				return err
			}
			if err := (filesystem.Client{Match: r.Match}).Check(); err != nil {
				return at(fmt.Sprintf(".clients[%d].match", j), "export %s: %w", e.Name, err)
			}
		}
	}
	return nil
}

// statSecret refuses a secrets file that others can read: its readers can log in.
func statSecret(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("secrets file: %w", err)
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("secrets file %s can be read by others (mode %04o); run chmod 600 on it", path, fi.Mode().Perm())
	}
	return nil
}
