package fusedir

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"syscall"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// What is opened is there: an open counts before it asks the server about the file, and a removal keeps opens of that file, and of no
// other, waiting until it is done. So the one that comes second sees the other: a removal renames what is open, and an open finds
// what is gone gone.

// enter counts an open that is beginning.
func (f *dirFS) enter(ctx context.Context, n *node, c *nfs.Caller, name string) error {
	for {
		n.mu.Lock()
		going := n.going
		if going == nil {
			n.opens++
			if n.file == nil {
				n.file = c.Open(n.fh, name)
			}
			n.mu.Unlock()
			return nil
		}
		n.mu.Unlock()
		select {
		case <-going:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// claim keeps opens of a file waiting until the returned function is called.
func (n *node) claim(ctx context.Context) (release func(gone bool), err error) {
	for {
		n.mu.Lock()
		going := n.going
		if going == nil {
			mine := make(chan struct{})
			n.going = mine
			n.mu.Unlock()
			return func(gone bool) {
				n.mu.Lock()
				n.going = nil
				n.gone = n.gone || gone
				n.mu.Unlock()
				close(mine)
			}, nil
		}
		n.mu.Unlock()
		select {
		case <-going:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// left ends an open, and reports whether it was the last.
func (n *node) left() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opens--
	return n.opens == 0
}

// lastLeft makes durable what a mapping wrote after the last close, and removes a file that was only kept for who had it open.
func (f *dirFS) lastLeft(ctx context.Context, n *node, c *nfs.Caller) error {
	if err := f.syncNode(ctx, c, n); err != nil {
		return err
	}
	release, err := n.claim(ctx)
	if err != nil {
		return err
	}
	n.mu.Lock()
	again := n.opens > 0
	name, dir, by := n.hidden, n.hiddenIn, n.hiddenBy
	n.mu.Unlock()
	if again {
		release(false)
		return nil
	}
	if name != "" {
		if err = by.Remove(ctx, dir, name, false); errors.Is(err, nfs.ErrNoEntry) {
			err = nil // another has removed it
		}
	}
	if err == nil {
		n.mu.Lock()
		n.file, n.hidden = nil, ""
		n.mu.Unlock()
	}
	release(name != "" && err == nil)
	return err
}

// displace does what takes a name from its file: a removal, or a rename onto it. A file that is open here and has no other name is
// renamed before; was says that this is so. same gives the file that is renamed onto itself, which does nothing (rename(2)).
func (f *dirFS) displace(ctx context.Context, c *nfs.Caller, dir []byte, name string, same func() ([]byte, error), do func(was bool) error) error {
	o, err := c.Lookup(ctx, dir, name)
	if err != nil {
		return err
	}
	if same != nil {
		if fh, err := same(); err != nil {
			return err
		} else if string(fh) == string(o.FH) {
			return do(false)
		}
	}
	n := f.nodes.ref(o) // it may be looked up and opened meanwhile
	defer f.nodes.forget(n.id, 1)
	if n.dir {
		return do(false)
	}
	release, err := n.claim(ctx)
	if err != nil {
		return err
	}
	n.mu.Lock()
	open := n.opens > 0 && n.hidden == "" && o.Attr.Nlink <= 1
	n.mu.Unlock()
	if !open {
		err := do(false)
		release(err == nil && o.Attr.Nlink <= 1)
		return err
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	to := ".nfs" + hex.EncodeToString(b[:])
	if err = c.Rename(ctx, dir, name, dir, to); err == nil {
		n.mu.Lock()
		n.hidden, n.hiddenIn, n.hiddenBy = to, dir, c
		n.mu.Unlock()
	}
	release(false)
	if err != nil {
		return err
	}
	return do(true)
}

// stale is what the kernel is told of a file that was removed while it was made: it looks the name up again.
func (n *node) stale() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone {
		return syscall.ESTALE
	}
	return nil
}
