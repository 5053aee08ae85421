package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/nbd"
	"github.com/sluice-storage/sluice/initiator/attach/nbdlink"
	"github.com/sluice-storage/sluice/initiator/block"
)

// kernelConns is the number of connections of a /dev/nbdN: what a queue a processor needs, and no more than saturates a
// volume.
const kernelConns = 4

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
	var ends []<-chan error
	var ours []net.Conn
	drop := func() error {
		var err error
		for _, c := range ours {
			_ = c.Close() // its serving goroutine closes it too
		}
		for _, e := range ends {
			err = errors.Join(err, <-e)
		}
		ours, ends = nil, nil
		return err
	}
	defer func() { _ = drop() }()
	pairs := func(n int) ([]*os.File, error) {
		switch { // into the helper's log
		case n < kernelConns:
			fmt.Fprintln(os.Stderr, "sluice: kernel threads cannot be seen from here (a container?), so the device has one connection")
		case len(ours) > 0:
			fmt.Fprintln(os.Stderr, "sluice: the kernel does not receive on all connections of the device; making it anew")
		}
		if err := drop(); err != nil {
			return nil, err
		}
		var kernel []*os.File
		for range n {
			k, c, err := socketPair()
			if err != nil {
				for _, k := range kernel {
					err = errors.Join(err, k.Close())
				}
				return nil, err
			}
			kernel, ours, ends = append(kernel, k), append(ours, c), append(ends, s.Attach(c))
		}
		return kernel, nil
	}
	g := v.Geometry()
	index, err := nbdlink.Open(nbdlink.Config{Size: g.Size, Block: g.Logical, Flags: s.Flags(), Timeout: timeout, Backend: r.backend()}, kernelConns, pairs)
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
			ends = nil
			return errors.Join(err, v.Flush(context.WithoutCancel(ctx)))
		case err = <-ends[0]:
			ends = ends[1:]
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
