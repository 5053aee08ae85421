package daemon

import (
	"fmt"

	"go.uber.org/zap"

	wiresrp "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
)

// openTargets makes the targets with what commands mapped into them.
func (d *Daemon) openTargets(cfg *Config) error {
	if users, _ := cfg.CheckSecrets(); len(users) > 0 { // each target says what is wrong with its own
		d.log.Warn("a user "+Unbound, zap.Strings("users", users))
	}
	d.stampMaps(cfg)
	d.dropStrangers(cfg, nil)
	for _, mp := range cfg.skipped {
		d.log.Error("a LUN that was mapped by command is not served: its volume is not configured, or is another LUN, or is another one than was mapped; unmap it, or map it again", zap.String("target", mp.Target), zap.Uint16("lun", mp.LUN), zap.String("volume", mp.Volume))
	}
	for _, t := range cfg.Targets {
		d.startTarget(t)
	}
	return nil
}

// scsiTarget makes a target device with its LUN map; nil for a target that only redirects.
func (d *Daemon) scsiTarget(t TargetConfig, unit func(volume string) *scsi.LogicalUnit) (*scsi.Target, error) {
	if t.Redirect != "" {
		return nil, nil
	}
	alua, err := scsi.ParseALUAMode(t.ALUA)
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", t.Name, err)
	}
	groups, err := t.portGroups()
	if err != nil {
		return nil, err
	}
	st, err := scsi.NewTarget(scsi.TargetOptions{
		Name: t.Name, Log: d.log, Memory: d.memory, StateDir: d.scsiState(), ALUA: alua, PortGroups: groups,
	})
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", t.Name, err)
	}
	for _, l := range t.LUNs {
		if err := st.AddLUN(l.LUN, unit(l.Volume)); err != nil {
			return nil, fmt.Errorf("target %s: lun %d: %w", t.Name, l.LUN, err)
		}
	}
	return st, nil
}

// targetForm is what the session layers serve of a configured target, without its device.
type targetForm struct {
	iscsi.Target
	srp *srpRule // nil where SRP does not offer it
}

// formOf is the form of a target.
func formOf(t TargetConfig) (targetForm, error) {
	auth, err := t.Auth.auth()
	if err != nil {
		return targetForm{}, fmt.Errorf("target %s: %w", t.Name, err)
	}
	out := targetForm{Target: iscsi.Target{Name: t.Name, Alias: t.Alias, Auth: auth}}
	out.srp, _ = t.overSRP()
	if len(t.Initiators) > 0 {
		out.Initiators = []iscsi.Initiator{}
	}
	for _, i := range t.Initiators {
		if !wiresrp.IsName(i.Name) {
			out.Initiators = append(out.Initiators, iscsi.Initiator{Name: i.Name, LUNs: i.LUNs})
		}
	}
	if t.Redirect != "" {
		out.Redirect = &iscsi.Redirect{Address: t.Redirect}
	}
	return out, nil
}

// startTarget serves a target at the start. One that cannot be served is its own problem: a wrong line in its secrets file does not
// take the others from their initiators.
func (d *Daemon) startTarget(t TargetConfig) {
	form, err := formOf(t)
	var st *scsi.Target
	if err == nil {
		st, err = d.scsiTarget(t, func(volume string) *scsi.LogicalUnit { return d.volumes[volume].lu })
	}
	if err == nil {
		err = d.addTarget(form, st)
	}
	if err != nil {
		d.notServed(t.Name, err)
		return
	}
	d.forms[t.Name] = form
}

// notServed notes why a target is not.
func (d *Daemon) notServed(name string, err error) {
	d.mu.Lock()
	again := d.unserved[name] == err.Error()
	d.unserved[name] = err.Error()
	d.mu.Unlock()
	if !again {
		d.log.Error("a target is not served; mend what is wrong and reload", zap.String("target", name), zap.Error(err))
	}
}

func (d *Daemon) addTarget(f targetForm, st *scsi.Target) error {
	t := f.Target
	t.SCSI = st
	if err := d.server.AddTarget(t); err != nil {
		return fmt.Errorf("target %s: %w", t.Name, err)
	}
	d.offerSRP(t.Name, f.srp, st)
	d.mu.Lock()
	d.targets[t.Name] = st
	d.mu.Unlock()
	return nil
}
