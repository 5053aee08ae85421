package uring

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/need"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// user starts operations and sees how they end.
type user struct {
	t    testing.TB
	q    *Queue[*job]
	slab *mem.Slab
	fd   int
	room func() // of RoomLocked
	over atomic.Int64
}

// job is what the user asks for once.
type job struct {
	write bool
	at    int // in slab
	n     int
	off   int64
	flags int
	res   int32
	done  func(*job)
}

func (u *user) Ended(first *Op[*job]) {
	for o := first; o != nil; o = o.Next() {
		o.V.res = o.Res
		u.over.Add(1)
		if o.V.done != nil {
			o.V.done(o.V)
		}
	}
	u.q.Free(first)
}

func (u *user) RoomLocked() {
	if u.room != nil {
		u.room()
	}
}

// begin queues a job, or reports that there is no room.
func (u *user) begin(j *job) bool {
	u.q.Lock()
	defer u.q.Unlock()
	return u.beginLocked(j)
}

func (u *user) beginLocked(j *job) bool {
	o := u.q.TakeLocked()
	if o == nil {
		return false
	}
	o.V = j
	if j.n == 0 {
		o.Nop()
		u.q.QueueLocked(o)
		return true
	}
	// Two pieces where there are two sectors: a vector.
	o.IOV[0].Base = &u.slab.Bytes()[j.at]
	o.IOV[0].SetLen(j.n)
	n := 1
	if j.n >= 1024 {
		o.IOV[0].SetLen(512)
		o.IOV[1].Base = &u.slab.Bytes()[j.at+512]
		o.IOV[1].SetLen(j.n - 512)
		n = 2
	}
	if j.write {
		o.Write(u.fd, n, j.off, j.flags)
	} else {
		o.Read(u.fd, n, j.off, j.flags)
	}
	u.q.QueueLocked(o)
	return true
}

// do is one job from its begin to its end.
func (u *user) do(j job) int32 {
	u.t.Helper()
	over := make(chan struct{})
	j.done = func(*job) { close(over) }
	if !u.begin(&j) {
		u.t.Fatal("there is no room")
	}
	u.q.Enter()
	<-over
	return j.res
}

func openFile(t testing.TB, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_RDWR|os.O_CREATE|flags, 0o600)
	if err == nil {
		err = f.Truncate(1 << 20)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func newUser(t testing.TB, o Options[*job]) *user {
	t.Helper()
	need.IOUring(t)
	slab, err := mem.NewSlab(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slab.Close() })
	u := &user{t: t, slab: slab, fd: int(openFile(t, 0).Fd())}
	o.Handler = u
	if u.q, err = Open(o); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *user) close() {
	u.t.Helper()
	if err := u.q.Close(); err != nil {
		u.t.Error(err)
	}
}

// What is written in one piece and in a vector is what is read, and what is read behind the end is short.
func TestReadsAndWrites(t *testing.T) {
	f := openFile(t, 0)
	u := newUser(t, Options[*job]{Depth: 8})
	u.fd = int(f.Fd())
	defer u.close()
	b := u.slab.Bytes()
	for i := range 8192 {
		b[i] = byte(i*7 + i>>8)
	}
	for i, j := range []job{{write: true, n: 512}, {write: true, at: 512, n: 4096, off: 512, flags: unix.RWF_DSYNC}, {n: 0}} {
		if res := u.do(j); int(res) != j.n {
			t.Errorf("%d: %d", i, res)
		}
	}
	got := make([]byte, 4608)
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, b[:4608]) {
		t.Errorf("the file has something else: %v", err)
	}
	if res := u.do(job{at: 16384, n: 4608}); res != 4608 || !bytes.Equal(b[16384:][:4608], b[:4608]) {
		t.Errorf("read %d", res)
	}
	if res := u.do(job{n: 4096, off: 1<<20 - 512}); res != 512 {
		t.Errorf("a read across the end: %d", res)
	}
	if res := u.do(job{n: 4096, off: -4096}); res != -int32(unix.EINVAL) {
		t.Errorf("a read before the beginning: %d", res)
	}
	if s := u.q.Stats(); s.Operations != 6 || s.UnderWay != 0 || s.Enters != 6 {
		t.Errorf("%+v", s)
	}
}

