package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/target/admin"
)

// cloneFile makes the file to share all blocks of a volume's file (ioctl_ficlone(2)): one moment's content, at once and
// at no cost. A file system that cannot share gets no slow copy instead, for that would not be one moment's.
func (d *Daemon) cloneFile(ctx context.Context, v *volume, to VolumeConfig) (*madeFile, string, error) {
	name := v.cfg.Name
	if !v.cfg.engine().clones {
		return nil, "", &admin.Error{Kind: admin.Conflict, Msg: "only volumes of the file engine can be cloned"}
	}
	if v.why != nil {
		return nil, "", &admin.Error{Kind: admin.Conflict, Msg: "volume " + name + " is not served: " + v.why.Error()}
	}
	if why := v.lu.Unerased(); why != "" {
		return nil, "", &admin.Error{Kind: admin.Conflict, Msg: "volume " + name + " cannot be cloned now: " + why}
	}
	if v.cfg.Thick {
		return nil, "", &admin.Error{Kind: admin.Conflict, Msg: "volume " + name + " is thick: blocks that a clone shares would have to find room when they are written; copy it with sluice cp instead"}
	}
	cloner, ok := v.dev.(blockdev.Cloner)
	if !ok {
		return nil, "", &admin.Error{Kind: admin.Conflict, Msg: "volume " + name + " cannot share its blocks"}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	if err := blockdev.Sync(ctx, v.dev); err != nil {
		return nil, "", fmt.Errorf("flush volume %s: %w", name, err)
	}
	made, err := d.makeVolume(to, func(f *os.File) error { return cloner.Clone(f) })
	if errors.Is(err, blockdev.ErrUnsupported) {
		return nil, "", &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("the file system of %s cannot share blocks (btrfs and xfs can); copy the volume with sluice cp instead", to.Path)}
	}
	return made, "sharing its blocks", err
}

// promiseAs gives the configuration of a clone what its origin is and promises to those who use it: all but what it is known by. A
// snapshot of LVM or ZFS behaves like its origin too, and has a serial number of its own.
func (v *VolumeConfig) promiseAs(o *VolumeConfig) {
	as := keysOf(o)
	for i, k := range keysOf(v) {
		if k.Tag.Get("clone") == "same" {
			k.value.Set(as[i].value)
		}
	}
	v.Erase = o.Erase && !v.ReadOnly
	if o.Limits != nil {
		l := *o.Limits
		v.Limits = &l
	}
}
