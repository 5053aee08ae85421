// Package unixsock makes listening unix sockets in the file system. A place that is taken is left alone, unless by a socket of
// this user that no process listens on any more: what a killed process leaves.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TakenError says what has the place of a socket.
type TakenError struct {
	Path string
	Why  string
}

func (e *TakenError) Error() string { return e.Path + " " + e.Why }

// maxPath is what a socket's address has room for, with its end (unix(7), sun_path).
const maxPath = len(unix.RawSockaddrUnix{}.Path) - 1

// Listen makes a stream socket at path that only its owner may connect to. When it is closed its name goes, if it is still its own.
func Listen(path string) (net.Listener, error) {
	return Socket{}.Listen(path)
}

// Socket is what a listening socket is like. The zero value is a stream that only its owner may connect to.
type Socket struct {
	Packets bool        // of type SOCK_SEQPACKET
	Mode    fs.FileMode // who may connect needs the right to write; 0 stands for 0600
	Group   int         // of the file; 0 stands for this process's
}

// Listen makes the socket at path. When it is closed its name goes, if it is still its own.
func (s Socket) Listen(path string) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("the path of a socket has at most %d bytes, and %s has %d; choose a shorter one", maxPath, path, len(path))
	}
	unlock, err := lockDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := vacate(path); err != nil {
		return nil, err
	}
	// The mode is set before the name is made: at no time may others connect. bind(2) takes it from the socket's own inode.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var mode error
		return errors.Join(c.Control(func(fd uintptr) { mode = unix.Fchmod(int(fd), 0o600) }), mode)
	}}
	network := "unix"
	if s.Packets {
		network = "unixpacket"
	}
	l, err := lc.Listen(context.Background(), network, path)
	if err != nil {
		return nil, err
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		return l, nil
	}
	ul.SetUnlinkOnClose(false)
	made, err := os.Lstat(path)
	if err == nil && s.Group != 0 {
		err = os.Lchown(path, -1, s.Group)
	}
	if err == nil && s.Mode != 0 {
		err = os.Chmod(path, s.Mode) // last: no client was to connect before
	}
	if err != nil {
		return nil, errors.Join(err, ul.Close(), os.Remove(path)) // the directory is still locked: it is ours
	}
	return &listener{UnixListener: ul, path: path, made: made}, nil
}

type listener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
	once sync.Once // a later socket there can have the same inode number
}

// Close removes the name too, unless it is another file's by now.
func (l *listener) Close() error {
	var err error
	l.once.Do(func() {
		if now, lerr := os.Lstat(l.path); lerr == nil && os.SameFile(now, l.made) {
			if err = os.Remove(l.path); errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
	})
	return errors.Join(err, l.UnixListener.Close())
}

// lockTries bounds the wait for others that make a socket in the same directory; each takes well below a millisecond.
const lockTries = 1000

// lockDir keeps two processes from both finding a dead socket, and the later one from removing what the first has made.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for range lockTries {
		switch err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return func() { d.Close() }, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			time.Sleep(10 * time.Millisecond)
		case !errors.Is(err, unix.EINTR):
			return func() { d.Close() }, nil //nolint:nilerr // a file system without flock: the race is left
		}
	}
	d.Close()
	return nil, fmt.Errorf("another process keeps %s locked (flock): %w", dir, err)
}

// RemoveDead removes what a process that was killed has left at path: a dead socket of this user, and nothing else.
func RemoveDead(path string) error {
	unlock, err := lockDir(filepath.Dir(path))
	if err == nil {
		defer unlock()
		err = vacate(path)
	}
	var taken *TakenError
	if errors.As(err, &taken) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// vacate removes a dead socket of this user.
func vacate(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return &TakenError{path, "is there and is no socket"}
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return &TakenError{path, "is another user's socket"}
	}
	dead, err := isDead(path)
	if err != nil {
		return err
	}
	if !dead {
		return &TakenError{path, "is in use: a process listens there"}
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(fi, now) {
		return &TakenError{path, "changes while it is looked at"}
	}
	return os.Remove(path)
}

// isDead reports whether no process listens. Only the refusal of a connection says so (connect(2)): a full queue, a socket of
// another type and an interrupted call do not.
func isDead(path string) (bool, error) {
	for {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return false, err
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		_ = unix.Close(fd) // nothing was sent
		if !errors.Is(err, unix.EINTR) {
			return errors.Is(err, unix.ECONNREFUSED), nil
		}
	}
}
