package fusefile

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/attach/errno"
	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/mem"
)

// lookEvery is how often a process that waits is looked at, once it has got a signal.
const lookEvery = 250 * time.Millisecond

// call is one request of the kernel's: a context that ends when the process that waits is killed, and not for other signals.
type call struct {
	context.Context
	end  context.CancelFunc
	from context.Context
	look *time.Timer
}

func begin(from context.Context) *call {
	c := &call{from: from}
	c.Context, c.end = context.WithCancel(context.Background())
	if from.Done() != nil {
		c.look = time.AfterFunc(lookEvery, c.watch)
	}
	return c
}

func (c *call) done() {
	c.end()
	if c.look != nil {
		c.look.Stop()
	}
}

func (c *call) watch() {
	for {
		select {
		case <-c.from.Done():
			if caller, ok := fuse.FromContext(c.from); ok && fusemount.Dying(caller.Pid) {
				c.end()
			}
		default:
		}
		select {
		case <-c.Done():
			return
		case <-time.After(lookEvery):
		}
	}
}

// do is one operation of a request.
func (f *file) do(from context.Context, r *blockdev.Request) error {
	c := begin(from)
	defer c.done()
	return f.v.Do(c, r)
}

func number(err error) syscall.Errno { return errno.Of(err) }

// buffer gets memory, and waits for it: one request at a time waits for the pool, which serves its waiters in order.
func (f *file) buffer(ctx context.Context, n int) (*mem.Buf, error) {
	b, err := f.quota.Get(n)
	if !errors.Is(err, mem.ErrNoMemory) {
		return b, err
	}
	c := begin(ctx)
	defer c.done()
	select {
	case f.turn <- struct{}{}:
	case <-c.Done():
		return nil, c.Err()
	}
	defer func() { <-f.turn }()
	for {
		b, err := f.quota.Get(n)
		if !errors.Is(err, mem.ErrNoMemory) {
			return b, err
		}
		there := make(chan struct{})
		f.quota.Wait(func() { close(there) })
		select {
		case <-there:
		case <-c.Done():
			f.quota.Wait(nil)
			return nil, c.Err()
		}
	}
}
