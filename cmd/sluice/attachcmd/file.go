package attachcmd

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/sluice-storage/sluice/initiator/attach/fusefile"
	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/initiator/block"
)

// fileFace is a volume as one file, by FUSE.
type fileFace struct {
	shown
	m         *fusefile.Mounted
	dir, path string
}

func showFile(v *block.Volume, r *Record, readOnly bool) (face, error) {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, err
	}
	m, err := fusefile.Mount(r.Dir, filepath.Base(r.Path), v, readOnly)
	if err != nil {
		return nil, errors.Join(err, gone(os.Remove(r.Dir)))
	}
	return &fileFace{shown{v}, m, r.Dir, r.Path}, nil
}

func (f *fileFace) users() error {
	if f.m.Opens() > 0 {
		return refused("%s is in use: it is open", f.path)
	}
	return nil
}

func (f *fileFace) gone() <-chan struct{} { return f.m.Gone() }

func (f *fileFace) remove(force bool) error {
	err := f.m.Unmount(force)
	if errors.Is(err, fusemount.ErrBusy) {
		return &staysError{refused("%s is in use: %w", f.path, err)}
	}
	return errors.Join(err, gone(os.Remove(f.dir)))
}
