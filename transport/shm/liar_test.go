package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// liar is a peer without an engine: what it says in its region and on the socket is up to the test.
type liar struct {
	t    testing.TB
	c    *net.UnixConn
	slab *mem.Slab
	own  region
	peer region // of the end that is lied to
}

// listening is an end with a listener.
func listening(t testing.TB, o Options, qo transport.QPOptions) (*end, transport.Listener) {
	t.Helper()
	e := newEnd(t, o, qo)
	ln, err := e.dev.Listen(testCtx(t), filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	return e, ln
}

func rawDial(t testing.TB, addr string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: addr, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	return c
}

// lie connects a liar to a fresh end.
func lie(t testing.TB, o Options, qo transport.QPOptions) (*liar, *end) {
	t.Helper()
	e, ln := listening(t, o, qo)
	l := &liar{t: t, c: rawDial(t, ln.Addr().String())}
	var err error
	if l.own, l.slab, err = ownRegion(minSlots); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = e.qp.Close(transport.Reason{})
		l.slab.Close()
		unmap(l.peer.b)
	})
	if err := sendHello(l.c, &hello{kind: msgRequest, slots: minSlots, readsIn: 4, readsOut: 4}, l.slab.FD()); err != nil {
		t.Fatal(err)
	}
	r, err := ln.Accept(testCtx(t))
	if err == nil {
		err = r.Accept(testCtx(t), e.qp, transport.ConnParams{ReadsIn: 4, ReadsOut: 4})
	}
	if err != nil {
		t.Fatal(err)
	}
	h, b, err := readHello(l.c)
	if err != nil || h.kind != msgReply {
		t.Fatal(h, err)
	}
	l.peer = newRegion(b)
	return l, e
}

// put puts a record into the ring as it is, without a look at it.
func (l *liar) put(b []byte) {
	l.slip(b)
	l.bell()
}

// slip puts a record into the ring without a bell.
func (l *liar) slip(b []byte) {
	at := l.own.tail.Load()
	l.own.copyIn(at, b)
	l.own.tail.Store(at + uint64(len(b)/slotSize))
}

func (l *liar) bell() { _, _ = l.c.Write([]byte{msgBell}) } // the end may be gone

// send sends a message with files.
func (l *liar) send(b []byte, fds ...int) {
	l.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := l.c.WriteMsgUnix(b, oob, nil); err != nil {
		l.t.Fatal(err)
	}
}

func (l *liar) slabMsg(n uint32, size uint64) []byte {
	return (&control{kind: msgSlab, slab: n, size: size}).append(nil)
}

// raw is an encoded record, to be spoiled.
func raw(r record) []byte {
	body := len(r.inline)
	if len(r.pieces) > 0 {
		body = len(r.pieces) * pieceLen
	}
	n := slotsFor(body)
	r.slots = uint8(n)
	b := make([]byte, n*slotSize)
	copy(r.put(b)[len(r.pieces)*pieceLen:], r.inline)
	return b
}