// Many goroutines start many operations; each ends once, those that find no room wait for it, and a batch takes one system call.
func TestManyGoroutines(t *testing.T) {
	u := newUser(t, Options[*job]{Depth: 16})
	const workers, each = 8, 2000
	var room sync.Cond
	room.L = &u.q.Mutex
	u.room = room.Broadcast
	var ends sync.WaitGroup
	ends.Add(workers * each)
	jobs := make([]job, workers*each)
	var ended [workers * each]atomic.Int32
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w * each; i < (w+1)*each; i++ {
				j := &jobs[i]
				j.at, j.n, j.off, j.write = i%128*4096, 512, int64(i%128)*4096, i%3 == 0
				j.done = func(*job) {
					if ended[i].Add(1) == 1 {
						ends.Done()
					}
				}
				u.q.Lock()
				for !u.beginLocked(j) {
					room.Wait()
				}
				u.q.Unlock()
				u.q.Enter()
				if i%5 == 0 {
					u.q.Reap()
				}
			}
		})
	}
	wg.Wait()
	ends.Wait()
	u.close()
	for i := range jobs {
		if n := ended[i].Load(); n != 1 || jobs[i].res != 512 {
			t.Fatalf("operation %d ended %d times, with %d", i, n, jobs[i].res)
		}
	}
	if len(u.q.ops) > 16 {
		t.Errorf("%d operations were made for a depth of 16", len(u.q.ops))
	}
	// A batch.
	v := newUser(t, Options[*job]{Depth: 16})
	var batch sync.WaitGroup
	batch.Add(16)
	for range 16 {
		if !v.begin(&job{done: func(*job) { batch.Done() }}) {
			t.Fatal("no room")
		}
	}
	if v.begin(&job{}) {
		t.Error("more than the depth are under way")
	}
	v.q.Enter()
	batch.Wait()
	v.close()
	if n := v.q.Stats().Enters; n != 1 {
		t.Errorf("%d system calls for a batch", n)
	}
}

// Close submits what is queued and waits for all that is under way; afterwards nothing is taken, and Enter and Reap do nothing.
func TestCloseWaits(t *testing.T) {
	held := make(chan *Op[*job], 1)
	u := newUser(t, Options[*job]{Depth: 4, Tamper: func(o *Op[*job]) bool {
		if o.V.n == 0 {
			return true
		}
		held <- o
		return false
	}})
	if !u.begin(&job{n: 4096}) || !u.begin(&job{}) {
		t.Fatal("no room")
	}
	closed := make(chan error)
	go func() { closed <- u.q.Close() }()
	o := <-held
	select {
	case err := <-closed:
		t.Fatalf("Close has not waited: %v", err)
	default:
	}
	if u.begin(&job{}) {
		t.Error("a queue that closes takes more")
	}
	o.Res = -int32(unix.EIO)
	u.q.Deliver(o)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n := u.over.Load(); n != 2 {
		t.Errorf("%d operations have ended, want 2", n)
	}
	u.q.Enter()
	u.q.Reap()
	if u.begin(&job{}) {
		t.Error("a queue that is closed takes more")
	}
}

// What the kernel does not take comes back as EAGAIN: where nothing is under way that would make room, or where it will never take
// anything again.
func TestTheKernelRefuses(t *testing.T) {
	for errno, down := range map[unix.Errno]bool{unix.EAGAIN: false, unix.EBUSY: false, unix.ENOMEM: false, unix.EINTR: false, 0: false, unix.EBADF: true, unix.EPERM: true} {
		t.Run(errno.Error(), func(t *testing.T) {
			var refuse atomic.Bool
			refuse.Store(true)
			u := newUser(t, Options[*job]{Depth: 4, enter: func(fd int, n uint32) unix.Errno {
				if refuse.Load() {
					return errno
				}
				return enter(fd, n)
			}})
			defer u.close()
			var jobs [3]job
			for i := range jobs {
				if !u.begin(&jobs[i]) {
					t.Fatal("no room")
				}
			}
			u.q.Enter()
			if u.over.Load() != 3 {
				t.Fatalf("%d have ended", u.over.Load())
			}
			for i := range jobs {
				if jobs[i].res != -int32(unix.EAGAIN) {
					t.Errorf("operation %d: %d", i, jobs[i].res)
				}
			}
			refuse.Store(false)
			u.q.Lock()
			is := u.q.DownLocked()
			u.q.Unlock()
			if is != down || (u.q.Down() != nil) != down || down && !errors.Is(u.q.Down(), ErrUnavailable) {
				t.Fatalf("down: %v, %v", is, u.q.Down())
			}
			if down {
				if u.begin(&job{}) {
					t.Error("a queue that is down takes more")
				}
				return
			}
			if res := u.do(job{n: 512}); res != 512 {
				t.Errorf("after that: %d", res)
			}
		})
	}
}

