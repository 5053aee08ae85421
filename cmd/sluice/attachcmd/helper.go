package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
)

// serve attaches a volume, or mounts an export, and serves it until its owner ends it. ready is called with the complete record.
func (o *options) serve(ctx context.Context, url string, own *owner, ready func() error) error {
	shareProcessors()
	r := own.r
	if r.Face == faceDir {
		return o.serveExport(ctx, url, own, ready)
	}
	begun := false
	serve := func(v *block.Volume) error {
		begun = true
		if err := r.claim(v.Unit().ID, o.readOnly); err != nil {
			return err
		}
		f, err := o.show(ctx, v, r)
		if err != nil {
			return err
		}
		own.shows(v)
		watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		if err := ready(); err != nil {
			return errors.Join(err, f.remove(true))
		}
		wg.Go(func() { watchPaths(watching, v, r) })
		return own.hold(f)
	}
	return o.byNearest(ctx, url, func() bool { return begun }, func(url string) error { return o.conn.WithVolume(ctx, url, serve) })
}

// show makes the face of a volume.
func (o *options) show(ctx context.Context, v *block.Volume, r *Record) (face, error) {
	switch r.Face {
	case faceSocket:
		return showSocket(v, r, o.readOnly)
	case faceFile:
		return showFile(v, r, o.readOnly)
	case faceUblk:
		return showUblk(ctx, v, r, o.readOnly)
	}
	return showDevice(v, r, o.readOnly, kernelTimeout(o.conn.Reconnect))
}

// shown is what the faces of a volume have in common.
type shown struct{ v *block.Volume }

func (s shown) clean() bool { return !s.v.Unflushed() }

func (s shown) settle(ctx context.Context) error {
	err := s.v.Flush(ctx)
	if errors.Is(err, blockdev.ErrClosed) {
		return nil // the end by force has told
	}
	return err
}

func (s shown) cut() { _ = s.v.Close() } // what is out ends with ErrClosed

// shareProcessors leaves half of the processors to the program that reads and writes: with each request the two take turns.
// On two, fio through the NBD socket over iSER to a target on the same machine cost 56-64 us of this helper's and the
// target's time for a write of 4 KiB with both and 46-52 with one, 215-240 and 185-205 for one of 128 KiB, for that much fewer
// threads wake each other up. GOMAXPROCS in the environment overrides it.
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
