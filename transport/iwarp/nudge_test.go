package iwarp

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// deaf is a responder of bytes: it answers the MPA Request and then says nothing until told.
func deaf(t *testing.T) (addr string, conn chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	conn = make(chan net.Conn, 1)
	go func() {
		defer close(conn)
		c, err := l.Accept()
		if err != nil {
			return
		}
		if _, err := readFrame(c, false); err != nil {
			t.Error(err)
			return
		}
		rep := mpaFrame{Reply: true, Revision: 2, Enhanced: true, IRD: 1, ORD: 1}
		if _, err := c.Write(rep.append(nil)); err != nil {
			t.Error(err)
			return
		}
		conn <- c
	}()
	return l.Addr().String(), conn
}

// fpdus hands on each FPDU that comes, until the stream ends.
func fpdus(t *testing.T, c net.Conn) chan []byte {
	ch := make(chan []byte, 64)
	go func() {
		defer close(ch)
		for {
			var n [2]byte
			if _, err := io.ReadFull(c, n[:]); err != nil {
				return
			}
			l := int(binary.BigEndian.Uint16(n[:]))
			b := make([]byte, l+fpduPad(l)+crcLen)
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			ch <- b[:l]
		}
	}()
	return ch
}

func nudged(t *testing.T, nudge time.Duration) (q *QP, c net.Conn, frames chan []byte) {
	t.Helper()
	dev := New(Options{CRC: CRCPeer, Nudge: nudge})
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	tq, err := dev.NewQP(transport.QPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addr, conn := deaf(t)
	if _, err := dev.Dial(testCtx(t), addr, tq, transport.ConnParams{ReadsIn: 1, ReadsOut: 1}); err != nil {
		t.Fatal(err)
	}
	c = <-conn
	t.Cleanup(func() { _ = c.Close() })
	return tq.(*QP), c, fpdus(t, c)
}

func sendOne(t *testing.T, q *QP) {
	t.Helper()
	m := slab(t, 16)
	if _, err := q.Post([]transport.WR{{Op: transport.OpSend, Local: []mem.Span{m}}}); err != nil {
		t.Fatal(err)
	}
}

func frame(t *testing.T, ch chan []byte, what string) []byte {
	t.Helper()
	select {
	case b, ok := <-ch:
		if !ok {
			t.Fatalf("the stream ends before %s", what)
		}
		return b
	case <-time.After(testTimeout):
		t.Fatalf("no %s", what)
	}
	return nil
}

func TestDialNudgesASilentResponderWithAnEmptyWrite(t *testing.T) {
	q, _, ch := nudged(t, time.Millisecond)
	sendOne(t, q)
	for opcode := binary.BigEndian.Uint16(frame(t, ch, "Send")) & 15; opcode != opSend; {
		opcode = binary.BigEndian.Uint16(frame(t, ch, "Send")) & 15
	}
	b := frame(t, ch, "nudge")
	if ctrl := binary.BigEndian.Uint16(b); ctrl != ctrlV1|ctrlTagged|ctrlLast|opWrite || len(b) != taggedLen-2 {
		t.Errorf("the nudge is % x", b)
	}
}

func TestDialNudgesNobodyWhoAnswers(t *testing.T) {
	q, c, ch := nudged(t, 50*time.Millisecond)
	// A byte of the responder's is enough, however incomplete: its receiver is hooked by then.
	if _, err := c.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	for ctx := testCtx(t); q.cnt.bytesIn.Load() == 0; {
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		if err := q.Wait(short); err == nil {
			t.Fatal("a completion out of nothing")
		}
		if cancel(); ctx.Err() != nil {
			t.Fatal("the byte does not come")
		}
	}
	sendOne(t, q)
	frame(t, ch, "Send")
	if err := q.Close(transport.Reason{}); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	for b := range ch {
		if binary.BigEndian.Uint16(b)&15 == opWrite {
			t.Errorf("nudged: % x", b)
		}
	}
}

func TestNudgeCanBeSwitchedOff(t *testing.T) {
	q, c, ch := nudged(t, -1)
	sendOne(t, q)
	frame(t, ch, "Send")
	if q.opt.Nudge > 0 {
		t.Error("it is on")
	}
	_ = c.Close()
}
