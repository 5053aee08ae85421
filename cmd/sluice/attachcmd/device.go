package attachcmd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/bdev"
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

// deviceFace is a volume as /dev/nbdN.
type deviceFace struct {
	shown
	index   int
	path    string
	backend string
	conns   []<-chan error
	done    chan struct{} // closed when the kernel has dropped a connection
	err     error
	stop    chan struct{}
}

func showDevice(v *block.Volume, r *Record, readOnly bool, timeout time.Duration) (face, error) {
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
	pairs := func(n int) ([]*os.File, error) {
		switch { // into the helper's log
		case n < kernelConns:
			fmt.Fprintln(os.Stderr, "sluice: kernel threads cannot be seen from here (a container?), so the device has one connection")
		case len(ours) > 0:
			fmt.Fprintln(os.Stderr, "sluice: the kernel does not receive on all connections of the device; making it again")
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
		return nil, errors.Join(err, drop())
	}
	r.Index, r.Path = index, fmt.Sprintf("/dev/nbd%d", index)
	f := &deviceFace{shown: shown{v}, index: index, path: r.Path, backend: r.backend(), conns: ends, done: make(chan struct{}), stop: make(chan struct{})}
	go f.watch(g.Size)
	return f, nil
}

// watch tells the kernel when the target makes the volume larger, and sees the kernel drop the device.
func (f *deviceFace) watch(size int64) {
	defer close(f.done)
	first := make(chan error, len(f.conns))
	for _, e := range f.conns {
		go func() { first <- <-e }()
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	ended := 0
	for ended == 0 {
		select {
		case err := <-first:
			f.err = errors.Join(f.err, err)
			ended++
		case <-tick.C:
			if n := f.v.Geometry().Size; n != size {
				if err := nbdlink.Resize(f.index, n, f.backend); err != nil {
					fmt.Fprintln(os.Stderr, "sluice:", err)
				}
				size = n
			}
		}
	}
	select {
	case <-f.stop: // it was told to: then all end
	default:
		f.err = errors.Join(errors.New("the kernel dropped the device"), f.err)
		return
	}
	for ; ended < len(f.conns); ended++ {
		f.err = errors.Join(f.err, <-first)
	}
}

func (f *deviceFace) users() error          { return deviceUsers(f.path) }
func (f *deviceFace) gone() <-chan struct{} { return f.done }

// remove holds the device for itself meanwhile, so that nothing is mounted on what goes.
func (f *deviceFace) remove(force bool) error {
	select {
	case <-f.done:
		return errors.Join(f.err, nbdlink.DisconnectOwn(f.index, f.backend))
	default:
	}
	if !force {
		d, err := bdev.Claim(f.path, settleLimit)
		if errors.Is(err, bdev.ErrBusy) {
			return &staysError{deviceUsers(f.path)}
		}
		if err != nil {
			return &staysError{err}
		}
		defer d.Close()
	}
	close(f.stop)
	if err := nbdlink.DisconnectOwn(f.index, f.backend); err != nil {
		return err
	}
	<-f.done
	return f.err
}

// deviceUsers says that a block device is in use.
func deviceUsers(path string) error {
	if inUse(path) {
		return refused("%s is in use: a file system on it is mounted, or another device stands on it", path)
	}
	return nil
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
