package daemon

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// planFiles opens the file service when the first export comes, and otherwise sees whether the exports could be opened. With all, which
// takes a change back, those that cannot are left out, as at a start.
func (d *Daemon) planFiles(next *Config, p *plan, all bool) (err error) {
	switch {
	case d.files == nil && next.Files != nil && d.filesBefore != nil && !d.filesBefore.hasEnded():
		return errFilesStay
	case d.files == nil:
		p.files, p.offer, err = d.openFiles(next, all)
	case next.Files != nil && (len(d.absent) > 0 || !same(d.cfg.Exports, next.Exports)):
		p.offer, err = d.offered(next, all, d.files.nfs.Check)
	}
	return err
}

// applyFiles makes the change of the file service: it comes with the first export, unless the file names its addresses, and goes
// with the last.
func (d *Daemon) applyFiles(ctx context.Context, next *Config, p *plan) error {
	switch {
	case p.files != nil:
		d.mu.Lock()
		d.files = p.files
		d.settleOfferLocked(p.offer)
		d.mu.Unlock()
		return nil
	case d.files == nil:
		return nil
	case next.Files == nil:
		d.filesBefore = d.files
		d.mu.Lock()
		d.files = nil
		d.settleOfferLocked(nil)
		d.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, closeLimit)
		defer cancel()
		if err := d.filesBefore.finish(ctx); err != nil {
			d.log.Warn("files not closed in order", zap.Error(err))
		}
		d.log.Info("files closed", zap.String("why", "the last export is gone"))
		return nil
	case p.offer != nil:
		if err := d.files.nfs.SetExports(p.offer.exports...); err != nil {
			return err
		}
		d.mu.Lock()
		d.settleOfferLocked(p.offer)
		d.mu.Unlock()
		d.files.rpc.Reconsider(d.files.nfs.Entitled)
	}
	return nil
}

// errFilesStay says that the file service could not be closed.
var errFilesStay = errors.New("the file service has not ended: calls to an export's medium that does not answer go on; they end with it")

// finish begins close, once, and waits for it until ctx ends. Behind a medium that hangs, close goes on by itself.
func (f *files) finish(ctx context.Context) error {
	f.endOnce.Do(func() {
		f.ended = make(chan struct{})
		go func() {
			defer close(f.ended)
			f.failed = f.close(ctx)
		}()
	})
	select {
	case <-f.ended:
		return f.failed
	case <-afterwards(ctx, time.Second):
		return errFilesStay
	}
}

func (f *files) hasEnded() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}
