package iscsi

import (
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
)

var errAborted = errors.New("iscsi: the task was aborted while its data was still to come")

func broken(clause string, r iscsi.RejectReason, format string, a ...any) error {
	return &iscsi.ProtocolError{Clause: clause, Reason: r, Detail: fmt.Sprintf(format, a...)}
}

func dataFault(asc scsi.ASC, why error) error {
	return &scsi.SenseError{Key: scsi.AbortedCommand, ASC: asc, Cause: why}
}

// beginCommand checks a SCSI Command and makes it a task. The owner calls it, then runTask. A nil task without an error
// means that the PDU is over: ignored or rejected, its data is dropped.
func (c *conn) beginCommand(b iscsi.BHS, ahs []byte, h *iscsi.ISERHeader) (*task, error) {
	var extra iscsi.AHS
	if len(ahs) > 0 {
		if err := extra.Parse(ahs); err != nil {
			return nil, err
		}
	}
	f := b.Flags()
	read, write := f&iscsi.FlagRead != 0, f&iscsi.FlagWrite != 0
	dsl, edtl := b.DataLen(), int(b.EDTL())

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != stateFull {
		return nil, nil
	}
	if b.Immediate() && c.immediate >= maxImmediate {
		c.rejectLocked(b, iscsi.RejectImmediate)
		return nil, nil
	}
	ok, err := c.takeCmdSNLocked(b)
	if err != nil || !ok {
		return nil, err
	}
	switch {
	case c.discovery:
		// Section 4.3: a discovery session carries text and logout only.
		c.rejectLocked(b, iscsi.RejectNotSupported)
		return nil, nil
	case b.ITT() == iscsi.Reserved:
		return nil, broken("11.2.1.8", iscsi.RejectField, "a SCSI Command with the reserved task tag")
	case dsl > 0 && !write, !write && !b.Final():
		return nil, broken("11.3.1", iscsi.RejectField, "data with a command that does not write")
	case dsl > edtl:
		return nil, broken("11.3.4", iscsi.RejectField, "%d bytes of immediate data in a transfer of %d", dsl, edtl)
	case dsl > 0 && !c.params.ImmediateData:
		return nil, broken("13.11", iscsi.RejectProtocol, "immediate data, and ImmediateData is No")
	case dsl > c.params.FirstBurst:
		return nil, broken("13.14", iscsi.RejectProtocol, "%d bytes of immediate data, and FirstBurstLength is %d", dsl, c.params.FirstBurst)
	case !b.Final() && c.params.InitialR2T:
		return nil, broken("13.10", iscsi.RejectProtocol, "unsolicited data announced, and InitialR2T is Yes")
	case c.taskOfITTLocked(b.ITT()) != nil:
		c.rejectLocked(b, iscsi.RejectInProgress)
		return nil, nil
	}
	t := c.takeTaskLocked()
	t.itt, t.lun, t.immediate = b.ITT(), b.LUN(), b.Immediate()
	c.itts[t.slot] = t.itt
	if t.immediate {
		c.immediate++
	} else {
		c.enteredLocked()
	}
	c.stats.commands++
	n := copy(t.cdb[:], b.CDB())
	n += copy(t.cdb[n:], extra.ExtCDB)
	t.LUN, t.CDB, t.Attr, t.Tag = t.lun, t.cdb[:n], scsi.Attr(f&7), uint64(t.itt)
	if t.Attr > scsi.ACA {
		t.Attr = scsi.Simple // reserved values of section 11.3.1
	}
	t.Nexus, t.Mover, t.Heard = c.nexus, t, b.ExpStatSN()
	if write {
		t.ExpectOut = int64(edtl)
		t.out.edtl, t.out.unsol = edtl, dsl
		if !b.Final() {
			t.out.unsol = min(edtl, c.params.FirstBurst)
			if t.out.unsol > dsl {
				taskSequence.Move(&t.out.sequence, sequenceUnsolicited)
			}
		}
		t.out.unsolSeen = dsl
		if read && extra.HasBidi {
			t.ExpectIn = int64(extra.BidiRead)
		}
	} else if read {
		t.ExpectIn = int64(edtl)
	}
	if h != nil {
		t.iser.header = *h
	}
	return t, nil
}

// runTask hands a task to the device server. imm is immediate data that has arrived; it need not outlive the call.
func (c *conn) runTask(t *task, imm []byte) {
	c.hold()
	gen := t.gen
	t.out.imm = imm
	t.out.got = len(imm)
	c.stats.bytesIn += uint64(len(imm))
	full := t.out.unsol > 0 && c.stash > stashLimit
	if full {
		t.Status = scsi.StatusTaskSetFull
		c.completeLocked(t)
		c.letGo()
		return
	}
	c.letGo()
	c.nexus.Execute(&t.Command)
	if len(imm) == 0 {
		return
	}
	c.hold()
	if t.state != taskFree && t.gen == gen && t.state != taskDeferred && t.out.imm != nil {
		o := &t.out
		o.imm = nil
		// What the device server has not asked for yet waits outside the receive buffer. It asks in order, and what it
		// has had, in a move that ended or in one under way, it does not ask for again.
		if used := o.off + o.have; used < len(imm) {
			c.parkLocked(t, imm[used:], used)
		}
	}
	c.letGo()
}

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

// faultLocked fails a task whose data came out of sequence. At ErrorRecoveryLevel 0 nothing is asked for again (RFC 7143
// section 7.9): the task ends with CHECK CONDITION once the initiator has sent the rest.
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

// destLocked says where the next bytes of t go, which begin pos bytes into its Data-Out buffer, and how many of n.
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

var _ scsi.Mover = (*task)(nil)
var _ scsi.Canceler = (*task)(nil)
var _ blockdev.Deferrer = (*task)(nil)
