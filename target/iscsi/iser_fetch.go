package iscsi

import (
	"fmt"
	"slices"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/state"
	"github.com/sluice-storage/sluice/transport"
)

// A request for Data-Out is fetched by RDMA Reads of the initiator's memory (RFC 7145 section 7.3.6), as many at a time as it serves.

// fetchState is what becomes of the request of one task. conn.mu guards it.
//
//	idle -> listed -> asked -> idle
//	        listed -> idle       cancelled, or the connection ended, with no Read under way
//	        listed | asked -> ending -> idle
type fetchState uint8

const (
	// fetchIdle: nothing is fetched.
	fetchIdle fetchState = iota
	// fetchListed: the task is in iserDatamover.readQ: there are Reads still to be queued.
	fetchListed
	// fetchAsked: all Reads are queued or under way.
	fetchAsked
	// fetchEnding: a Read has failed, or the command was cancelled. No more are queued; those under way come home first, because until then
	// the peer may write to the buffers.
	fetchEnding
)

var fetches = state.New("a task's RDMA Reads", []string{"idle", "listed", "asked", "ending"}, state.Next[fetchState]{
	fetchIdle:   {fetchListed},
	fetchListed: {fetchAsked, fetchEnding, fetchIdle},
	fetchAsked:  {fetchEnding, fetchIdle},
	fetchEnding: {fetchIdle},
})

// iserTask is what a task has of the initiator's memory.
type iserTask struct {
	header iscsi.ISERHeader
	state  fetchState
	next   int   // bytes of the Data-Out request for which a Read is queued
	out    int   // Reads queued or under way
	failed error // of the first that failed
}

// solicitLocked fetches what a request still lacks.
func (x *iserDatamover) solicitLocked(t *task) {
	o := &t.out
	if x.owner.OverLocked() || t.move != moveOut || o.have == o.n || t.iser.state != fetchIdle {
		return
	}
	h := &t.iser.header
	if !h.WriteValid || h.WriteSTag == 0 || x.depth.Out == 0 {
		err := &iscsi.ProtocolError{RFC: 7145, Clause: "9.2", Detail: "a command that writes more than its unsolicited data advertises no memory"}
		if x.depth.Out == 0 {
			err.Detail, err.Clause = "an initiator that writes serves no RDMA Read", "5.1.1"
		}
		if x.c.killErr == nil {
			x.c.killErr = err
		}
		go x.close(err)
		return
	}
	fetches.Move(&t.iser.state, fetchListed)
	t.iser.next, t.iser.out, t.iser.failed = o.have, 0, nil
	x.readQ = append(x.readQ, t)
	x.issueReadsLocked()
}

// issueReadsLocked queues Reads of waiting requests, oldest first, within the depth the initiator serves: one more would
// be an error here and a stalled queue on real adapters.
func (x *iserDatamover) issueReadsLocked() {
	for len(x.readQ) > 0 && x.owner.ReadRoomLocked() > 0 {
		t := x.readQ[0]
		x.readNextLocked(t)
		if t.iser.next == t.out.n {
			x.unlistLocked(t, fetchAsked)
		}
	}
}

// unlistLocked takes a task off readQ.
func (x *iserDatamover) unlistLocked(t *task, to fetchState) {
	fetches.Move(&t.iser.state, to)
	i := slices.Index(x.readQ, t)
	x.readQ = slices.Delete(x.readQ, i, i+1)
}

// readNextLocked queues the next Read of a request, into one piece of memory.
func (x *iserDatamover) readNextLocked(t *task) {
	o, w := &t.out, &t.iser
	i, at := 0, w.next
	for ; at >= o.data[i].Len; i++ {
		at -= o.data[i].Len
	}
	n := min(o.data[i].Len-at, x.caps.MaxMessage)
	h := &w.header
	remote := h.WriteBase + uint64(o.off+w.next)
	if !x.c.params.BaseCoversAll {
		// Linux and libiscsi count unsolicited bytes into the base (RFC 7145 section 6.9 has the opposite default).
		remote -= uint64(o.unsol)
	}
	x.owner.ReadLocked(token(tokRead, int(t.slot)), transport.Remote{STag: h.WriteSTag, Off: remote}, o.data[i].Cut(at, n))
	w.out++
	w.next += n
}

// endFetchLocked has no more Reads of a task queued.
func (x *iserDatamover) endFetchLocked(t *task) {
	switch w := &t.iser; {
	case w.state == fetchListed && w.out == 0:
		x.unlistLocked(t, fetchIdle)
	case w.state == fetchListed:
		x.unlistLocked(t, fetchEnding)
	case w.state == fetchAsked:
		fetches.Move(&w.state, fetchEnding)
	}
}

// read handles a Read's completion.
func (x *iserDatamover) read(slot int, err error) {
	c := x.c
	c.mu.Lock()
	x.owner.ReadEndedLocked()
	t := c.tasks[slot]
	w, o := &t.iser, &t.out
	if err == nil {
		c.placed.Add(1)
	} else {
		x.endFetchLocked(t)
		if w.failed == nil {
			w.failed = fmt.Errorf("iscsi: RDMA Read from the initiator: %w", err)
		}
	}
	w.out--
	x.issueReadsLocked()
	if w.out > 0 || w.state == fetchListed {
		c.kickLocked()
		c.mu.Unlock()
		return
	}
	if w.state == fetchAsked {
		o.have = o.n
	} else if o.err == nil && w.failed != nil {
		o.err = w.failed
	}
	fetches.Move(&w.state, fetchIdle)
	ends := t.moveEndsLocked()
	err = o.err
	c.kickLocked()
	c.mu.Unlock()
	if ends {
		t.Moved(err)
	}
}

// cancelLocked reports whether the move of a cancelled task can end now.
func (x *iserDatamover) cancelLocked(t *task) bool {
	x.endFetchLocked(t)
	return t.move != movePlacingCancelled && t.iser.state == fetchIdle
}

// dropFetchesLocked ends the fetches of a connection that is over, of which no Read is under way.
func (x *iserDatamover) dropFetchesLocked() {
	for len(x.readQ) > 0 {
		x.unlistLocked(x.readQ[0], fetchIdle)
	}
	x.readQ = nil
}
