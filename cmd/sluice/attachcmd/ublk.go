package attachcmd

import (
	"context"
	"errors"

	"github.com/sluice-storage/sluice/initiator/attach/ublk"
	"github.com/sluice-storage/sluice/initiator/block"
)

// ublkFace is a volume as /dev/ublkbN.
type ublkFace struct {
	shown
	d *ublk.Device
}

func showUblk(ctx context.Context, v *block.Volume, r *Record, readOnly bool) (face, error) {
	d, err := ublk.Start(ctx, v, ublk.Options{ReadOnly: readOnly})
	if err != nil {
		return nil, err
	}
	r.Index, r.Path = d.Index(), d.Path()
	return &ublkFace{shown{v}, d}, nil
}

func (f *ublkFace) users() error          { return deviceUsers(f.d.Path()) }
func (f *ublkFace) gone() <-chan struct{} { return f.d.Gone() }

func (f *ublkFace) remove(force bool) error {
	dropped := false
	select {
	case <-f.d.Gone():
		dropped = true
	default:
	}
	err := f.d.Stop(force)
	switch {
	case errors.Is(err, ublk.ErrBusy):
		return &staysError{deviceUsers(f.d.Path())}
	case dropped:
		return errors.Join(errors.New("the kernel dropped the device"), err)
	}
	return err
}
