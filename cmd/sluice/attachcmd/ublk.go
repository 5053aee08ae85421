package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

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
	f := &ublkFace{shown{v}, d}
	go f.watch(v.Geometry().Size)
	return f, nil
}

// watch tells the kernel when the target makes the volume larger.
func (f *ublkFace) watch(size int64) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-f.d.Gone():
			return
		case <-tick.C:
		}
		if n := f.v.Geometry().Size; n != size {
			if err := f.d.Resize(n); err != nil {
				fmt.Fprintln(os.Stderr, "sluice:", err) // the helper's log
			}
			size = n
		}
	}
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
	case errors.Is(err, ublk.ErrHeld):
		return &staysError{err}
	case dropped:
		return errors.Join(errors.New("the kernel dropped the device"), err)
	}
	return err
}
