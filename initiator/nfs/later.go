package nfs

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// do makes a call of the NFS program. A server that answers NFS3ERR_JUKEBOX has done nothing yet and means to: it is asked
// again until it does, or until the context ends (RFC 1813 section 2.6).
func (v *FS) do(ctx context.Context, c *rpcclient.Call) error {
	for pause := laterFirst; ; pause = min(2*pause, laterMost) {
		if err := v.rpc.Do(ctx, c); err != nil {
			return err
		}
		res := xdr.NewReader(c.Results)
		if nfs3.Status(res.Uint32()) != nfs3.ErrJukebox {
			return nil
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w: %w", context.Cause(ctx), ErrJukebox)
		}
	}
}