// While others are under way, what the kernel has no memory for waits, and leaves when one of them has ended.
func TestWantOfMemoryIsWaitedFor(t *testing.T) {
	var refuse atomic.Bool
	held := make(chan *Op[*job], 1)
	u := newUser(t, Options[*job]{Depth: 4, enter: func(fd int, n uint32) unix.Errno {
		if refuse.Load() {
			return unix.EAGAIN
		}
		return enter(fd, n)
	}, Tamper: func(o *Op[*job]) bool {
		if o.V.n == 1 {
			held <- o
			return false
		}
		return true
	}})
	defer u.close()
	if !u.begin(&job{n: 1}) {
		t.Fatal("no room")
	}
	u.q.Enter()
	o := <-held
	refuse.Store(true)
	over := make(chan struct{})
	if !u.begin(&job{n: 512, done: func(*job) { close(over) }}) {
		t.Fatal("no room")
	}
	u.q.Enter()
	if u.over.Load() != 0 {
		t.Fatal("it has ended, and could have waited")
	}
	refuse.Store(false)
	u.q.Deliver(o)
	<-over
}

// Each reason is a sentence that says what to do, and the callers can tell it from a mistake.
func TestWhatForbidsARing(t *testing.T) {
	defer func() { trySetup = setup }()
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.ENOMEM, unix.EMFILE, unix.EINVAL} {
		trySetup = func(uint32, *params) (int, unix.Errno) { return -1, errno }
		_, err := Open(Options[int]{Depth: 1})
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, errno) || !errors.Is(Try(), ErrUnavailable) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	need.IOUring(t)
	trySetup = func(n uint32, p *params) (int, unix.Errno) {
		fd, errno := setup(n, p)
		p.features &^= featNativeWorkers
		return fd, errno
	}
	if _, err := Open(Options[int]{Depth: 1}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("an old kernel: %v", err)
	}
	// One of before Linux 5.18 knows a flag less.
	trySetup = func(n uint32, p *params) (int, unix.Errno) {
		if p.flags&setupSubmitAll != 0 {
			return -1, unix.EINVAL
		}
		return setup(n, p)
	}
	if err := Try(); err != nil {
		t.Errorf("a kernel without IORING_SETUP_SUBMIT_ALL: %v", err)
	}
}

// Without IORING_SETUP_SUBMIT_ALL the kernel takes no more of a batch behind an operation that it refuses: the rest leaves all the same.
func TestABatchBehindARefusedOperation(t *testing.T) {
	defer func() { trySetup = setup }()
	trySetup = func(n uint32, p *params) (int, unix.Errno) {
		p.flags &^= setupSubmitAll
		return setup(n, p)
	}
	u := newUser(t, Options[*job]{Depth: 4})
	var ends sync.WaitGroup
	ends.Add(3)
	jobs := [3]job{{n: 512}, {n: 512, flags: 1 << 30}, {n: 512}} // the second has a flag that there is not
	for i := range jobs {
		jobs[i].done = func(*job) { ends.Done() }
		if !u.begin(&jobs[i]) {
			t.Fatal("no room")
		}
	}
	u.q.Enter()
	ends.Wait()
	u.close()
	if jobs[0].res != 512 || jobs[1].res >= 0 || jobs[2].res != 512 {
		t.Errorf("%d, %d, %d", jobs[0].res, jobs[1].res, jobs[2].res)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	u := newUser(t, Options[*job]{Depth: 32})
	defer u.close()
	over := make(chan struct{}, 1)
	j := job{n: 512, done: func(*job) { over <- struct{}{} }}
	once := func() {
		if !u.begin(&j) {
			t.Fatal("no room")
		}
		u.q.Enter()
		u.q.Reap()
		<-over
	}
	for range 100 {
		once()
	}
	const n = 2000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		once()
	}
	runtime.ReadMemStats(&after)
	if got := after.Mallocs - before.Mallocs; got > n/10 { // the runtime itself allocates now and then
		t.Errorf("%d allocations for %d operations", got, n)
	}
}
