package failonce

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/proc"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

var bin string

func TestMain(m *testing.M) { os.Exit(proc.Build(m, &bin)) }

const (
	target = "iqn.2026-11.io.sluice:failonce"
	size   = 4 << 20
	at     = 1 << 20  // where the pieces of work write,
	length = 64 << 10 // and how much, bytes
	sector = 512
)

// The contents of the volume, by byte: before, after a write, after an unmap, and beside the place of the work.
const (
	before, after, zero, beside = 0xa1, 0xb2, 0, 0xc3
)

// piece is a standard piece of work.
type piece struct {
	name    string
	do      func(s *stand) error
	want    byte // the content of the place when it is done
	durable bool // done means that it is on the medium
	past    bool // it makes calls to the medium past the page cache alone
}

var pieces = []piece{
	{name: "read", want: before, past: true, do: func(s *stand) error { return s.read(before) }},
	{name: "write", want: after, do: func(s *stand) error { return s.write(false) }},
	{name: "write with FUA", want: after, durable: true, do: func(s *stand) error { return s.write(true) }},
	{name: "write, flush", want: after, durable: true, do: func(s *stand) error {
		if err := s.write(false); err != nil {
			return err
		}
		return s.flush()
	}},
	{name: "write, write, flush", want: after, durable: true, do: func(s *stand) error {
		if _, err := s.vol.WriteAt(bytes.Repeat([]byte{0x77}, length/2), at); err != nil {
			return err
		}
		if err := s.write(false); err != nil {
			return err
		}
		return s.flush()
	}},
	{name: "unmap, flush", want: zero, durable: true, do: func(s *stand) error {
		if err := s.vol.Discard(s.ctx, at, length); err != nil {
			return err
		}
		return s.flush()
	}},
	{name: "zeroes, flush", want: zero, durable: true, do: func(s *stand) error {
		if err := s.vol.WriteZeroes(s.ctx, at, length, false); err != nil {
			return err
		}
		return s.flush()
	}},
	{name: "compare and write", want: after, do: func(s *stand) error {
		// One block: what is larger than an atomic write of the device is refused.
		for off := int64(0); off < length; off += sector {
			if _, err := s.vol.CompareAndWrite(s.ctx, at+off, bytes.Repeat([]byte{before}, sector), bytes.Repeat([]byte{after}, sector)); err != nil {
				return err
			}
			if off == sector {
				break
			}
		}
		_, err := s.vol.WriteAt(bytes.Repeat([]byte{after}, length-2*sector), at+2*sector)
		return err
	}},
}

// stand is a daemon on a medium with faults, and an initiator of it.
type stand struct {
	t     *testing.T
	ctx   context.Context
	fs    *faultfs.FS
	d     *proc.Daemon
	vol   *block.Volume
	close func()

	direct bool
}

