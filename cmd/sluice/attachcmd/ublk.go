package attachcmd

import (
	"context"
	"errors"

	"github.com/sluice-storage/sluice/initiator/attach/ublk"
	"github.com/sluice-storage/sluice/initiator/block"
)

// serveUblk shows a volume as /dev/ublkbN until the context ends.
func serveUblk(ctx context.Context, v *block.Volume, r *Record, readOnly bool, ready func() error) error {
	d, err := ublk.Start(ctx, v, ublk.Options{ReadOnly: readOnly})
	if err != nil {
		return err
	}
	r.Index, r.Path = d.Index(), d.Path()
	if err := ready(); err != nil {
		return errors.Join(err, d.Stop())
	}
	select {
	case <-ctx.Done():
		return errors.Join(d.Stop(), v.Flush(context.WithoutCancel(ctx)))
	case <-d.Gone():
		return errors.Join(errors.New("the kernel dropped the device"), d.Stop())
	}
}
