package iscsi

import (
	"errors"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
)

var errAborted = errors.New("iscsi: the task was aborted while its data was still to come")

// parkLocked copies unsolicited bytes from at on into the task's stash.
func (c *conn) parkLocked(t *task, b []byte, at int) {
	o := &t.out
	if o.stash == nil {
		o.stash, o.stashOff = make([]byte, 0, o.unsol-at), at
		c.stash += cap(o.stash)
	}
	o.stash = append(o.stash, b...)
	c.stats.copied += uint64(len(b))
}

// beginData checks a Data-Out PDU. It returns the task that the data is for, nil if it is to be dropped.
func (c *conn) beginData(b iscsi.BHS) (*task, error) {
	n, off := b.DataLen(), int(b.Offset())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.bytesIn += uint64(n)
	if b.TTT() == iscsi.Reserved {
		t := c.taskOfITTLocked(b.ITT())
		if t == nil || t.out.sequence != sequenceUnsolicited {
			if t != nil && t.out.err == nil && t.out.unsol == 0 && c.params.InitialR2T {
				t.out.err = dataFault(scsi.ASCUnexpectedUnsolicited, nil)
			}
			return nil, nil // for a task that has ended, or an aborted one
		}
		o := &t.out
		if b.DataSN() != o.unsolSN || off != o.unsolSeen || off+n > o.unsol {
			c.faultLocked(t, b, "unsolicited Data-Out out of order or beyond FirstBurstLength")
		}
		return t, nil
	}
	t := c.taskOfTTTLocked(b.TTT())
	if t == nil || t.itt != b.ITT() || t.out.sequence != sequenceR2T {
		return nil, nil
	}
	o := &t.out
	if b.DataSN() != o.dataSN || off != o.r2tPos || off+n > o.r2tEnd || b.Final() != (off+n == o.r2tEnd) {
		c.faultLocked(t, b, "Data-Out that does not follow its R2T")
	}
	return t, nil
}

// faultLocked fails a task whose data came out of sequence. Nothing is asked for again at ErrorRecoveryLevel 0 (RFC
// 7143 section 7.9), so the task ends with CHECK CONDITION once the initiator has sent the rest.
func (c *conn) faultLocked(t *task, b iscsi.BHS, why string) {
	if t.out.err == nil {
		t.out.err = dataFault(scsi.ASCProtocolCRC, broken("7.9", iscsi.RejectProtocol, "%s (DataSN %d, offset %d, %d bytes)", why, b.DataSN(), b.Offset(), b.DataLen()))
	}
}

// destKind says where bytes of a task go.
type destKind uint8

const (
	toNowhere destKind = iota
	toSpans            // the request in progress
	toStash            // wait for a request
)

// destLocked says where the next bytes of t go, and how many of n. They begin pos bytes into its Data-Out buffer. Bytes
// for the move keep it from ending until placedLocked.
func (c *conn) destLocked(t *task, gen uint16, pos, n int) (destKind, int) {
	if t == nil || t.state == taskFree || t.gen != gen || t.state == taskDeferred || t.out.err != nil || t.move.cancelled() {
		return toNowhere, n
	}
	o := &t.out
	if (t.move == moveOut || t.move == movePlacing) && pos == o.off+o.have && o.have < o.n && (o.stash == nil || pos >= o.unsol) {
		if t.move == moveOut {
			taskMove.Move(&t.move, movePlacing)
		}
		return toSpans, min(n, o.n-o.have)
	}
	if pos < o.unsol {
		return toStash, min(n, o.unsol-pos)
	}
	return toNowhere, n
}

// endData follows the last byte of a Data-Out PDU, or of immediate data that was not there when the task began.
func (c *conn) endData(t *task, gen uint16, b iscsi.BHS, bad error) {
	if t == nil {
		return
	}
	c.hold()
	if t.state == taskFree || t.gen != gen {
		c.letGo()
		return
	}
	o := &t.out
	t.placedLocked()
	if bad != nil && o.err == nil {
		o.err = bad
	}
	end := int(b.Offset()) + b.DataLen()
	switch {
	case b.Opcode() == iscsi.OpSCSICommand:
		if o.unsol <= b.DataLen() || b.Final() {
			c.endSequenceLocked(t)
		}
	case b.TTT() == iscsi.Reserved:
		o.unsolSN++
		o.unsolSeen = end
		if b.Final() {
			c.endSequenceLocked(t)
			// Fewer than announced is allowed: the rest is solicited.
			o.unsol = min(o.unsol, max(end, 0))
		}
	default:
		o.dataSN++
		o.r2tPos = end
		if b.Final() {
			c.endSequenceLocked(t)
		}
	}
	if t.state == taskDeferred {
		if o.sequence == sequenceNone {
			c.answerLocked(t)
			c.kickLocked()
		}
		c.letGo()
		return
	}
	if t.move == moveOut && o.err == nil {
		t.fromArrivedLocked()
	}
	if t.moveEndsLocked() {
		err := o.err
		c.letGo()
		t.Moved(err)
		return
	}
	if t.move == moveOut && o.sequence == sequenceNone {
		c.datamover.solicitLocked(t)
		c.kickLocked()
	}
	c.letGo()
}

// placeBytes puts data that is in memory where it belongs, for datamovers and PDUs that have it whole.
func (c *conn) placeBytes(t *task, gen uint16, pos int, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(data) > 0 {
		kind, n := c.destLocked(t, gen, pos, len(data))
		switch kind {
		case toSpans:
			mem.Scatter(t.out.data, int64(t.out.have), data[:n])
			t.out.have += n
			c.placed.Add(1)
			c.stats.copied += uint64(n)
		case toStash:
			c.parkLocked(t, data[:n], pos)
		}
		pos, data = pos+n, data[n:]
	}
}
