package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// How long a stop takes beyond the drain, and how long media have after that. Both matter only to what hangs. Tests change them.
var (
	stopLimit  = 5 * time.Second
	mediaLimit = time.Second
)

// changeLock is a mutex whose waiters can give up: a change holds it while it waits for a medium, which may never answer.
type changeLock chan struct{}

func (l changeLock) Lock()   { l <- struct{}{} }
func (l changeLock) Unlock() { <-l }

// lock waits as long as ctx lasts.
func (l changeLock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// closeAll takes down what is there: sessions before volumes, so that no command meets a closed device. It waits for a medium that
// hangs until ctx ends. A change that waits for a medium does not keep the rest from being closed in order.
func (d *Daemon) closeAll(ctx context.Context) error {
	d.lifeEnd()
	d.mu.Lock()
	d.serving, d.ended = false, true
	d.mu.Unlock()
	var errs []error
	errs = append(errs, d.closeSessions(ctx)...)
	faces := d.closeFaces(ctx)
	// A change that is not beyond recall by now ends without having done anything.
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	if err := d.changeMu.lock(wait); err != nil {
		errs = append(errs, errors.New("a change that was under way has not ended: a medium does not answer"))
	} else {
		defer d.changeMu.Unlock()
		faces = d.closeFaces(ctx) // what it opened, too
	}
	errs = append(errs, faces)
	for _, l := range d.given {
		errs = append(errs, l.Close())
	}
	errs = append(errs, d.closeVolumes(ctx))
	if errors.Is(faces, errFilesStay) { // devices would wait for the connections
		return errors.Join(errs...)
	}
	if d.device != nil {
		errs = append(errs, d.device.Close())
	}
	for _, a := range d.adapters {
		errs = append(errs, a.close())
	}
	return errors.Join(errs...)
}

// closeSessions ends the sessions of all protocols, at the same time: each has the drain for its commands.
func (d *Daemon) closeSessions(ctx context.Context) []error {
	errs := make([]error, 2)
	var wg sync.WaitGroup
	if d.server != nil {
		wg.Go(func() { errs[0] = d.server.Close(ctx) })
	}
	if d.srp != nil {
		wg.Go(func() { errs[1] = d.srp.Close(ctx) })
	}
	wg.Wait()
	return errs
}

// closeFaces closes portals and the file service; both may be closed already.
func (d *Daemon) closeFaces(ctx context.Context) error {
	d.mu.Lock()
	f := d.files
	for _, p := range d.portals {
		p.close()
	}
	for _, p := range d.srpPortals {
		p.close()
	}
	d.mu.Unlock()
	d.portalWG.Wait()
	if f == nil {
		return nil
	}
	return f.finish(ctx)
}

func (d *Daemon) closeVolumes(ctx context.Context) error {
	d.mu.Lock()
	volumes := slices.Collect(maps.Values(d.volumes))
	d.mu.Unlock()
	failed := make(chan error, len(volumes))
	for _, v := range volumes {
		d.closing.Go(func() { failed <- v.close() })
	}
	select {
	case <-d.closing.None():
	case <-afterwards(ctx, mediaLimit):
		return errors.New("a volume was not closed in order: its medium does not answer")
	}
	var errs []error
	for range volumes {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}

// waitFor waits for wg until some time after ctx has ended.
func waitFor(ctx context.Context, wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-afterwards(ctx, mediaLimit):
	}
}

// afterwards is closed a while after ctx has ended.
func afterwards(ctx context.Context, while time.Duration) <-chan struct{} {
	ch := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(while, func() { close(ch) }) })
	return ch
}

func (v *volume) close() error {
	v.endSpace()
	v.lu.Close()
	if err := v.dev.Close(); err != nil {
		return fmt.Errorf("volume %s: %w", v.cfg.Name, err)
	}
	return nil
}

// close ends a portal, whose address is free then; the goroutine that serves it closes its listener once more.
func (p *portal) close() {
	if p.stop != nil {
		p.stop()
	}
	_ = p.l.Close()
}
