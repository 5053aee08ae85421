package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/fusefile"
	"github.com/sluice-storage/sluice/initiator/attach/nbd"
	"github.com/sluice-storage/sluice/initiator/attach/nbdlink"
	"github.com/sluice-storage/sluice/initiator/block"
)

// kernelConns is the number of connections of a /dev/nbdN: what a queue a processor needs, and no more than saturates a
// volume.
const kernelConns = 4

// serve attaches a volume, or mounts an export, and serves it until the context ends. ready is called with the complete
// record.
func (o *options) serve(ctx context.Context, url string, r *Record, ready func() error) error {
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
	if c, err := net.DialTimeout("unix", r.Path, time.Second); err == nil {
		return errors.Join(refused("%s is in use; choose another with --socket", r.Path), c.Close())
	}
	if err := os.Remove(r.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	old := unix.Umask(0o177) // who can connect can read and write the volume
	l, err := net.Listen("unix", r.Path)
	unix.Umask(old)
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

// kernelTimeout is when the kernel may give a request of its own up. Left alone it does after 30 s: it drops the connection
// and sends the request again on another, while the first is still on its way to a target that is slow or away, and may
// land after what was written since. So the kernel waits longer than the initiator's own limit; its timers, in
// milliseconds at most, end at 24 days.
func kernelTimeout(limit time.Duration) time.Duration {
	const margin, longest = 10 * time.Minute, 20 * 24 * time.Hour
	switch {
	case limit == 0:
		return margin + time.Minute // the initiator's default
	case limit < 0 || limit > longest-margin:
		return longest
	}
	return limit.Truncate(time.Second) + margin
}

func serveDevice(ctx context.Context, v *block.Volume, r *Record, readOnly bool, timeout time.Duration, ready func() error) error {
	s := nbd.New(v, nbd.Options{Name: r.Name, ReadOnly: readOnly})
	var kernel []*os.File
	var ends []<-chan error
	var ours []net.Conn
	defer func() {
		for _, c := range ours {
			_ = c.Close() // its serving goroutine closes it too
		}
	}()
	for range kernelConns {
		k, c, err := socketPair()
		if err != nil {
			return err
		}
		kernel, ours, ends = append(kernel, k), append(ours, c), append(ends, s.Attach(c))
	}
	g := v.Geometry()
	index, err := nbdlink.Connect(nbdlink.Config{Sockets: kernel, Size: g.Size, Block: g.Logical, Flags: s.Flags(), Timeout: timeout, Backend: r.backend()})
	for _, k := range kernel {
		err = errors.Join(err, k.Close())
	}
	if err != nil {
		return err
	}
	r.Index, r.Path = index, fmt.Sprintf("/dev/nbd%d", index)
	err = ready()
	tick := time.NewTicker(time.Second) // the target may make the volume larger; the kernel has to be told
	defer tick.Stop()
	size := g.Size
	for err == nil {
		select {
		case <-ctx.Done():
			err = nbdlink.Disconnect(index)
			for _, e := range ends {
				err = errors.Join(err, <-e)
			}
			return errors.Join(err, v.Flush(context.WithoutCancel(ctx)))
		case err = <-ends[0]:
			return errors.Join(errors.New("the kernel dropped the device"), err)
		case <-tick.C:
			if n := v.Geometry().Size; n != size {
				size, err = n, nbdlink.Resize(index, n, r.backend())
			}
		}
	}
	return errors.Join(err, nbdlink.Disconnect(index))
}

func socketPair() (*os.File, net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	k, f := os.NewFile(uintptr(fds[0]), "nbd-kernel"), os.NewFile(uintptr(fds[1]), "nbd-server")
	c, err := net.FileConn(f) // a copy of the descriptor
	err = errors.Join(err, f.Close())
	if err != nil {
		return nil, nil, errors.Join(err, k.Close())
	}
	return k, c, nil
}
