package shm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// An address is the path of a socket, or "host:port" as services are known by: then the socket is PORT.sock in a directory that both sides
// know, and the host has to be this one.

// Directories are where diallers look for sockets: the system's service for blocks, the one for files, then this user's own.
func Directories() []string {
	l := []string{"/run/sluice", "/run/sluice-files"}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" && isOwn(d) {
		l = append(l, filepath.Join(d, "sluice"))
	}
	return l
}

// isOwn reports whether a directory is this user's. To root another's may still be named in the environment, as with su(1), and then that user would
// say which process it is that root's requests go to.
func isOwn(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && int(st.Uid) == os.Geteuid()
}

// directory is where a listener's sockets are: what a service manager gave this process, or else the first or the last of Directories.
func directory() (string, error) {
	if d, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":"); d != "" { // systemd.exec(5)
		return d, nil
	}
	l := Directories()
	switch {
	case os.Geteuid() == 0:
		return l[0], nil
	case len(l) > 2:
		return l[2], nil
	}
	return "", errors.New("shm: there is no directory for sockets: XDG_RUNTIME_DIR names none of this user; name one")
}

// pathOf is an address that is a path, and whether it is one. Names that are in no file system (unix(7), abstract) have no rights of a
// file, and are none.
func pathOf(addr string) (string, bool) {
	path, unix := strings.CutPrefix(addr, "unix:")
	return path, unix || strings.ContainsRune(addr, filepath.Separator)
}

func checkPath(path string) error {
	if path == "" || path[0] == '@' || strings.IndexByte(path, 0) >= 0 || len(path) > maxAddress {
		return fmt.Errorf("shm: %q is no path of a socket, which has 1 to %d bytes", path, maxAddress)
	}
	return nil
}

// place is where a listener for an address makes its socket. The directory is made where it is missing.
func (d *Device) place(addr string) (string, error) {
	if path, is := pathOf(addr); is {
		return path, checkPath(path)
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("shm: %q is neither a path nor host:port: %w", addr, err)
	}
	dir := d.opt.Directory
	if dir == "" {
		if dir, err = directory(); err != nil {
			return "", err
		}
	}
	err = os.Mkdir(dir, 0o755)
	if err == nil {
		err = os.Chmod(dir, 0o755) // the sockets' own rights say who may connect, and not a umask
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("shm: a directory for sockets: %w", err)
	}
	path := filepath.Join(dir, port+".sock")
	return path, checkPath(path)
}

// NotHereError says that an address is of another host, or that no socket on this one is for it.
type NotHereError struct {
	Address string
	Why     string
}

func (e *NotHereError) Error() string {
	return fmt.Sprintf("shm: %s cannot be reached through shared memory: %s", e.Address, e.Why)
}

// find is the socket for an address, and what a request says of the service that the address means; of a path nothing.
func (d *Device) find(ctx context.Context, addr string) (path, says string, err error) {
	if path, is := pathOf(addr); is {
		return path, "", checkPath(path)
	}
	dirs := []string{d.opt.Directory}
	if d.opt.Directory == "" {
		dirs = Directories()
	}
	return findIn(ctx, addr, dirs)
}

func findIn(ctx context.Context, addr string, dirs []string) (path, says string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("shm: %q is neither a path nor host:port: %w", addr, err)
	}
	ips, err := here(ctx, host)
	if err != nil {
		return "", "", err
	}
	if len(ips) == 0 {
		return "", "", &NotHereError{addr, host + " is another host"}
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, port+".sock")
		if st, err := os.Stat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
			return path, meant(ips), nil
		}
	}
	return "", "", &NotHereError{addr, fmt.Sprintf("there is no socket %s.sock in %s; a daemon of this host makes one with provider shm in its fabric", port, strings.Join(dirs, " or "))}
}

// Reaches finds the socket of a listener on this host for an address, "host:port", that this user may connect to. Empty is for none.
func Reaches(ctx context.Context, addr string) string {
	path, _, err := findIn(ctx, addr, Directories())
	if err != nil || unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) != nil {
		return ""
	}
	return path
}

// Found is a socket at which a process of this host may listen.
type Found struct {
	Path  string `json:"path"`
	Port  string `json:"port"` // of the service
	Owner uint32 `json:"owner"`
	Group uint32 `json:"group"`
	Mode  string `json:"mode"`
	// Problem is why this user cannot connect, empty where it can.
	Problem string `json:"problem,omitempty"`
}

// Sockets are those in Directories.
func Sockets() []Found {
	l := []Found{}
	for _, dir := range Directories() {
		names, _ := filepath.Glob(filepath.Join(dir, "*.sock")) // the pattern is a good one
		for _, path := range names {
			port := strings.TrimSuffix(filepath.Base(path), ".sock")
			var st unix.Stat_t
			if _, err := strconv.ParseUint(port, 10, 16); err != nil || unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
				continue
			}
			f := Found{Path: path, Port: port, Owner: st.Uid, Group: st.Gid, Mode: fmt.Sprintf("%04o", st.Mode&0o7777)}
			if err := tryConnect(path); err != nil {
				f.Problem = err.Error()
			}
			l = append(l, f)
		}
	}
	return l
}

// tryConnect connects and says nothing, which a listener takes for a dialler that went away.
func tryConnect(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	_ = unix.Close(fd) // nothing was sent
	switch {
	case errors.Is(err, unix.EACCES):
		return errors.New("this user may not connect")
	case errors.Is(err, unix.ECONNREFUSED):
		return errors.New("no process listens there any more")
	}
	return err
}
