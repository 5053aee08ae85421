package files

import (
	"context"
	"errors"
	"io"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// onlyReader hides the other methods, so that io.CopyBuffer uses its buffer.
type onlyReader struct{ io.Reader }

// bound is a file that is read or written from its beginning until the context ends: a command that was interrupted does not wait
// for a server that is away. It has no other methods, so that io.CopyBuffer uses its buffer.
type bound struct {
	ctx context.Context
	f   *nfs.File
	pos int64
}

// Read reads what comes next.
func (b *bound) Read(p []byte) (int, error) {
	n, err := b.f.ReadAtContext(b.ctx, p, b.pos)
	b.pos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Write writes what comes next.
func (b *bound) Write(p []byte) (int, error) {
	n, err := b.f.WriteAtContext(b.ctx, p, b.pos)
	b.pos += int64(n)
	return n, err
}

// Close makes durable what was written.
func (b *bound) Close() error { return b.f.SyncContext(b.ctx) }
