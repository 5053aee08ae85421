package file_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	iscsitarget "github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// host is an initiator over TCP that sends what it is told to, and waits for nothing by itself.
type host struct {
	t     *testing.T
	c     net.Conn
	isid  iscsi.ISID
	cmdSN uint32
}

func newHost(t *testing.T, at string, isid byte) *host {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(blockdevtest.Patience)); err != nil {
		t.Fatal(err)
	}
	return &host{t: t, c: c, isid: iscsi.ISID{0x80, 0, 0, 0, 0, isid}, cmdSN: 1}
}

func (h *host) put(p iscsi.PDU, data []byte) {
	h.t.Helper()
	b := make(iscsi.BHS, iscsi.BHSLen)
	p.Put(b)
	m := append([]byte(b), data...)
	for len(m)%4 != 0 {
		m = append(m, 0)
	}
	if _, err := h.c.Write(m); err != nil {
		h.t.Fatal(err)
	}
}

// hear returns the next PDU, or an error at the end of the connection.
func (h *host) hear() (iscsi.BHS, error) {
	b := make(iscsi.BHS, iscsi.BHSLen)
	if _, err := io.ReadFull(h.c, b); err != nil {
		return nil, err
	}
	n := b.DataLen()
	_, err := io.CopyN(io.Discard, h.c, int64(n+(-n&3)))
	return b, err
}

func (h *host) askIn() {
	h.t.Helper()
	keys := []byte("InitiatorName=iqn.2026-01.org.example:host\x00TargetName=" + stand.Name + "\x00SessionType=Normal\x00")
	h.put(&iscsi.LoginRequest{Transit: true, CSG: iscsi.StageOperational, NSG: iscsi.StageFullFeature, ISID: h.isid, ITT: 1, CmdSN: h.cmdSN, DataLen: len(keys)}, keys)
}

func isIn(b iscsi.BHS, err error) bool {
	if err != nil || b.Opcode() != iscsi.OpLoginResponse {
		return false
	}
	var r iscsi.LoginResponse
	r.Parse(b)
	return r.Status == iscsi.LoginSuccess && r.NSG == iscsi.StageFullFeature
}

// enter logs in, and hears the unit attentions.
func (h *host) enter() *host {
	h.t.Helper()
	h.askIn()
	if b, err := h.hear(); !isIn(b, err) {
		h.t.Fatalf("login: %x, %v", []byte(b), err)
	}
	for range 8 {
		if h.do(0) == 0 {
			return h
		}
	}
	h.t.Fatal("the unit is never ready")
	return nil
}

// send sends a command of one block, or of none: READ (10), WRITE (10) with its data, TEST UNIT READY.
func (h *host) send(op byte, data []byte) {
	h.t.Helper()
	q := &iscsi.SCSICommand{Final: true, Attr: 1, ITT: h.cmdSN, CmdSN: h.cmdSN, DataLen: len(data), Read: op == 0x28, Write: op == 0x2a}
	q.CDB[0] = op
	if op != 0 {
		q.EDTL = 4096
		binary.BigEndian.PutUint16(q.CDB[7:], 1)
	}
	h.cmdSN++
	h.put(q, data)
}

// do is a command without data, and its status.
func (h *host) do(op byte) uint8 {
	h.t.Helper()
	h.send(op, nil)
	for {
		b, err := h.hear()
		if err != nil {
			h.t.Fatal(err)
		}
		if b.Opcode() == iscsi.OpSCSIResponse {
			var r iscsi.SCSIResponse
			r.Parse(b)
			return r.Status
		}
	}
}

