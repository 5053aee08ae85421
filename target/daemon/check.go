package daemon

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
)

// placeError is what Check found, with the YAML path of the value it is about.
type placeError struct {
	path string
	err  error
}

func (e *placeError) Error() string { return e.err.Error() }
func (e *placeError) Unwrap() error { return e.err }

func at(path, format string, a ...any) error { return &placeError{path, fmt.Errorf(format, a...)} }

// Check looks for what no parser can see: names used twice, volumes that do not exist, sizes that make no sense. It
// touches no file but secrets, whose permissions it checks.
func (c *Config) Check() error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		return at("$.log.level", "log.level %q is none of debug, info, warn, error", c.Log.Level)
	}
	if !slices.Contains([]string{"console", "json"}, c.Log.Format) {
		return at("$.log.format", "log.format %q is neither console nor json", c.Log.Format)
	}
	if c.Memory < 32<<20 {
		return at("$.memory", "memory %v is too little: 32MiB at least", c.Memory)
	}
	if c.Limits.Connections < 1 || c.Limits.Connections > 65536 {
		return at("$.limits.connections", "limits.connections %d is not from 1 to 65536", c.Limits.Connections)
	}
	if c.Limits.PerHost < 1 || c.Limits.PerHost > c.Limits.Connections {
		return at("$.limits.per_host", "limits.per_host %d is not from 1 to limits.connections, which is %d", c.Limits.PerHost, c.Limits.Connections)
	}
	if a := c.Admin; a.Listen != "" {
		if !listens(a.Listen) {
			return at("$.admin.listen", "admin.listen %q is not host:port (IPv6 as [::1]:3264)", a.Listen)
		}
		if a.Cert == "" || a.Key == "" || a.ClientCA == "" {
			return at("$.admin", "admin.listen needs cert, key and client_ca: whoever reaches it can destroy volumes")
		}
	}
	for _, check := range []func() error{c.checkFabric, c.checkPortals, c.checkVolumes, c.checkTargets, c.checkExports} {
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
	if c.managed == nil || c.taken["portal "+addr] || !slices.ContainsFunc(c.managed.Portals, func(p PortalConfig) bool { return p.Address == addr }) {
		return false
	}
	_, port, err := net.SplitHostPort(addr)
	return err == nil && port == ""
}