// file is a file of memory of this size, all there, with these seals.
func file(t testing.TB, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("liar", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if size > 0 {
		if err := unix.Fallocate(fd, 0, 0, size); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

var (
	stream  = &transport.TerminateError{Layer: transport.LayerRDMAP, Type: 2, Code: 7}
	unknown = &transport.TerminateError{Layer: transport.LayerRDMAP, Type: 1, Code: 0}
)

// A peer whose ring, numbers or messages keep no rule is found out: its connection ends with a Terminate, all that was outstanding comes
// back, and no byte of ours that it was not to write has changed.
func TestLyingPeersAreFoundOut(t *testing.T) {
	patch := func(b []byte, at int, v ...byte) []byte {
		copy(b[at:], v)
		return b
	}
	send := func(n int) record { return record{op: opSend, size: uint32(n), inline: make([]byte, n)} }
	far := func(p piece) record { return record{op: opSend, size: p.n, pieces: []piece{p}} }
	good := func(l *liar) { l.send(l.slabMsg(0, 4096), file(l.t, 4096, mem.Seals)) }
	for name, c := range map[string]struct {
		do   func(l *liar)
		want error
		says string
	}{
		"tail beyond the ring":       {do: func(l *liar) { l.own.tail.Store(minSlots + 1); l.bell() }, want: stream},
		"tail before the start":      {do: func(l *liar) { l.own.tail.Store(math.MaxUint64); l.bell() }, want: stream},
		"head beyond what was put":   {do: func(l *liar) { l.own.head.Store(1000); l.bell() }, want: stream},
		"a record of no slots":       {do: func(l *liar) { l.put(patch(raw(send(8)), 3, 0)) }, want: stream},
		"a record that is not there": {do: func(l *liar) { l.put(patch(raw(send(8)), 3, 2)) }, want: stream},
		"a record without end":       {do: func(l *liar) { l.own.tail.Store(minSlots - 1); l.put(patch(raw(send(8)), 3, 255)) }, want: stream},
		"no operation":               {do: func(l *liar) { l.put(patch(raw(send(8)), 0, 0)) }, want: stream},
		"an unknown operation":       {do: func(l *liar) { l.put(patch(raw(send(8)), 0, opMax)) }, want: stream},
		"unknown flags":              {do: func(l *liar) { l.put(patch(raw(send(8)), 1, 0x80)) }, want: stream},
		"reserved bytes":             {do: func(l *liar) { l.put(patch(raw(send(8)), 25, 1)) }, want: stream},
		"too many pieces":            {do: func(l *liar) { l.put(patch(raw(send(8)), 2, maxSGE+1)) }, want: stream},
		"a huge size in the record":  {do: func(l *liar) { l.put(patch(raw(send(8)), 4, 0xff, 0xff, 0xff, 0xff)) }, want: stream},
		"a size that is not there":   {do: func(l *liar) { l.put(patch(raw(send(8)), 4, 200)) }, want: stream},
		"payload of an unknown slab": {do: func(l *liar) { l.put(raw(far(piece{slab: 3, n: 8}))) }, want: stream},
		"payload of slab 2^32-1":     {do: func(l *liar) { l.put(raw(far(piece{slab: math.MaxUint32, n: 8}))) }, want: stream},
		"payload beyond its slab":    {do: func(l *liar) { good(l); l.put(raw(far(piece{n: 9, off: 4088}))) }, want: stream},
		"payload that wraps":         {do: func(l *liar) { good(l); l.put(raw(far(piece{n: 16, off: math.MaxUint64 - 7}))) }, want: stream},
		"pieces of another sum": {do: func(l *liar) {
			good(l)
			l.put(raw(record{op: opSend, size: 8, pieces: []piece{{n: 4}, {n: 5}}}))
		}, want: stream},
		"a piece of nothing": {do: func(l *liar) { good(l); l.put(raw(record{op: opSend, size: 4, pieces: []piece{{n: 4}, {n: 0}}})) }, want: stream},
		"pieces whose sum overflows": {do: func(l *liar) {
			good(l)
			l.put(raw(record{op: opSend, size: 8, pieces: []piece{{n: math.MaxUint32}, {n: 9}}}))
		}, want: stream},
		"a Send that is too long":    {do: func(l *liar) { l.put(raw(send(65))) }, want: ddpError(2, 5)},
		"a Write to no STag":         {do: func(l *liar) { l.put(raw(record{op: opWrite, size: 8, inline: make([]byte, 8), stag: 5})) }, want: ddpError(1, 0)},
		"a Read of no STag":          {do: func(l *liar) { l.put(raw(record{op: opReadReq, size: 8, stag: 5})) }, want: unknown},
		"a Read with payload":        {do: func(l *liar) { good(l); l.put(raw(record{op: opReadReq, size: 4, pieces: []piece{{n: 4}}})) }, want: stream},
		"an answer to no question":   {do: func(l *liar) { l.put(raw(record{op: opReadResp, size: 8, inline: make([]byte, 8)})) }, want: rdmapError(2, 6)},
		"an invalidation of no STag": {do: func(l *liar) { l.put(raw(record{op: opSendInv, stag: 77})) }, want: rdmapError(1, 9)},
		"more Reads than agreed": {do: func(l *liar) {
			for range 5 {
				l.put(raw(record{op: opReadReq}))
			}
		}, want: ddpError(2, 2)},
		"a slab that is not sealed":   {do: func(l *liar) { l.send(l.slabMsg(0, 4096), file(l.t, 4096, 0)) }, want: stream, says: "seals"},
		"a slab that can shrink":      {do: func(l *liar) { l.send(l.slabMsg(0, 4096), file(l.t, 4096, unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE)) }, want: stream, says: "seals"},
		"a slab that can be written":  {do: func(l *liar) { l.send(l.slabMsg(0, 4096), file(l.t, 4096, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK)) }, want: stream, says: "seals"},
		"a slab that is shorter":      {do: func(l *liar) { l.send(l.slabMsg(0, 8192), file(l.t, 4096, mem.Seals)) }, want: stream, says: "4096"},
		"a slab that is longer":       {do: func(l *liar) { l.send(l.slabMsg(0, 4096), file(l.t, 8192, mem.Seals)) }, want: stream, says: "8192"},
		"a slab of nothing":           {do: func(l *liar) { l.send(l.slabMsg(0, 0), file(l.t, 0, mem.Seals)) }, want: stream},
		"a slab with a hole":          {do: func(l *liar) { l.send(l.slabMsg(0, 1<<20), holed(l.t, 1<<20)) }, want: stream, says: "holes"},
		"a slab of an exabyte":        {do: func(l *liar) { l.send(l.slabMsg(0, 1<<60), holed(l.t, 1<<60)) }, want: stream, says: "most"},
		"a slab in another's place":   {do: func(l *liar) { good(l); l.send(l.slabMsg(maxSlabs, 4096), file(l.t, 4096, mem.Seals)) }, want: stream, says: "still is"},
		"a slab twice":                {do: func(l *liar) { good(l); good(l) }, want: stream, says: "still is"},
		"payload of an earlier life":  {do: func(l *liar) { good(l); l.put(raw(far(piece{slab: maxSlabs, n: 8}))) }, want: stream},
		"a pipe for a slab":           {do: func(l *liar) { l.send(l.slabMsg(0, 4096), pipe(l.t)) }, want: stream, says: "no file of ordinary memory"},
		"a file of a disk for a slab": {do: func(l *liar) { l.send(l.slabMsg(0, 4096), diskFile(l.t)) }, want: stream},
		"a slab without a file":       {do: func(l *liar) { l.send(l.slabMsg(0, 4096)) }, want: stream, says: "file"},
		"a slab with two files": {do: func(l *liar) {
			l.send(l.slabMsg(0, 4096), file(l.t, 4096, mem.Seals), file(l.t, 4096, mem.Seals))
		}, want: stream, says: "2 came"},
		"a bell with a file":       {do: func(l *liar) { l.send([]byte{msgBell}, file(l.t, 4096, mem.Seals)) }, want: stream, says: "file"},
		"a withdrawal with a file": {do: func(l *liar) { good(l); l.send((&control{kind: msgWithdraw}).append(nil), file(l.t, 4096, mem.Seals)) }, want: stream},
		"a withdrawal of nothing":  {do: func(l *liar) { l.send((&control{kind: msgWithdraw, slab: 9}).append(nil)) }, want: stream},
		"payload of a withdrawn slab": {do: func(l *liar) {
			good(l)
			l.send((&control{kind: msgWithdraw}).append(nil))
			l.put(raw(far(piece{n: 4})))
		}, want: stream},
		"a message that is none":      {do: func(l *liar) { l.send([]byte("hello, world")) }, want: stream},
		"a message without end":       {do: func(l *liar) { l.send(append(l.slabMsg(0, 4096), make([]byte, 200)...)) }, want: stream},
		"last words that say nothing": {do: func(l *liar) { l.own.ended.Store(77); l.bell() }, want: ErrPeerGone},
		"last words of 64 KiB": {do: func(l *liar) {
			binary.LittleEndian.PutUint32(l.own.b[atWords+4:], 0xffff)
			l.own.b[atWords] = 1
			l.own.ended.Store(uint32(broken))
			l.bell()
		}, want: transport.ErrClosed},
		"the end of the socket":        {do: func(l *liar) { l.c.Close() }, want: ErrPeerGone},
		"the end amid a record":        {do: func(l *liar) { l.own.copyIn(0, raw(send(8))); l.c.Close() }, want: ErrPeerGone},
		"an empty message is an end":   {do: func(l *liar) { l.send(nil) }, want: ErrPeerGone},
		"last words with control text": {do: func(l *liar) { l.words("a\x1b[2Jb\nc") }, want: transport.ErrClosed, says: "a?[2Jb?c"},
	} {
		t.Run(name, func(t *testing.T) {
			l, e := lie(t, Options{}, transport.QPOptions{})
			m := e.slab(3 * 4096)
			fill(m.Bytes(), 1)
			e.recv(1, m.Cut(0, 64))
			e.bind(m.Cut(4096, 4096), transport.RemoteWrite|transport.RemoteRead)
			c.do(l)
			err := e.drain()
			if !errors.Is(err, c.want) || !errors.Is(err, transport.ErrClosed) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v, want %v that says %q", err, c.want, c.says)
			}
			if len(e.got) != 1 || e.got[0].Op != transport.OpRecv || e.got[0].Err == nil {
				t.Errorf("came back: %+v", e.got)
			}
			same(t, "memory here", m.Bytes(), filled(3*4096, 1))
			var term *transport.TerminateError
			if errors.As(err, &term) && !term.Remote {
				if got := l.peer.lastWords(); !errors.Is(got, term) {
					t.Errorf("the peer was told %v", got)
				}
			}
		})
	}
}

func ddpError(typ, code uint8) error {
	return &transport.TerminateError{Layer: transport.LayerDDP, Type: typ, Code: code}
}

func rdmapError(typ, code uint8) error {
	return &transport.TerminateError{Layer: transport.LayerRDMAP, Type: typ, Code: code}
}

// words ends the connection with a text.
func (l *liar) words(text string) {
	l.own.say(&transport.TerminateError{Detail: text}, false)
	l.bell()
}

// holed is a sealed file of which nothing is there.
func holed(t testing.TB, size int64) int {
	t.Helper()
	fd := file(t, 0, 0)
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, mem.Seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

func pipe(t testing.TB) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return int(r.Fd())
}

func diskFile(t testing.TB) int {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

// A process that has no room for a descriptor is told so by the kernel, and does not take the message for one without a file.
func TestFilesThatAreCutOffAreRefused(t *testing.T) {
	l, e := lie(t, Options{}, transport.QPOptions{})
	fd := file(t, 4096, mem.Seals)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	l.send(l.slabMsg(0, 4096), fd)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	if err := e.drain(); !errors.Is(err, stream) || !strings.Contains(err.Error(), "limit of open files") {
		t.Errorf("ended with %v", err)
	}
}

// What changes while it is read is read once: whatever a record says, nothing is placed outside of what the peer may write.
func TestARingThatChangesUnderTheReader(t *testing.T) {
	var taken uint64
	for range 10 {
		l, e := lie(t, Options{}, transport.QPOptions{})
		m := e.slab(16 << 10)
		fill(m.Bytes(), 3)
		w := e.bind(m.Cut(4096, 4096), transport.RemoteWrite).Remote()
		l.send(l.slabMsg(0, 4096), file(t, 4096, mem.Seals))
		stop, done := make(chan struct{}), make(chan struct{})
		go func() { // sizes and offsets go on changing, together as a rule
			defer close(done)
			for i := byte(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				for s := range minSlots {
					b := l.own.slots[s*slotSize:]
					b[4], b[5] = i*16, i%16
					b[16] = i
					b[36], b[37] = i*16, i%16
				}
			}
		}()
		for range 1000 {
			for l.own.tail.Load()-l.peer.head.Load() < minSlots-2 {
				l.slip(raw(record{op: opWrite, size: 256, stag: w.STag, off: w.Off, pieces: []piece{{n: 256}}}))
			}
			if _, err := e.qp.Poll(e.wc[:]); err != nil {
				break
			}
		}
		close(stop)
		<-done
		taken += e.qp.Stats().Records
		_ = e.qp.Close(transport.Reason{})
		_ = e.drain()
		same(t, "memory before the window", m.Bytes()[:4096], filled(16<<10, 3)[:4096])
		same(t, "memory behind the window", m.Bytes()[8192:], filled(16<<10, 3)[8192:])
	}
	if taken < 1000 {
		t.Errorf("%d records were taken: the test shows nothing", taken)
	}
}

// Requests that are none are refused, with a reason where the dialler still listens, and the listener goes on.
func TestRequestsThatAreNone(t *testing.T) {
	e, ln := listening(t, Options{}, transport.QPOptions{})
	size := int64(regionSize(minSlots))
	hi := hello{kind: msgRequest, slots: minSlots}
	enc := func(h hello) []byte { return h.append(nil) }
	bad := func(at int, v byte) []byte {
		b := enc(hi)
		b[at] = v
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		fd   int
		says string
	}{
		"no file":              {enc(hi), -1, "file"},
		"an unsealed region":   {enc(hi), file(t, size, 0), "seals"},
		"a short region":       {enc(hi), file(t, size-4096, mem.Seals), "bytes"},
		"a region with holes":  {enc(hi), holed(t, size), "holes"},
		"another's greeting":   {[]byte("GET / HTTP/1.1\r\nHost: sluice\r\n\r\n"), -1, "another program"},
		"another version":      {bad(9, 9), file(t, size, mem.Seals), "version 9"},
		"a reply":              {enc(hello{kind: msgReply, slots: minSlots}), file(t, size, mem.Seals), "does not speak"},
		"a refusal":            {enc(hello{kind: msgRefusal}), -1, "does not speak"},
		"a ring of 63 slots":   {enc(hello{kind: msgRequest, slots: 63}), file(t, size, mem.Seals), "63"},
		"a ring of 2^31":       {enc(hello{kind: msgRequest, slots: 1 << 31}), file(t, size, mem.Seals), "slots"},
		"private data of 600":  {enc(hello{kind: msgRequest, slots: minSlots, private: make([]byte, 600)}), file(t, size, mem.Seals), "600"},
		"text that is missing": {append([]byte(nil), bad(20, 50)...), file(t, size, mem.Seals), "50"},
		"more than it says":    {append(enc(hi), 0), file(t, size, mem.Seals), "bytes"},
		"far too much":         {append(enc(hi), make([]byte, 4000)...), file(t, size, mem.Seals), "does not speak"},
	} {
		t.Run(name, func(t *testing.T) {
			c0 := rawDial(t, ln.Addr().String())
			var oob []byte
			if c.fd >= 0 {
				oob = unix.UnixRights(c.fd)
			}
			if _, _, err := c0.WriteMsgUnix(c.b, oob, nil); err != nil {
				t.Fatal(err)
			}
			h, _, err := readHello(c0)
			if err != nil || h.kind != msgRefusal || !strings.Contains(h.text, c.says) {
				t.Errorf("answered %+v, %v; want a refusal that says %q", h, err, c.says)
			}
		})
	}
	silent := rawDial(t, ln.Addr().String()) // and one that says nothing holds no other up
	defer silent.Close()
	a := newEnd(t, Options{}, transport.QPOptions{})
	errs := make(chan error, 1)
	go func() {
		r, err := ln.Accept(testCtx(t))
		if err == nil {
			err = r.Accept(testCtx(t), e.qp, transport.ConnParams{})
		}
		errs <- err
	}()
	if _, err := a.dev.Dial(testCtx(t), ln.Addr().String(), a.qp, transport.ConnParams{}); err != nil {
		t.Error(err)
	}
	if err := <-errs; err != nil {
		t.Error(err)
	}
}

// A dialler believes its listener as little.
func TestListenersThatLie(t *testing.T) {
	for name, c := range map[string]struct {
		h    hello
		fd   func(t testing.TB) int
		says string
	}{
		"no file":            {hello{kind: msgReply, slots: minSlots}, func(testing.TB) int { return -1 }, "file"},
		"an unsealed region": {hello{kind: msgReply, slots: minSlots}, func(t testing.TB) int { return file(t, int64(regionSize(minSlots)), 0) }, "seals"},
		"a request":          {hello{kind: msgRequest, slots: minSlots}, func(t testing.TB) int { return file(t, int64(regionSize(minSlots)), mem.Seals) }, "does not speak"},
		"control text":       {hello{kind: msgRefusal, text: "no\x1b]0;x\a"}, func(testing.TB) int { return -1 }, "no?]0;x?"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			fd := c.fd(t)
			go func() {
				uc, err := ln.AcceptUnix()
				if err != nil {
					return
				}
				defer uc.Close()
				if _, b, err := readHello(uc); err == nil {
					unmap(b)
					_ = sendHello(uc, &c.h, fd)
				}
			}()
			a := newEnd(t, Options{}, transport.QPOptions{})
			if _, err := a.dev.Dial(testCtx(t), path, a.qp, transport.ConnParams{}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, which does not say %q", err, c.says)
			}
		})
	}
}

// A dialler that is not admitted learns that, and nothing of why.
func TestAdmitDecides(t *testing.T) {
	seen := make(chan *transport.Process, 1)
	_, ln := listening(t, Options{Admit: func(c *transport.Process) error {
		seen <- c
		return errors.New("secret reason")
	}}, transport.QPOptions{})
	a := newEnd(t, Options{}, transport.QPOptions{})
	_, err := a.dev.Dial(context.Background(), ln.Addr().String(), a.qp, transport.ConnParams{})
	var no *RefusedError
	if !errors.As(err, &no) || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "admitted") {
		t.Errorf("refused with %v", err)
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	got := <-seen
	if got.PID != os.Getpid() || got.UID != uint32(os.Geteuid()) || got.GID != uint32(os.Getegid()) || len(got.Groups) != len(groups) {
		t.Errorf("the dialler was taken for %+v", got)
	}
	for _, g := range groups {
		if !got.In(uint32(g)) {
			t.Errorf("group %d is missing: %+v", g, got)
		}
	}
}
