package operator

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watch sees what the daemon calls of the file system that the state directories are on, and can hold it in the n-th call and
// kill it there. Opening waits for an answer (fanotify(7), FAN_OPEN_PERM), so the kill finds the daemon in that call; after a
// write or a close it is killed at once.
type watch struct {
	fd    *os.File
	ended chan struct{}

	mu   sync.Mutex
	seen int           // calls since arm
	at   int           // the call at which it is killed; 0: none
	shot chan struct{} // closed then
}

// newWatch begins to see; the kernel or the rights of this user may not let it.
func newWatch(mount string) (*watch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_NONBLOCK|unix.FAN_CLOEXEC|unix.FAN_UNLIMITED_QUEUE, unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	w := &watch{fd: os.NewFile(uintptr(fd), "fanotify"), ended: make(chan struct{})}
	const mask = unix.FAN_OPEN_PERM | unix.FAN_MODIFY | unix.FAN_CLOSE_WRITE | unix.FAN_EVENT_ON_CHILD | unix.FAN_ONDIR
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_MOUNT, mask, unix.AT_FDCWD, mount); err != nil {
		return nil, errors.Join(err, w.fd.Close())
	}
	go w.run()
	return w, nil
}

// close ends it, so that the file system can be unmounted.
func (w *watch) close() error {
	err := w.fd.Close()
	<-w.ended
	return err
}

// run answers until the descriptor is closed, which lets go what is held.
func (w *watch) run() {
	defer close(w.ended)
	defer w.fd.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := w.fd.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= int(unsafe.Sizeof(unix.FanotifyEventMetadata{})); {
			e := (*unix.FanotifyEventMetadata)(unsafe.Pointer(&b[0])) // as the kernel lays it out
			w.event(int(e.Pid))
			if e.Mask&unix.FAN_OPEN_PERM != 0 {
				var answer [8]byte
				binary.NativeEndian.PutUint32(answer[:4], uint32(e.Fd))
				binary.NativeEndian.PutUint32(answer[4:], unix.FAN_ALLOW)
				if _, err := w.fd.Write(answer[:]); err != nil && !errors.Is(err, syscall.ENOENT) { // a killed caller waits no more
					return
				}
			}
			if e.Fd >= 0 {
				_ = syscall.Close(int(e.Fd)) // opened for reading by the kernel
			}
			b = b[e.Event_len:]
		}
	}
}

func (w *watch) event(pid int) {
	if pid == os.Getpid() { // the tools open nothing there: who else does is the daemon
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen++
	if w.at > 0 && w.seen == w.at {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		close(w.shot)
		w.at = 0
	}
}

// arm begins to count; with n > 0 the daemon is killed in its n-th call from now, which the channel tells. A nil watch sees nothing.
func (w *watch) arm(n int) <-chan struct{} {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen, w.at, w.shot = 0, n, make(chan struct{})
	return w.shot
}

// disarm ends a counting and says how many calls there were, and whether the daemon was killed in one.
func (w *watch) disarm() (seen int, shot bool) {
	if w == nil {
		return 0, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = 0
	select {
	case <-w.shot:
		return w.seen, true
	default:
		return w.seen, false
	}
}