// newStand has a volume through the page cache, or past it: its reads and writes go by io_uring then, and what fails is a completion.
func newStand(t *testing.T, direct bool) *stand {
	t.Helper()
	s := &stand{t: t, fs: faultfs.Mount(t), direct: direct}
	file := filepath.Join(s.fs.Dir, "v")
	// Another process makes the file: this one serves the file system.
	if out, err := exec.Command("truncate", "-s", fmt.Sprint(size), file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.d = proc.New(t, bin, fmt.Sprintf("volumes: [{name: v, path: %q, direct: %v}]\ntargets: [{name: %q, luns: [{lun: 0, volume: v}]}]\n", file, direct, target))
	return s
}

// open starts the daemon and logs in. What is asked of it until close has a limit of its own.
func (s *stand) open() {
	s.t.Helper()
	s.d.Start()
	ctx, cancel := context.WithTimeout(context.Background(), 2*proc.Patience)
	s.t.Cleanup(cancel)
	s.ctx = ctx
	dev, pool := iwarp.New(iwarp.Options{}), mem.NewPool(16<<20)
	ini, err := block.New(block.Options{Device: dev, Memory: pool})
	if err != nil {
		s.t.Fatal(err)
	}
	vol, err := ini.Open(s.ctx, "iscsi://"+s.d.Portal()+"/"+target+"/0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.vol = vol
	if out, code := s.d.Sluice("volume", "list"); code != 0 || s.direct != strings.Contains(out, "reads and writes by io_uring") {
		s.t.Fatalf("the volume is not served as it should be (%d):\n%s", code, out)
	}
	s.close = func() {
		for _, c := range []func() error{vol.Close, ini.Close, pool.Close, dev.Close} {
			if err := c(); err != nil {
				s.t.Error(err)
			}
		}
		cancel()
	}
}

func (s *stand) write(fua bool) error {
	if !fua {
		_, err := s.vol.WriteAt(bytes.Repeat([]byte{after}, length), at)
		return err
	}
	b, err := s.vol.Memory().Get(length)
	if err != nil {
		return err
	}
	defer b.Release()
	copy(b.Bytes(), bytes.Repeat([]byte{after}, length))
	return s.vol.WriteSpans(s.ctx, at, true, b.Span())
}

// read fails, or has what is there.
func (s *stand) read(want byte) error {
	b := make([]byte, length)
	if _, err := s.vol.ReadAt(b, at); err != nil {
		return err
	}
	if !bytes.Equal(b, bytes.Repeat([]byte{want}, length)) {
		s.t.Errorf("a read that succeeded has other bytes: %x ...", b[:8])
	}
	return nil
}

func (s *stand) flush() error { return s.vol.Flush(s.ctx) }

// fill makes all of the medium's content known and durable.
func (s *stand) fill() {
	s.t.Helper()
	b := bytes.Repeat([]byte{beside}, size)
	copy(b[at:at+length], bytes.Repeat([]byte{before}, length))
	if _, err := s.vol.WriteAt(b, 0); err != nil {
		s.t.Fatal(err)
	}
	// The loss of the trial before may be told here once more: the daemon remembers it, and this is another session.
	if s.flush() != nil {
		if err := s.flush(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// cut ends the daemon and takes the power away, and starts it again on what is left.
func (s *stand) cut(seed uint64) {
	s.t.Helper()
	s.d.Kill()
	s.close()
	s.fs.Cut(seed)
	s.fs.Restore()
	s.open()
}

// judge compares the medium's content with what was acknowledged.
func (s *stand) judge(what string, may ...byte) {
	s.t.Helper()
	b := make([]byte, size)
	if _, err := s.vol.ReadAt(b, 0); err != nil {
		s.t.Errorf("%s: reading after the power cut: %v", what, err)
		return
	}
	for off := 0; off < size; off += sector {
		ok := []byte{beside}
		if off >= at && off < at+length {
			ok = may
		}
		if got := b[off : off+sector]; bytes.IndexByte(ok, got[0]) < 0 || !bytes.Equal(got, bytes.Repeat(got[:1], sector)) {
			s.t.Errorf("%s: the sector at %d begins with %x, it may be one of %x", what, off, got[:8], ok)
			return
		}
	}
}

// nth fails the n-th call from now on, and counts them.
type nth struct {
	mu   sync.Mutex
	n    int
	seen int
	hit  *faultfs.Call
	err  syscall.Errno
	hang chan struct{} // the call waits for it, nil for none
	hung chan struct{}
}

func (k *nth) call(c faultfs.Call) syscall.Errno {
	k.mu.Lock()
	k.seen++
	if k.seen-1 != k.n {
		k.mu.Unlock()
		return 0
	}
	k.hit = &c
	k.mu.Unlock()
	if k.hang != nil {
		close(k.hung)
		<-k.hang
	}
	return k.err
}

func (k *nth) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
}

// trial does a piece of work with its n-th call failing, and reports how many calls there were.
func (s *stand) trial(p *piece, n int, errno syscall.Errno, hang bool) int {
	s.t.Helper()
	s.open()
	defer func() { s.close() }()
	s.fill()
	what := fmt.Sprintf("%s, call %d: %v", p.name, n, errno)
	k := &nth{n: n, err: errno}
	if hang {
		what = fmt.Sprintf("%s, call %d hangs", p.name, n)
		k.hang, k.hung, k.err = make(chan struct{}), make(chan struct{}), 0
	}
	s.fs.Fault(k.call)
	done := make(chan error, 1)
	go func() { done <- p.do(s) }()
	var err error
	if hang {
		select {
		case <-k.hung:
			// Who administers the daemon is answered while its medium hangs.
			if out, code := s.d.Sluice("volume", "list"); code != 0 {
				s.t.Errorf("%s: volume list: exit code %d\n%s", what, code, out)
			}
			close(k.hang)
			err = <-done
		case err = <-done:
		}
	} else {
		select {
		case err = <-done:
		case <-time.After(proc.Patience):
			s.t.Fatalf("%s: no end", what)
		}
	}
	seen := k.count()
	s.fs.Fault(nil)
	var ferr error
	if !p.durable || err != nil { // another flush would hide what the one before has not done
		ferr = s.flush()
	}
	if !s.d.Alive() {
		s.t.Fatalf("%s: the daemon has ended", what)
	}
	// What was said to be durable is there.
	may := []byte{before, p.want, 0x77}
	if err == nil && (p.durable || ferr == nil) {
		may = []byte{p.want}
	}
	s.cut(uint64(n) + 1)
	s.judge(what, may...)
	if k.hit == nil && n >= 0 {
		s.t.Logf("%s: there was no such call", what)
	}
	return seen
}

func TestEveryCallFailsOnce(t *testing.T) {
	need.FUSE(t)
	for i := range 2 * len(pieces) {
		p, direct := &pieces[i/2], i%2 == 1
		if p.past && !direct {
			continue
		}
		name := p.name
		if direct {
			name += ", past the page cache"
		}
		t.Run(name, func(t *testing.T) {
			s := newStand(t, direct)
			calls := s.trial(p, -1, 0, false)
			if calls == 0 {
				t.Fatal("the work makes no call to the medium: nothing is tried")
			}
			for n := range calls {
				s.d.Kill()
				s.trial(p, n, syscall.EIO, false)
				s.d.Kill()
				s.trial(p, n, syscall.ENOSPC, false)
			}
			s.d.Kill()
			s.trial(p, calls-1, 0, true)
			t.Logf("%d calls, each failed twice, the last hung once", calls)
		})
	}
}

// The judge has to be able to find a loss: what nothing made durable does not survive each cut.
func TestACutLosesWhatIsNotDurable(t *testing.T) {
	need.FUSE(t)
	s := newStand(t, false)
	lost := false
	for seed := uint64(1); seed < 20 && !lost; seed++ {
		s.open()
		s.fill()
		if err := s.write(false); err != nil {
			t.Fatal(err)
		}
		s.cut(seed)
		b := make([]byte, length)
		if _, err := s.vol.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		lost = !bytes.Equal(b, bytes.Repeat([]byte{after}, length))
		s.close()
		s.d.Kill()
	}
	if !lost {
		t.Error("twenty power cuts lost nothing of what was never flushed")
	}
}
