package iwarp

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// flusher is the QP's one goroutine: it waits for a full socket to take more, and it ends the connection.
func (q *QP) flusher() {
	defer q.dev.drop(q)
	t := &q.tx
	more := func(uintptr) bool {
		t.Lock()
		defer t.Unlock()
		if t.state == waiting {
			sendings.Move(&t.state, quiet)
		}
		t.pumpLocked(false)
		return t.state != waiting || q.life.dead()
	}
	for range q.wake {
		t.Lock()
		full := t.state == waiting
		t.Unlock()
		if full {
			if err := q.rc.Write(more); err != nil && !q.life.dead() {
				q.fail(lost(err), nil, nil)
			}
		}
		t.Lock()
		if q.life.dead() && t.state != transmitting && t.state != settled {
			t.settleLocked()
		}
		end := t.state == settled
		t.Unlock()
		if end {
			break
		}
	}
	q.shutdown()
}

// shutdown sends the last bytes, ends our half of the stream, and waits a moment for the peer's end: closing a socket with
// unread bytes resets the connection, and a reset takes from the peer the Terminate it has not read yet.
func (q *QP) shutdown() {
	kill := time.AfterFunc(lingerTimeout, q.closeFile)
	defer kill.Stop()
	defer q.closeFile()
	q.tx.Lock()
	tail := q.tx.term
	var t *transport.TerminateError
	told := errors.As(q.tx.err, &t)
	q.tx.Unlock()
	if q.cut.Load() && !told {
		return
	}
	_ = q.file.SetWriteDeadline(time.Time{})
	for len(tail) > 0 {
		var n int
		var serr error
		err := q.rc.Write(func(fd uintptr) bool {
			n, serr = unix.SendmsgN(int(fd), tail, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			return serr != unix.EAGAIN
		})
		if err != nil || serr != nil && serr != unix.EINTR {
			return
		}
		tail = tail[max(n, 0):]
	}
	if err := q.rc.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return
	}
	var unwanted [4096]byte
	gone := false
	drain := func(fd uintptr) bool { // one read a call: a peer that never stops sending must not hold up Close
		n, err := unix.Read(int(fd), unwanted[:])
		gone = n <= 0 && err != unix.EAGAIN && err != unix.EINTR
		return err != unix.EAGAIN
	}
	for {
		err := q.rc.Read(drain)
		if gone || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			_ = q.file.SetReadDeadline(time.Time{}) // the owner's last kick
		}
	}
}

// closeFile closes the socket; a second time it only says so. A closed socket goes on sending what it holds, for minutes where the peer
// does not answer: where that must not arrive any more the connection is reset.
func (q *QP) closeFile() {
	if q.cut.Load() {
		_ = q.rc.Control(func(fd uintptr) {
			_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		})
	}
	_ = q.file.Close()
}
