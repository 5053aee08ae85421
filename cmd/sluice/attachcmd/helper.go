package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/sluice-storage/sluice/initiator/attach/fusefile"
	"github.com/sluice-storage/sluice/initiator/attach/nbd"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/unixsock"
)

// serve attaches a volume, or mounts an export, and serves it until the context ends. ready is called with the complete
// record.
func (o *options) serve(ctx context.Context, url string, r *Record, ready func() error) error {
	shareProcessors()
	if r.Face == faceDir {
		return o.serveExport(ctx, url, r, ready)
	}
	readOnly := o.readOnly
	return o.conn.WithVolume(ctx, url, func(v *block.Volume) error {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		begin := ready
		ready := func() error {
			err := begin()
			if err == nil {
				wg.Go(func() { watchPaths(ctx, v, r) })
			}
			return err
		}
		switch r.Face {
		case faceSocket:
			return serveSocket(ctx, v, r, readOnly, ready)
		case faceFile:
			return serveFile(ctx, v, r, readOnly, ready)
		case faceUblk:
			return serveUblk(ctx, v, r, readOnly, ready)
		}
		return serveDevice(ctx, v, r, readOnly, kernelTimeout(o.conn.Reconnect), ready)
	})
}

// shareProcessors leaves half of the processors to the program that reads and writes: with each request the two take turns.
// On two, fio through the NBD socket over iSER to a target on the same machine cost 56-64 us of this helper's and the
// target's time for a write of 4 KiB with both and 46-52 with one, 215-240 and 185-205 for one of 128 KiB, for that much fewer
// threads wake each other up. Whoever sets GOMAXPROCS decides.
func shareProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
}

// watchEvery is how often the helper looks whether its target is there; a person reads the answer.
const watchEvery = 500 * time.Millisecond

// watchPaths keeps in the record whether the target can be reached, for sluice attachments to show.
func watchPaths(ctx context.Context, v *block.Volume, r *Record) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	was := ""
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			away := whyAway(v.Paths())
			if (away == "") == (was == "") {
				continue
			}
			was = away
			err := r.update(func(r *Record) {
				r.Away, r.AwaySince = away, now
				if away == "" {
					r.AwaySince = time.Time{}
				}
			})
			if away == "" {
				away = "the target is back"
			}
			fmt.Fprintln(os.Stderr, "sluice:", errors.Join(errors.New(away), err)) // the helper's log
		}
	}
}

// whyAway is empty while a path is up, and otherwise what is wrong with the last one that said.
func whyAway(ps []block.PathState) string {
	why := "the connection is lost"
	for _, p := range ps {
		if p.Up {
			return ""
		}
		if p.Err != nil {
			why = p.Err.Error()
		}
	}
	return why
}

func serveSocket(ctx context.Context, v *block.Volume, r *Record, readOnly bool, ready func() error) error {
	l, err := unixsock.Listen(r.Path) // only its owner may connect: who can read and write the volume
	var taken *unixsock.TakenError
	if errors.As(err, &taken) {
		return refused("%w; choose another with --socket", err)
	}
	if err != nil {
		return err
	}
	s := nbd.New(v, nbd.Options{Name: r.Name, ReadOnly: readOnly})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { done <- s.Serve(ctx, l) }()
	if err := ready(); err != nil {
		cancel()
		return errors.Join(err, <-done)
	}
	return errors.Join(<-done, v.Flush(context.WithoutCancel(ctx)))
}

func serveFile(ctx context.Context, v *block.Volume, r *Record, readOnly bool, ready func() error) error {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return err
	}
	s, err := fusefile.Mount(r.Dir, filepath.Base(r.Path), v, readOnly)
	if err != nil {
		return errors.Join(err, os.Remove(r.Dir))
	}
	if err := s.WaitMount(); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() { s.Wait(); close(gone) }()
	err = ready()
	if err == nil {
		select {
		case <-ctx.Done():
		case <-gone: // somebody unmounted it
		}
	}
	return errors.Join(err, unmountFUSE(s, gone), v.Flush(context.WithoutCancel(ctx)), os.Remove(r.Dir))
}

// unmountFUSE waits out whoever still has the file open, for a while.
func unmountFUSE(s *fuse.Server, gone <-chan struct{}) error {
	for range 50 {
		select {
		case <-gone:
			return nil
		default:
		}
		if err := s.Unmount(); err == nil {
			<-gone
			return nil
		}
		select {
		case <-gone:
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
	return errors.New("the file is still in use; close what uses it and detach again")
}
