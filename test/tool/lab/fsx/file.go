//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fileTest does random operations on one file and compares all that is read with a copy in memory.
type fileTest struct {
	path   string
	seed   uint64
	ops    int
	max    int
	direct bool

	// after is called after each operation; a test of the test spoils the file there.
	after func(n int)

	noMap, noPunch, noTruncate, noReopen bool

	rng   *rand.Rand
	f     *os.File
	model []byte // the file as it must be; its length is the size
	buf   []byte // for I/O, aligned
	log   []string
	count map[string]int
}

const (
	directBlock = 4096 // what O_DIRECT is given multiples of, bytes
	keepLog     = 25   // operations shown when one fails
)

func (t *fileTest) leaveOut(what string) error {
	switch what {
	case "":
	case "map":
		t.noMap = true
	case "punch":
		t.noPunch = true
	case "truncate":
		t.noTruncate = true
	case "reopen":
		t.noReopen = true
	default:
		return fmt.Errorf("there is no operation %q to leave out: map, punch, truncate, reopen", what)
	}
	return nil
}

func (t *fileTest) run() (string, error) {
	if t.max < 2*directBlock {
		return "", fmt.Errorf("-max %d: at least %d bytes", t.max, 2*directBlock)
	}
	t.rng = rand.New(rand.NewPCG(t.seed, 0))
	t.count = make(map[string]int)
	t.noMap = t.noMap || t.direct
	t.buf = aligned(t.max + directBlock)
	if err := t.open(os.O_CREATE | os.O_TRUNC); err != nil {
		return "", err
	}
	defer func() { _ = t.f.Close() }()
	var err error
	for n := 0; n < t.ops && err == nil; n++ {
		if err = t.step(n); err == nil && t.after != nil {
			t.after(n)
		}
	}
	if err == nil {
		err = t.whole()
	}
	if err != nil {
		err = fmt.Errorf("%w\nlast operations:\n  %s", err, strings.Join(t.log, "\n  "))
	}
	return t.summary(), err
}

func (t *fileTest) summary() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(t.count)) {
		fmt.Fprintf(&b, "%d %s, ", t.count[k], k)
	}
	return strings.TrimSuffix(b.String(), ", ")
}

func (t *fileTest) open(flags int) error {
	if t.direct {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(t.path, os.O_RDWR|flags, 0o644)
	if err != nil {
		return err
	}
	t.f = f
	return nil
}

func (t *fileTest) note(n int, format string, a ...any) {
	line := fmt.Sprintf(format, a...)
	t.count[line[:strings.IndexByte(line+" ", ' ')]]++
	t.log = append(t.log, fmt.Sprintf("%d: %s (size %d)", n, line, len(t.model)))
	if len(t.log) > keepLog {
		t.log = t.log[1:]
	}
}

func (t *fileTest) step(n int) error {
	switch p := t.rng.IntN(100); {
	case p < 30:
		return t.read(n)
	case p < 60:
		return t.write(n)
	case p < 70:
		return t.mapRead(n)
	case p < 80:
		return t.mapWrite(n)
	case p < 88:
		return t.truncate(n)
	case p < 93:
		return t.punch(n)
	case p < 96:
		t.note(n, "fsync")
		return t.f.Sync()
	default:
		return t.reopen(n)
	}
}

// piece chooses a range below limit, often short, in blocks where O_DIRECT asks for it.
func (t *fileTest) piece(limit int) (off, length int) {
	off = t.rng.IntN(limit)
	length = 1 + t.rng.IntN(limit-off)
	if t.rng.IntN(2) == 0 {
		length = min(length, 1+t.rng.IntN(3*directBlock))
	}
	if t.direct {
		off -= off % directBlock
		length = (length + directBlock - 1) / directBlock * directBlock
	}
	return off, length
}

func (t *fileTest) read(n int) error {
	off, length := t.piece(t.max)
	t.note(n, "read %d+%d", off, length)
	return t.compareRead(off, length)
}

// compareRead reads a range, which may reach behind the end, and compares.
func (t *fileTest) compareRead(off, length int) error {
	b := t.buf[:length]
	got, err := t.f.ReadAt(b, int64(off))
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %d+%d: %w", off, length, err)
	}
	want := t.model[min(off, len(t.model)):min(off+length, len(t.model))]
	if got != len(want) {
		return fmt.Errorf("read %d+%d gave %d bytes, not %d", off, length, got, len(want))
	}
	return same(b[:got], want, off)
}

