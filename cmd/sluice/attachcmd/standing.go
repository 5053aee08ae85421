package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// standing is what stands on an attachment: block devices, the file systems on them and the processes that have something of those open.
// Mounts are looked for in every mount namespace that can be seen: a container keeps a copy of what was mounted when it began.
type standing struct {
	devices []string // by their names in /dev, the attachment's own among them
	numbers []string // of them, as mountinfo has them: "major:minor"
	shown   string   // the number of the directory that shows the attachment as a file
	mounts  []standingMount
	files   []openFile
}

// standingMount is a file system, as process pid sees it.
type standingMount struct {
	pid    int
	path   string
	other  bool   // in a mount namespace that is not this process's
	id     string // of the mount
	device string // of the file system, its number
}

// openFile is a file, directory or device that process pid has open.
type openFile struct {
	pid  int
	link string // in /proc
	dir  bool   // a regular file or directory, which can be opened again without harm
}

// standsOn looks at what stands on the attachment now.
func (r *Record) standsOn() *standing {
	s := &standing{}
	switch r.Face {
	case faceUblk, faceDevice:
		s.add("/sys/class/block/" + filepath.Base(r.Path))
	case faceFile:
		for _, m := range mountPoints() {
			if m.path == r.Dir {
				s.shown = m.device
			}
		}
		files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			return s
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == r.Path {
				s.add(filepath.Dir(filepath.Dir(f)))
			}
		}
	}
	if len(s.devices) > 0 || s.shown != "" {
		s.look()
	}
	return s
}

// add takes in a block device, its partitions and what the kernel stacks on it.
func (s *standing) add(sys string) {
	b, err := os.ReadFile(filepath.Join(sys, "dev"))
	number := strings.TrimSpace(string(b))
	if err != nil || slices.Contains(s.numbers, number) {
		return
	}
	s.devices, s.numbers = append(s.devices, "/dev/"+filepath.Base(sys)), append(s.numbers, number)
	for _, pattern := range []string{"holders/*", "*/partition"} {
		l, err := filepath.Glob(filepath.Join(sys, pattern))
		if err != nil {
			return
		}
		for _, p := range l {
			if filepath.Base(p) == "partition" {
				p = filepath.Dir(p)
			}
			s.add("/sys/class/block/" + filepath.Base(p))
		}
	}
}

// look goes through the processes, each mount namespace once, this process's first.
func (s *standing) look() {
	ours, _ := os.Readlink("/proc/self/ns/mnt")
	seen := map[string]bool{}
	visit := func(pid int, proc string) {
		ns, err := os.Readlink(proc + "/ns/mnt")
		if err != nil || seen[ns] {
			return
		}
		b, err := settled(func() ([]byte, error) { return os.ReadFile(proc + "/mountinfo") })
		if err != nil {
			return // it has ended; another may be in its namespace
		}
		seen[ns] = true
		for _, m := range parseMountinfo(string(b)) {
			if slices.Contains(s.numbers, m.device) || slices.Contains(s.devices, m.source) {
				s.mounts = append(s.mounts, standingMount{pid, m.path, ns != ours, m.id, m.device})
			}
		}
	}
	visit(os.Getpid(), "/proc/self")
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		proc := "/proc/" + p.Name()
		visit(pid, proc)
		s.opened(pid, proc)
	}
}

// opened finds what a process has open of the devices and of file systems on them, mounted or not any more. No server of a file
// system is asked: the one of a hung target is among them.
func (s *standing) opened(pid int, proc string) {
	links := []string{proc + "/cwd", proc + "/root"}
	if fds, err := os.ReadDir(proc + "/fd"); err == nil {
		for _, f := range fds {
			links = append(links, proc+"/fd/"+f.Name())
		}
	}
	for _, l := range links {
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, l, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st) != nil {
			continue
		}
		kind := st.Mode & unix.S_IFMT
		number := fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor)
		if kind == unix.S_IFBLK {
			number = fmt.Sprintf("%d:%d", st.Rdev_major, st.Rdev_minor)
		}
		switch {
		case slices.Contains(s.numbers, number):
			s.files = append(s.files, openFile{pid, l, kind == unix.S_IFREG || kind == unix.S_IFDIR})
		case number == s.shown:
			s.files = append(s.files, openFile{pid, l, false}) // what it writes is not held
		}
	}
}

