package filesystem

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/savefile"
)

// A file handle, as clients keep it:
//
//	0     version, 1
//	1     kind: 1 kernel handle, 2 inode and birth time
//	2..5  export ID
//	6     kernel handle type
//	7     n, length of the body
//	8..   body: the kernel's handle (name_to_handle_at), or inode, birth seconds and nanoseconds
//	8+n.. 16 bytes of HMAC-SHA256 over all before it, with a key that lives in the state directory
//
// A handle is a capability: its holder need not have walked the path. So it is authenticated, and a guessed
// inode number opens nothing.
const (
	// MaxHandle is the longest handle, bytes: what NFS version 3 takes.
	MaxHandle     = 64
	handleVersion = 1
	handleHead    = 8
	handleMAC     = 16
	maxHandleBody = MaxHandle - handleHead - handleMAC
	keyLen        = 32
)

type handleKind uint8

const (
	kindKernel handleKind = 1
	// kindInode is for daemons without CAP_DAC_READ_SEARCH and file systems without export operations. It survives
	// renames that go through this server, and others and restarts at the price of a walk over the export.
	kindInode handleKind = 2
)

var errForged = ErrBadHandle

// loadKey reads the handle key from dir, or makes one. Without a directory the key lasts as long as the process.
func loadKey(dir string) ([]byte, error) {
	key := make([]byte, keyLen)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	if dir == "" {
		return key, nil
	}
	name := filepath.Join(dir, "nfs-handle.key")
	old, err := os.ReadFile(name)
	switch {
	case err == nil && len(old) == keyLen:
		return old, nil
	case err == nil:
		return nil, fmt.Errorf("nfs: %s holds %d bytes, not a key of %d; clients' handles depend on it, so restore or remove it", name, len(old), keyLen)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("nfs: handle key: %w", err)
	}
	if err := savefile.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("nfs: state directory: %w", err)
	}
	// Of two daemons that start together, one key wins for both.
	switch err := savefile.Create(name, key); {
	case errors.Is(err, fs.ErrExist):
		return loadKey(dir)
	case err != nil:
		return nil, fmt.Errorf("nfs: handle key: %w", err)
	}
	return key, nil
}

// probeHandles finds the kind of handle that works on the file system of root.
func probeHandles(root int) handleKind {
	h, _, err := unix.NameToHandleAt(root, "", unix.AT_EMPTY_PATH)
	if err != nil || h.Size() > maxHandleBody || h.Type() < 0 || h.Type() > 255 {
		return kindInode
	}
	fd, err := unix.OpenByHandleAt(root, h, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return kindInode
	}
	_ = unix.Close(fd)
	return kindKernel
}

// makeHandle returns the handle of the file behind fd.
func (s *FS) makeHandle(e *Served, fd int) ([]byte, error) {
	b := make([]byte, handleHead, MaxHandle)
	b[0], b[1] = handleVersion, byte(e.kind)
	binary.BigEndian.PutUint32(b[2:], e.ID)
	switch e.kind {
	case kindKernel:
		h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
		if err != nil {
			return nil, err
		}
		if h.Size() > maxHandleBody {
			return nil, unix.EOVERFLOW
		}
		b[6] = byte(h.Type())
		b = append(b, h.Bytes()...)
	case kindInode:
		id, err := inodeID(fd)
		if err != nil {
			return nil, err
		}
		b = id.append(b)
	}
	b[7] = byte(len(b) - handleHead)
	return s.sign(b), nil
}

func (s *FS) sign(b []byte) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write(b)
	var sum [sha256.Size]byte
	return append(b, m.Sum(sum[:0])[:handleMAC]...)
}

// checkHandle verifies a handle and returns its export and body.
func (s *FS) checkHandle(h []byte) (*Served, []byte, error) {
	if len(h) < handleHead+handleMAC || len(h) > MaxHandle || h[0] != handleVersion || int(h[7]) != len(h)-handleHead-handleMAC {
		return nil, nil, errForged
	}
	n := len(h) - handleMAC
	want := s.sign(append(make([]byte, 0, MaxHandle), h[:n]...))
	if !hmac.Equal(want, h) {
		return nil, nil, errForged
	}
	e := s.table.Load().byID[binary.BigEndian.Uint32(h[2:])]
	if e == nil || e.kind != handleKind(h[1]) {
		return nil, nil, unix.ESTALE // exported once, not now
	}
	return e, h[handleHead:n], nil
}

// openHandle opens what a verified handle stands for, as a path descriptor. It runs with the daemon's own rights.
func (s *FS) openHandle(e *Served, h, body []byte) (int, error) {
	if e.kind == kindInode {
		var id inode
		if !id.parse(body) {
			return -1, errForged
		}
		return e.table.open(id)
	}
	fd, err := unix.OpenByHandleAt(e.root, unix.NewFileHandle(int32(h[6]), body), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err == unix.ENOENT || err == unix.EINVAL {
		err = unix.ESTALE
	}
	return fd, err
}
