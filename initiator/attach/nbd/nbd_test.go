package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ram is a Volume in memory that answers on goroutines of its own, in any order.
type ram struct {
	pool *mem.Pool
	mu   sync.Mutex
	b    []byte
	fail error
	hold chan struct{} // when set, answers wait for it
	hole bool          // status says unmapped
	zero bool          // unmapped blocks read as zeroes
	ops  []blockdev.Op
}

func newRAM(t testing.TB, n int) *ram {
	r := &ram{pool: mem.NewPool(128 << 20), b: make([]byte, n)}
	t.Cleanup(func() {
		if used := r.pool.Used(); used != 0 {
			t.Errorf("%d bytes of buffers are still held", used)
		}
		if err := r.pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *ram) Memory() *mem.Pool { return r.pool }
func (r *ram) Geometry() blockdev.Geometry {
	return blockdev.Geometry{Size: int64(len(r.b)), Logical: 512, Physical: 4096, DiscardUnit: 512, DiscardZeroes: r.zero}
}

func (r *ram) SubmitAll(qs []*blockdev.Request) {
	for _, q := range qs {
		r.submit(q)
	}
}

func (r *ram) submit(q *blockdev.Request) {
	after := q.After
	go func() {
		defer after.Flush()
		if r.hold != nil {
			<-r.hold
		}
		r.mu.Lock()
		r.ops = append(r.ops, q.Op)
		at := r.b[q.Offset : q.Offset+q.Length]
		q.Err = r.fail
		switch {
		case q.Err != nil:
		case q.Op == blockdev.Read:
			for _, s := range q.Data {
				at = at[copy(s.Bytes(), at):]
			}
		case q.Op == blockdev.Write:
			for _, s := range q.Data {
				at = at[copy(at, s.Bytes()):]
			}
		case q.Op == blockdev.WriteZeroes, q.Op == blockdev.Discard:
			clear(at)
		case q.Op == blockdev.Status:
			q.Extents = append(q.Extents, blockdev.Extent{Offset: q.Offset, Length: q.Length, Mapped: !r.hole})
		}
		r.mu.Unlock()
		q.Done(q)
	}()
}

// serve runs a server and gives what connects to it.
func serve(t testing.TB, v Volume, o Options) func() net.Conn {
	dir, err := os.MkdirTemp("", "nbd") // a test's own directory can have too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(v, o).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return func() net.Conn {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// socketPair is two ends of a unix socket without a name.
func socketPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var cs [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		cs[i], err = net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return cs[0], cs[1]
}

func read(t testing.TB, c net.Conn, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return b
}

func send(t testing.TB, c net.Conn, parts ...any) {
	t.Helper()
	var b bytes.Buffer
	for _, p := range parts {
		if raw, ok := p.([]byte); ok {
			b.Write(raw)
			continue
		}
		if err := binary.Write(&b, be, p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
}

func option(t testing.TB, c net.Conn, opt uint32, data []byte) (kind uint32, answer []byte) {
	t.Helper()
	send(t, c, uint64(magicOption), opt, uint32(len(data)), data)
	return optionReply(t, c, opt)
}

func optionReply(t testing.TB, c net.Conn, opt uint32) (uint32, []byte) {
	t.Helper()
	h := read(t, c, 20)
	if be.Uint64(h) != magicReply || be.Uint32(h[8:]) != opt {
		t.Fatalf("option reply begins with % x", h)
	}
	return be.Uint32(h[12:]), read(t, c, int(be.Uint32(h[16:])))
}

// hello goes into transmission with structured replies and base:allocation.
func hello(t testing.TB, c net.Conn) {
	t.Helper()
	h := read(t, c, 18)
	if be.Uint64(h) != magicInit || be.Uint64(h[8:]) != magicOption || be.Uint16(h[16:]) != flagFixedNewstyle|flagNoZeroes {
		t.Fatalf("greeting % x", h)
	}
	send(t, c, uint32(flagFixedNewstyle|flagNoZeroes))
	if k, _ := option(t, c, optStructuredReply, nil); k != repAck {
		t.Fatalf("structured replies: 0x%x", k)
	}
	q := be.AppendUint32(nil, 0)
	q = be.AppendUint32(q, 1)
	q = be.AppendUint32(q, uint32(len(allocation)))
	if k, b := option(t, c, optSetMeta, append(q, allocation...)); k != repMetaContext || string(b[4:]) != allocation {
		t.Fatalf("meta context: 0x%x %q", k, b)
	}
	if k, _ := optionReply(t, c, optSetMeta); k != repAck {
		t.Fatalf("meta context ends with 0x%x", k)
	}
	k, b := option(t, c, optGo, append(be.AppendUint32(nil, 0), 0, 0))
	for ; k == repInfo; k, b = optionReply(t, c, optGo) {
		if be.Uint16(b) == infoExport && be.Uint16(b[10:])&(sendFUA|canMultiConn|sendFlush) != sendFUA|canMultiConn|sendFlush {
			t.Errorf("transmission flags 0x%x", b[10:12])
		}
	}
	if k != repAck {
		t.Fatalf("GO: 0x%x", k)
	}
}

func request(t testing.TB, c net.Conn, cmd, flags uint16, cookie, off uint64, n uint32, data []byte) {
	t.Helper()
	send(t, c, uint32(magicRequest), flags, cmd, cookie, off, n, data)
}

// answer reads one structured reply.
func answer(t testing.TB, c net.Conn) (kind uint16, cookie uint64, data []byte) {
	t.Helper()
	h := read(t, c, structuredLen)
	if be.Uint32(h) != magicStructured {
		t.Fatalf("reply begins with % x", h)
	}
	return be.Uint16(h[6:]), be.Uint64(h[8:]), read(t, c, int(be.Uint32(h[16:])))
}

func errorOf(t testing.TB, c net.Conn) unix.Errno {
	t.Helper()
	kind, _, data := answer(t, c)
	if kind != chunkError {
		return 0
	}
	return unix.Errno(be.Uint32(data))
}

func TestEveryRequestDoesWhatItSays(t *testing.T) {
	v := newRAM(t, 4<<20)
	c := serve(t, v, Options{Name: "vol"})()
	hello(t, c)
	data := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // 3 MiB: several buffers
	request(t, c, cmdWrite, flagFUA, 1, 512, uint32(len(data)), data)
	if kind, cookie, _ := answer(t, c); kind != chunkNone || cookie != 1 {
		t.Fatalf("write: %d for %d", kind, cookie)
	}
	request(t, c, cmdRead, flagDF, 2, 512, uint32(len(data)), nil)
	if kind, _, b := answer(t, c); kind != chunkOffsetData || be.Uint64(b) != 512 || !bytes.Equal(b[8:], data) {
		t.Fatal("what was read differs from what was written")
	}
	request(t, c, cmdWriteZeroes, 0, 3, 512, 4096, nil)
	request(t, c, cmdFlush, 0, 4, 0, 0, nil)
	request(t, c, cmdTrim, 0, 5, 8192, 4096, nil)
	for range 3 {
		if e := errorOf(t, c); e != 0 {
			t.Errorf("error %v", e)
		}
	}
	request(t, c, cmdBlockStatus, flagReqOne, 6, 0, 4096, nil)
	if kind, _, b := answer(t, c); kind != chunkBlockStatus || be.Uint32(b) != contextID || be.Uint32(b[4:]) != 4096 || be.Uint32(b[8:]) != 0 {
		t.Errorf("block status %d % x", kind, b)
	}
	request(t, c, cmdDisc, 0, 7, 0, 0, nil)
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after DISC %d, %v", n, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !bytes.Equal(v.b[512:4608], make([]byte, 4096)) || !bytes.Equal(v.b[8192:12288], make([]byte, 4096)) {
		t.Error("zeroes were not written")
	}
}

func TestWhatIsWrongWithARequestIsAnsweredAndTheNextOneServed(t *testing.T) {
	v := newRAM(t, 1<<20)
	dial := serve(t, v, Options{})
	c := dial()
	hello(t, c)
	for name, f := range map[string]struct {
		cmd  uint16
		off  uint64
		n    uint32
		data []byte
		want unix.Errno
	}{
		"read beyond the end":     {cmdRead, 1 << 20, 512, nil, unix.EINVAL},
		"read that wraps":         {cmdRead, 1<<64 - 512, 1024, nil, unix.EINVAL},
		"write beyond the end":    {cmdWrite, 1<<20 - 512, 1024, make([]byte, 1024), unix.ENOSPC},
		"read of part of a block": {cmdRead, 1, 512, nil, unix.EINVAL},
		"read of nothing":         {cmdRead, 0, 0, nil, unix.EINVAL},
		"read of too much":        {cmdRead, 0, maxPayload + 512, nil, unix.EOVERFLOW},
		"unknown request":         {99, 0, 512, nil, unix.EINVAL},
	} {
		request(t, c, f.cmd, 0, 9, f.off, f.n, f.data)
		if e := errorOf(t, c); e != f.want {
			t.Errorf("%s: %v, want %v", name, e, f.want)
		}
	}
	v.mu.Lock()
	v.fail = blockdev.ErrMedium
	v.mu.Unlock()
	request(t, c, cmdRead, 0, 10, 0, 512, nil)
	if e := errorOf(t, c); e != unix.EIO {
		t.Errorf("a medium error is %v", e)
	}
}

func TestWhoBreaksTheProtocolIsCutOff(t *testing.T) {
	v := newRAM(t, 1<<20)
	dial := serve(t, v, Options{})
	for name, f := range map[string]func(net.Conn){
		"bad magic":            func(c net.Conn) { hello(t, c); send(t, c, make([]byte, requestLen)) },
		"write of a gibibyte":  func(c net.Conn) { hello(t, c); request(t, c, cmdWrite, 0, 1, 0, 1<<30, nil) },
		"unknown client flags": func(c net.Conn) { read(t, c, 18); send(t, c, uint32(1<<31)) },
		"enormous option": func(c net.Conn) {
			read(t, c, 18)
			send(t, c, uint32(1), uint64(magicOption), uint32(optGo), uint32(1<<31))
		},
		"bad option magic": func(c net.Conn) { read(t, c, 18); send(t, c, uint32(1), make([]byte, 16)) },
	} {
		c := dial()
		f(c)
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := dial()
	hello(t, c)
	request(t, c, cmdFlush, 0, 1, 0, 0, nil)
	if e := errorOf(t, c); e != 0 {
		t.Errorf("the next client gets %v", e)
	}
}

func TestAReadOnlyExportRefusesWrites(t *testing.T) {
	c := serve(t, newRAM(t, 1<<20), Options{ReadOnly: true})()
	hello(t, c)
	request(t, c, cmdWrite, 0, 1, 0, 512, make([]byte, 512))
	if e := errorOf(t, c); e != unix.EPERM {
		t.Errorf("error %v", e)
	}
}

// A client that vanishes with requests under way leaves nothing behind: buffers return when the volume has answered.
func TestAClientThatVanishesLeavesNothing(t *testing.T) {
	v := newRAM(t, 1<<20)
	v.hold = make(chan struct{})
	c := serve(t, v, Options{})()
	hello(t, c)
	for i := range slots {
		request(t, c, cmdRead, 0, uint64(i), 0, 4096, nil)
	}
	c.Close()
	close(v.hold) // newRAM's clean-up looks for buffers
}

// Requests of several connections in any order end as if done one by one, as a byte array says.
func TestManyRequestsAgainstAModel(t *testing.T) {
	const size = 1 << 20
	v := newRAM(t, size)
	dial := serve(t, v, Options{})
	cs := []net.Conn{dial(), dial()}
	for _, c := range cs {
		hello(t, c)
	}
	model := make([]byte, size)
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(1, 8).Draw(rt, "requests") {
			c := cs[rapid.IntRange(0, 1).Draw(rt, "connection")]
			off := rapid.Uint64Range(0, size/512-1).Draw(rt, "block") * 512
			n := uint32(min(rapid.Uint64Range(1, 64).Draw(rt, "blocks")*512, size-off))
			switch rapid.IntRange(0, 2).Draw(rt, "op") {
			case 0:
				request(t, c, cmdRead, 0, 1, off, n, nil)
				if _, _, b := answer(t, c); !bytes.Equal(b[8:], model[off:off+uint64(n)]) {
					rt.Fatalf("read of %d at %d differs", n, off)
				}
			case 1:
				data := bytes.Repeat([]byte{rapid.Byte().Draw(rt, "byte")}, int(n))
				copy(model[off:], data)
				request(t, c, cmdWrite, 0, 1, off, n, data)
				if e := errorOf(t, c); e != 0 {
					rt.Fatal(e)
				}
			case 2:
				clear(model[off : off+uint64(n)])
				request(t, c, cmdWriteZeroes, 0, 1, off, n, nil)
				if e := errorOf(t, c); e != 0 {
					rt.Fatal(e)
				}
			}
		}
	})
}

// Whatever a client sends, the server neither panics nor touches what lies outside the volume, and serves the next one.
func FuzzServer(f *testing.F) {
	greet := binary.BigEndian.AppendUint32(nil, 3)
	opt := func(o uint32, data ...byte) []byte {
		b := be.AppendUint64(nil, magicOption)
		b = be.AppendUint32(b, o)
		b = be.AppendUint32(b, uint32(len(data)))
		return append(b, data...)
	}
	req := func(cmd uint16, off uint64, n uint32) []byte {
		b := be.AppendUint32(nil, magicRequest)
		b = be.AppendUint16(b, 0)
		b = be.AppendUint16(b, cmd)
		b = be.AppendUint64(b, 1)
		b = be.AppendUint64(b, off)
		return be.AppendUint32(b, n)
	}
	export := append(bytes.Clone(greet), opt(optExportName)...)
	f.Add(append(bytes.Clone(export), req(cmdRead, 0, 512)...))
	f.Add(append(bytes.Clone(export), append(req(cmdWrite, 0, 512), make([]byte, 512)...)...))
	f.Add(append(bytes.Clone(export), req(cmdWriteZeroes, 1<<63, 512)...))
	f.Add(append(bytes.Clone(greet), opt(optGo, 0, 0, 0, 0, 0, 0)...))
	f.Add(append(bytes.Clone(greet), append(opt(optStructuredReply), opt(optSetMeta, 0, 0, 0, 0, 0, 0, 0, 1)...)...))
	f.Add(append(bytes.Clone(greet), opt(optList)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		v := newRAM(t, 1<<16)
		ours, theirs := socketPair(t)
		s := New(v, Options{Name: "v"})
		done := s.accept(theirs, true)
		go func() { _, _ = io.Copy(io.Discard, ours) }()
		_ = ours.SetDeadline(time.Now().Add(30 * time.Second))
		_, _ = ours.Write(in) // the server may hang up in the middle
		ours.Close()
		<-done
	})
}