// errUnseen says that what uses a device has not been found, and so not been asked to write what it holds.
var errUnseen = errors.New("what uses it cannot be seen from here, and was not asked to write what it holds")

// sync has file systems and the kernel write what they hold of the attachment. It blocks while the target is away.
func (s *standing) sync() error {
	var errs []error
	used, covered, reached := false, map[string]error{}, map[string]bool{}
	for _, d := range s.devices {
		used = used || inUse(d)
	}
	for _, m := range s.mounts {
		path := m.path
		if m.other {
			path = fmt.Sprintf("/proc/%d/root%s", m.pid, m.path)
		}
		err := onOpen(path, m.sync)
		if errors.Is(err, errCovered) {
			covered[m.device] = fmt.Errorf("the file system on %s: %w", m.path, err)
			continue
		}
		reached[m.device] = true
		if err != nil {
			err = fmt.Errorf("the file system on %s: %w", m.path, err)
		}
		errs = append(errs, err)
	}
	for device, err := range covered {
		if !reached[device] { // by another mount of it
			errs = append(errs, err)
		}
	}
	for _, f := range s.files {
		if f.dir && len(s.mounts) == 0 { // of a file system that is mounted nowhere any more
			errs = append(errs, gone(onOpen(f.link, unix.Syncfs)))
		}
	}
	for _, d := range slices.Backward(s.devices) { // the pages that the kernel holds; no flush, which is the volume's to know
		errs = append(errs, onOpen(d, func(fd int) error {
			return unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
		}))
	}
	if used && len(s.mounts) == 0 && len(s.files) == 0 {
		errs = append(errs, errUnseen)
	}
	return errors.Join(errs...)
}

// errCovered says that a file system cannot be reached by its directory.
var errCovered = errors.New("another one is mounted over it, so that it could not be asked to write what it holds")

// sync has the file system of the mount write what it holds. The descriptor is of its directory, where it may be covered: Linux 5.8
// says so.
func (m *standingMount) sync(fd int) error {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID != 0 && strconv.FormatUint(st.Mnt_id, 10) != m.id {
		return errCovered
	}
	return unix.Syncfs(fd)
}

func onOpen(path string, do func(fd int) error) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(int(f.Fd())), f.Close())
}

// settleUsers has what stands on the attachment write what it holds, and takes away the mount and the loop device that sluice mount
// made, while that can still write. What it has begun ends with the face.
func (r *Record) settleUsers(ctx context.Context) error {
	done := make(chan error, 1)
	mine := *r // it may outlast the wait
	go func() {
		s := mine.standsOn()
		err := s.sync()
		if err == nil && len(s.devices) > 0 {
			_ = mine.letGo() // the end asks again, and tells
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("not all that is held of it here could be written: %w", context.Cause(ctx))
	}
}

// maxTold bounds the users that are named to a person.
const maxTold = 8

// heldBy says who keeps an attachment in use and how to end that, empty where it is not known. A mount in this process's namespace
// is named by its directory, one in another by a process there.
func (s *standing) heldBy() string {
	var said []string
	say := func(format string, a ...any) {
		if t := fmt.Sprintf(format, a...); !slices.Contains(said, t) && len(said) < maxTold {
			said = append(said, t)
		}
	}
	for _, m := range s.mounts {
		if m.other {
			say("the file system is still mounted on %s in the mount namespace of process %d (%s): it ends with that, or by nsenter --mount --target %d umount %s", m.path, m.pid, comm(m.pid), m.pid, m.path)
			continue
		}
		say("the file system is mounted on %s: umount %s", m.path, m.path)
	}
	for _, f := range s.files {
		say("process %d (%s) has it open", f.pid, comm(f.pid))
	}
	return strings.Join(said, "; ")
}

func comm(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "ended"
	}
	return strings.TrimSpace(string(b))
}
