package attachcmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/initiator/attach/nbd"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/unixsock"
)

// socketFace is a volume on a unix socket, by the NBD protocol.
type socketFace struct {
	shown
	s    *nbd.Server
	path string
	stop context.CancelFunc
	done chan struct{}
	err  error // of Serve, when done is closed
}

func showSocket(v *block.Volume, r *Record, readOnly bool) (face, error) {
	l, err := unixsock.Listen(r.Path) // only its owner may connect: who can read and write the volume
	var taken *unixsock.TakenError
	if errors.As(err, &taken) {
		return nil, refused("%w; choose another with --socket", err)
	}
	if err != nil {
		return nil, err
	}
	f := &socketFace{shown: shown{v}, s: nbd.New(v, nbd.Options{Name: r.Name, ReadOnly: readOnly}), path: r.Path, done: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() {
		defer close(f.done)
		f.err = f.s.Serve(ctx, l)
	}()
	return f, nil
}

func (f *socketFace) users() error {
	if n := f.s.Conns(); n > 0 {
		return refused("%s is in use: %d connections are open", f.path, n)
	}
	return nil
}

func (f *socketFace) gone() <-chan struct{} { return f.done }

func (f *socketFace) remove(force bool) error {
	if !force && !f.s.Retire() {
		if err := f.users(); err != nil {
			return &staysError{err}
		}
		return &staysError{fmt.Errorf("%s is in use", f.path)}
	}
	f.stop()
	<-f.done
	return f.err
}