func (c *Config) checkPortals() error {
	seen := map[string]bool{}
	for i, p := range c.Portals {
		where := fmt.Sprintf("$.portals[%d].address", i)
		if !listens(p.Address) && !c.byChance(p.Address) {
			return at(where, "portal address %q is not host:port (IPv6 as [::1]:3260)", p.Address)
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

var engines = []string{"file", "mem", "null", "delay"}

func (c *Config) checkVolumes() error {
	seen, paths, serials, naas := map[string]bool{}, map[string]string{}, map[string]string{}, map[string]string{}
	for i, v := range c.Volumes {
		at := func(key, format string, a ...any) error {
			return at(fmt.Sprintf("$.volumes[%d]%s", i, key), format, a...)
		}
		switch {
		case v.Name == "":
			return at("", "a volume has no name")
		case strings.ContainsAny(v.Name, "/\x00 \t\n"):
			return at(".name", "volume name %q may hold no slash and no white space", v.Name)
		case seen[v.Name]:
			return at(".name", "volume %s is named twice", v.Name)
		case !slices.Contains(engines, v.Engine):
			return at(".engine", "volume %s: engine %q is none of %s", v.Name, v.Engine, strings.Join(engines, ", "))
		case v.Block != 512 && v.Block != 4096:
			return at(".block", "volume %s: block %d is neither 512 nor 4096", v.Name, v.Block)
		case v.Physical < v.Block || v.Physical&(v.Physical-1) != 0:
			return at(".physical", "volume %s: physical %d is no power of two of at least the block size", v.Name, v.Physical)
		case v.Size < 0 || int64(v.Size)%int64(v.Block) != 0:
			return at(".size", "volume %s: size %v is no whole number of blocks of %d bytes", v.Name, v.Size, v.Block)
		case v.Engine != "file" && v.Size == 0:
			return at("", "volume %s: the %s engine needs a size", v.Name, v.Engine)
		case v.Atomic && v.Engine != "file":
			return at(".atomic", "volume %s: the %s engine keeps nothing across a loss of power, so no atomic writes either", v.Name, v.Engine)
		case v.Engine != "file" && (v.LowSpace > 0 || v.Thick):
			return at("", "volume %s: low_space and thick are about the file system below a file, which the %s engine has not", v.Name, v.Engine)
		case v.Serial != "" && !printable(v.Serial, 32):
			return at(".serial", "volume %s: a serial has 32 printable characters at most", v.Name)
		case v.Serial != "" && serials[v.Serial] != "":
			return at(".serial", "volumes %s and %s have the same serial %s: initiators would take them for one disk", serials[v.Serial], v.Name, v.Serial)
		case v.Vendor != "" && !printable(v.Vendor, 8):
			return at(".vendor", "volume %s: a vendor has 8 printable characters at most", v.Name)
		case v.Product != "" && !printable(v.Product, 16):
			return at(".product", "volume %s: a product has 16 printable characters at most", v.Name)
		}
		serials[v.Serial] = v.Name
		if v.NAA != "" {
			b, err := parseNAA(v.NAA)
			if err != nil {
				return at(".naa", "volume %s: %w", v.Name, err)
			}
			if other := naas[string(b)]; other != "" {
				return at(".naa", "volumes %s and %s have the same naa %s: initiators would take them for one disk", other, v.Name, v.NAA)
			}
			naas[string(b)] = v.Name
		}
		seen[v.Name] = true
		if v.Engine == "file" {
			if other := paths[v.Path]; other != "" {
				return at(".path", "volumes %s and %s have the same path %s", other, v.Name, v.Path)
			}
			paths[v.Path] = v.Name
		}
	}
	for _, v := range c.Volumes {
		for _, own := range []string{v.Path + ".redo", beside(v.Path)} {
			if other := paths[own]; v.Engine == "file" && other != "" {
				return fmt.Errorf("volume %s: its path %s is where volume %s keeps what belongs to it; choose another", other, own, v.Name)
			}
		}
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
		if !slices.Contains([]string{"", "none", "implicit", "explicit", "both"}, t.ALUA) {
			return at(".alua", "target %s: alua %q is none of none, implicit, explicit, both", t.Name, t.ALUA)
		}
		if err := c.checkPortGroups(i, t); err != nil {
			return err
		}
		luns := map[uint16]bool{}
		for j, l := range t.LUNs {
			key := fmt.Sprintf(".luns[%d]", j)
			switch {
			case !volumes[l.Volume]:
				return at(key, "target %s: lun %d names volume %q, which is not configured", t.Name, l.LUN, l.Volume)
			case luns[l.LUN]:
				return at(key, "target %s: lun %d is mapped twice", t.Name, l.LUN)
			case l.LUN > 16383:
				return at(key, "target %s: lun %d is above 16383", t.Name, l.LUN)
			case used[l.Volume] != "":
				return at(key, "volume %s is mapped by %s and %s; a volume belongs to one LUN", l.Volume, used[l.Volume], t.Name)
			}
			luns[l.LUN], used[l.Volume] = true, t.Name
		}
		for j, i := range t.Initiators {
			if err := iscsi.CheckName(i.Name); err != nil {
				return at(fmt.Sprintf(".initiators[%d].name", j), "target %s: initiator %q: %w", t.Name, i.Name, err)
			}
		}
		if t.Auth != nil && t.Auth.SecretsFile == "" {
			return at(".auth", "target %s: auth needs secrets_file", t.Name)
		}
	}
	return nil
}

func (c *Config) checkPortGroups(i int, t TargetConfig) error {
	tags, ids, taken := map[uint16]bool{}, map[uint16]bool{}, map[uint16]uint16{}
	for _, p := range c.Portals {
		tags[p.Group] = true
	}
	for j, g := range t.PortGroups {
		at := func(key, format string, a ...any) error {
			return at(fmt.Sprintf("$.targets[%d].port_groups[%d]%s", i, j, key), "target %s: "+format, append([]any{t.Name}, a...)...)
		}
		_, err := scsi.ParseAccessState(g.State)
		switch {
		case t.ALUA == "none":
			return at("", "port groups need alua implicit, explicit or both")
		case g.Group == 0:
			return at("", "a port group needs a number (group: 1 to 65535)")
		case ids[g.Group]:
			return at(".group", "port group %d is there twice", g.Group)
		case err != nil:
			return at(".state", "port group %d: state %q is none of active/optimized, active/non-optimized, standby, unavailable", g.Group, g.State)
		case len(g.Portals) == 0:
			return at("", "port group %d has no portals: name the group tags of portals (portals: [1])", g.Group)
		}
		ids[g.Group] = true
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
	if f := c.Files; f != nil {
		for key, addr := range map[string]string{"tcp": f.TCP, "rdma": f.RDMA} {
			if addr != "none" && !listens(addr) {
				return at("$.files."+key, "files.%s %q is neither host:port nor none", key, addr)
			}
		}
		if !slices.Contains([]string{"none", "embedded", "system"}, f.Rpcbind) {
			return at("$.files.rpcbind", "files.rpcbind %q is none of none, embedded, system", f.Rpcbind)
		}
	}
	seen := map[string]bool{}
	for i, e := range c.Exports {
		at := func(key, format string, a ...any) error {
			return at(fmt.Sprintf("$.exports[%d]%s", i, key), format, a...)
		}
		switch {
		case e.Path == "":
			return at("", "an export has no path")
		case !strings.HasPrefix(e.Name, "/"):
			return at(".name", "export %s: name %q must begin with a slash", e.Path, e.Name)
		case seen[e.Name]:
			return at(".name", "export %s is named twice", e.Name)
		}
		seen[e.Name] = true
		for j, r := range e.Clients {
			if !slices.Contains([]string{"", "root", "all", "none"}, r.Squash) {
				return at(fmt.Sprintf(".clients[%d].squash", j), "export %s: squash %q is none of root, all, none", e.Name, r.Squash)
			}
		}
	}
	return nil
}

// statSecret refuses a secrets file that others can read: whoever reads it can log in.
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