// While the kernel has a request of a session, whatever it comes to then, neither is the next login of that initiator port answered, nor is
// the unit closed: until then the kernel may write to the medium, or to memory that another request would be given (RFC 7143 section
// 6.3.5). Other sessions go on.
func TestASessionWaitsForItsCompletions(t *testing.T) {
	for _, c := range []struct {
		name string
		op   byte
		res  int32 // of the completion, 0 for what it is
	}{
		{"a read", 0x28, 0}, {"a write", 0x2a, 0}, {"a read that fails", 0x28, -int32(unix.EIO)}, {"a write that fails", 0x2a, -int32(unix.EIO)},
		{"a write that is done again", 0x2a, -int32(unix.ECANCELED)},
	} {
		data := bytes.Repeat([]byte{0x5a}, 4096)
		begin := func(t *testing.T) (b *stand.Blocks, at, path string, old, other *host, deliver func()) {
			h := &held{came: make(chan struct{}, 16)}
			d, path := tampered(t, file.Options{}, h.see)
			b = stand.NewBlocks(t, stand.BlockOptions{}, scsi.LUOptions{Device: d, Name: "v", Serial: "v-1"})
			at = b.Portal("127.0.0.1", 1)
			old, other = newHost(t, at, 1).enter(), newHost(t, at, 2).enter()
			h.set(true)
			if c.op == 0x2a {
				old.send(c.op, data)
			} else {
				old.send(c.op, nil)
			}
			<-h.came
			h.set(false)
			return b, at, path, old, other, func() {
				if c.res != 0 {
					*h.all[0].Res() = c.res
				}
				h.deliver(1)
			}
		}
		wrote := func(t *testing.T, path string) {
			if c.op == 0x2a && !bytes.Equal(content(t, path, 0, len(data)), data) {
				t.Error("the write that had to be waited for is not there")
			}
		}
		t.Run(c.name+", reinstatement", func(t *testing.T) {
			_, at, path, old, other, deliver := begin(t)
			again := newHost(t, at, 1)
			again.askIn()
			for { // the old session is ended at once
				if _, err := old.hear(); err != nil {
					break
				}
			}
			var delivered atomic.Bool
			in := make(chan struct{})
			go func() {
				defer close(in)
				if b, err := again.hear(); !isIn(b, err) {
					t.Errorf("the login of the session that takes the old one's place: %x, %v", []byte(b), err)
				}
				if !delivered.Load() {
					t.Error("the login was answered while the kernel had a request of the old session")
				}
			}()
			if st := other.do(0); st != 0 {
				t.Errorf("TEST UNIT READY of another session: status %#x", st)
			}
			select {
			case <-in:
				t.Error("the login has not waited")
			default:
			}
			delivered.Store(true)
			deliver()
			<-in
			wrote(t, path)
		})
		t.Run(c.name+", close", func(t *testing.T) {
			b, _, path, _, other, deliver := begin(t)
			if err := b.SCSI.RemoveLUN(0); err != nil {
				t.Fatal(err)
			}
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				b.Units[0].Close()
			}()
			if st := other.do(0); st == 0 {
				t.Error("the unit is still there")
			}
			select {
			case <-closed:
				t.Error("Close has not waited for what the kernel has")
			default:
			}
			deliver()
			<-closed
			wrote(t, path)
		})
	}
}

// A target whose sessions have requests with the kernel, by iSER and by TCP, is removed when the last of them has ended.
func TestATargetWaitsForItsCompletions(t *testing.T) {
	for _, scheme := range []string{"iser", "iscsi"} {
		t.Run(scheme, func(t *testing.T) {
			const n = 4 // the command window of a session that was idle
			h := &held{came: make(chan struct{}, n)}
			d, _ := tampered(t, file.Options{}, h.see)
			b := stand.NewBlocks(t, stand.BlockOptions{Server: iscsitarget.Options{Device: iwarp.New(iwarp.Options{})}}, scsi.LUOptions{Device: d, Name: "v", Serial: "v-1"})
			at := b.Portal("127.0.0.1", 1)
			dev := iwarp.New(iwarp.Options{})
			ini, err := block.New(block.Options{Device: dev})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), blockdevtest.Patience)
			defer cancel()
			vol, err := ini.Open(ctx, b.URL(scheme))
			if err != nil {
				t.Fatal(err)
			}
			buf, err := vol.Memory().Get(4096)
			if err != nil {
				t.Fatal(err)
			}
			h.set(true)
			var ends sync.WaitGroup
			ends.Add(n)
			for i := range n {
				op := blockdev.Read
				if i%2 == 1 {
					op = blockdev.Write
				}
				vol.Submit(&blockdev.Request{Op: op, Offset: int64(i) * 4096, Length: 4096, Data: []mem.Span{buf.Span().Cut(0, 4096)}, Done: func(*blockdev.Request) { ends.Done() }})
			}
			for range n {
				<-h.came
			}
			h.set(false)
			removed := make(chan struct{})
			go func() {
				defer close(removed)
				if err := b.Server.RemoveTarget(ctx, stand.Name); err != nil {
					t.Error(err)
				}
			}()
			for in := true; in; { // until it has begun
				stranger := newHost(t, at, 9)
				stranger.askIn()
				in = isIn(stranger.hear())
				stranger.c.Close()
			}
			h.deliver(n - 1)
			select {
			case <-removed:
				t.Error("the target was removed while the kernel had a request of its session")
			default:
			}
			h.deliver(1)
			<-removed
			if err := vol.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
				t.Log(err) // it cannot flush: the target is gone
			}
			ends.Wait()
			buf.Release()
			if err := errors.Join(ini.Close(), dev.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}
