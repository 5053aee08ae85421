package rpcserver

import (
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/oncrpc"
)

// streamCall is a call of a stream, and what the stream keeps for it: room for its message, and its result until it is written.
type streamCall struct {
	inMessage
	call Call
	st   *stream

	room    int64     // taken of the room for requests, bytes
	strange bool      // of the strangers' rooms too
	mark    [4]byte   // of the reply's record
	trailer [4]byte   // zeroes, the payload's padding
	plain   *[]byte   // pooled memory of the result
	spans   [1][]byte // plain, as Sink gives it
	loan    *pipe     // in place of plain
	lent    int       // bytes that loan was asked for
	held    int       // of the result, counted by the stream, bytes
	results int64     // taken of the rooms for results, bytes
	wants   int64     // what there was no room for, bytes
}

// newStreamCall returns a call that arrives by a stream.
func (c *stream) newStreamCall() *streamCall {
	sc, ok := c.s.streamCalls.Get().(*streamCall)
	if !ok {
		sc = &streamCall{}
		sc.call.server = c.s
		sc.call.recycle = func() {
			sc.st = nil
			sc.call.server.streamCalls.Put(sc)
		}
	}
	sc.st = c
	sc.call.begin(sc, &c.peer)
	return sc
}

func (sc *streamCall) gone() bool { return sc.st.gone() }

func (sc *streamCall) sinkFor(n int) ([][]byte, error) {
	if !sc.roomFor(bytesFor(n)) {
		return nil, ErrNoMemory
	}
	sc.plain = getBytes(max(n, 1))
	sc.spans[0] = (*sc.plain)[:n]
	return sc.spans[:1], nil
}

func (sc *streamCall) loanFor(n, _ int) (fd int, ok bool) {
	if sc.st.raw == nil {
		return -1, false
	}
	if !sc.roomFor(n) {
		return -1, false
	}
	p := sc.st.pipes.get()
	if p == nil {
		return -1, false
	}
	sc.loan, sc.lent = p, n
	return p.w, true
}

func (sc *streamCall) filled(n int) {
	if sc.loan != nil {
		sc.loan.left = n
	}
}

// dropSink gives the result's memory back, and the pipe. What is in a pipe that filled was not called for is not known, so that one is
// closed.
func (sc *streamCall) dropSink() {
	if p := sc.loan; p != nil {
		sc.st.pipes.put(p)
		sc.loan, sc.lent = nil, 0
	}
	if sc.plain != nil {
		putBytes(sc.plain)
		sc.plain, sc.spans[0] = nil, nil
	}
}

// reply counts the result against its stream from here on: what is still being executed, perhaps on a medium that hangs, is bounded by the workers
// and by the rooms for results, and must not keep the connection's other calls from being read. The call itself has been executed, and keeps no
// memory until its client takes the reply.
func (sc *streamCall) reply(flush bool) {
	sc.call.letMsgGo()
	if sc.plain != nil {
		sc.hold(len(*sc.plain))
	}
	if sc.loan != nil {
		sc.hold(sc.lent)
	}
	if n := len(sc.call.Out); n > smallResult {
		sc.hold(n)
	}
	sc.settleRoom()
	oncrpc.PutMark(sc.mark[:], sc.call.replyLen(), true)
	sc.st.out.send(sc, flush)
}

func (sc *streamCall) hold(n int) {
	sc.held += n
	sc.st.held.Add(int64(n))
}

func (sc *streamCall) finish(v Verdict, err error, flush bool) {
	c := sc.st
	if err != nil {
		if sc.call.Worker { // or else the reader tells
			c.s.log.Info("an RPC connection is closed", zap.Stringer("peer", c.peer.Addr), zap.Error(err))
		}
		c.lost.Store(true)
		c.die()
		_ = c.nc.Close()
	}
	switch v {
	case Drop:
		sc.drop()
	case Later:
		c.later.add(sc)
	default:
		sc.reply(flush)
	}
}

func (sc *streamCall) drop() {
	c, held := sc.st, sc.held
	sc.held = 0
	sc.giveResults() // what is pooled is not a call's any more
	sc.call.release()
	if held > 0 {
		c.letGo(held)
	}
	c.ended()
}

// brief queues a short call in the stream's serial queue. One with bulk data has a worker of its own.
func (sc *streamCall) brief(turn) bool {
	if len(sc.call.msg) >= bulkRecord {
		return false
	}
	lives.Move(&sc.call.life, lifeSerial)
	sc.st.serial.add(&sc.call)
	return true
}

func (sc *streamCall) work() { sc.st.serial.run(&sc.call) }