func same(got, want []byte, off int) error {
	if bytes.Equal(got, want) {
		return nil
	}
	first, last, bad := -1, 0, 0
	for i := range got {
		if got[i] != want[i] {
			if first < 0 {
				first = i
			}
			last, bad = i, bad+1
		}
	}
	end := min(first+16, len(got))
	return fmt.Errorf("%d bytes between %d and %d differ: %x is there, %x should be", bad, off+first, off+last, got[first:end], want[first:end])
}

func (t *fileTest) fill(b []byte) {
	x := t.rng.Uint64() | 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}

// grow makes the model at least size bytes long; what was behind the end is zero.
func (t *fileTest) grow(size int) {
	for len(t.model) < size {
		t.model = append(t.model, make([]byte, size-len(t.model))...)
	}
}

func (t *fileTest) write(n int) error {
	off, length := t.piece(t.max)
	t.note(n, "write %d+%d", off, length)
	b := t.buf[:length]
	t.fill(b)
	t.grow(off + length)
	copy(t.model[off:], b)
	if k, err := t.f.WriteAt(b, int64(off)); err != nil {
		return fmt.Errorf("write %d+%d, after %d: %w", off, length, k, err)
	}
	return t.size()
}

func (t *fileTest) size() error {
	st, err := t.f.Stat()
	if err != nil {
		return err
	}
	if st.Size() != int64(len(t.model)) {
		return fmt.Errorf("the size is %d, not %d", st.Size(), len(t.model))
	}
	return nil
}

// mapped maps the pages that a range lies in and calls do with them; the range begins at byte at of the map.
func (t *fileTest) mapped(off, length, prot int, do func(m []byte, at int) error) error {
	at := off % os.Getpagesize()
	m, err := unix.Mmap(int(t.f.Fd()), int64(off-at), at+length, prot, unix.MAP_SHARED)
	if errors.Is(err, unix.ENODEV) {
		t.noMap = true // a FUSE mount with direct I/O has no shared maps
		t.count["map-unsupported"]++
		return nil
	}
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	return errors.Join(do(m, at), unix.Munmap(m))
}

func (t *fileTest) mapRead(n int) error {
	if t.noMap || len(t.model) == 0 {
		return t.read(n)
	}
	off, length := t.piece(len(t.model))
	t.note(n, "mapread %d+%d", off, length)
	return t.mapped(off, length, unix.PROT_READ, func(m []byte, at int) error { return same(m[at:], t.model[off:off+length], off) })
}

func (t *fileTest) mapWrite(n int) error {
	if t.noMap || len(t.model) == 0 {
		return t.write(n)
	}
	off, length := t.piece(len(t.model))
	t.note(n, "mapwrite %d+%d", off, length)
	return t.mapped(off, length, unix.PROT_READ|unix.PROT_WRITE, func(m []byte, at int) error {
		t.fill(m[at:])
		copy(t.model[off:], m[at:])
		if t.rng.IntN(2) == 0 {
			return nil // written back some time later
		}
		return unix.Msync(m, unix.MS_SYNC)
	})
}

func (t *fileTest) truncate(n int) error {
	if t.noTruncate {
		return t.read(n)
	}
	size := t.rng.IntN(t.max + 1)
	t.note(n, "truncate to %d", size)
	if err := t.f.Truncate(int64(size)); err != nil {
		return err
	}
	t.grow(size)
	t.model = t.model[:size:size]
	return t.size()
}

func (t *fileTest) punch(n int) error {
	if t.noPunch {
		return t.read(n)
	}
	off, length := t.piece(t.max)
	err := unix.Fallocate(int(t.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(length))
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		t.noPunch = true // NFSv3 has no such procedure
		t.note(n, "punch-unsupported")
		return nil
	}
	t.note(n, "punch %d+%d", off, length)
	if err != nil {
		return fmt.Errorf("punch %d+%d: %w", off, length, err)
	}
	if off < len(t.model) {
		clear(t.model[off:min(off+length, len(t.model))])
	}
	return t.size()
}

// reopen closes the file and reads all of it by a new descriptor.
func (t *fileTest) reopen(n int) error {
	if t.noReopen {
		return t.read(n)
	}
	t.note(n, "reopen")
	return t.whole()
}

func (t *fileTest) whole() error {
	if err := t.f.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	if err := t.open(0); err != nil {
		return err
	}
	if err := t.size(); err != nil {
		return err
	}
	length := len(t.model)
	if t.direct {
		length = (length + directBlock - 1) / directBlock * directBlock
	}
	return t.compareRead(0, length)
}

// aligned returns memory that O_DIRECT takes.
func aligned(n int) []byte {
	b := make([]byte, n+directBlock)
	skip := directBlock - int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%directBlock)
	return b[skip : skip+n]
}
