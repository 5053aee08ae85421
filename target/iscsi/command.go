package iscsi

import (
	"fmt"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
)

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
	c.mu.Lock()
	defer c.mu.Unlock()
	if ok, err := c.acceptCommandLocked(b); err != nil || !ok {
		return nil, err
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
	t.LUN, t.CDB, t.Attr, t.Tag = t.lun, t.cdb[:n], scsi.Attr(b.Flags()&7), uint64(t.itt)
	if t.Attr > scsi.ACA {
		t.Attr = scsi.Simple // reserved values of section 11.3.1
	}
	t.Nexus, t.Mover, t.Heard = c.nexus, t, b.ExpStatSN()
	t.expectLocked(b, &extra)
	if h != nil {
		t.iser.header = *h
	}
	return t, nil
}

// acceptCommandLocked takes the number of a SCSI Command and checks its header. False without an error means that the
// command is ignored or has been rejected.
func (c *conn) acceptCommandLocked(b iscsi.BHS) (bool, error) {
	if c.state != stateFull {
		return false, nil
	}
	if b.Immediate() && c.immediate >= maxImmediate {
		c.rejectLocked(b, iscsi.RejectImmediate)
		return false, nil
	}
	if ok, err := c.takeCmdSNLocked(b); err != nil || !ok {
		return false, err
	}
	write := b.Flags()&iscsi.FlagWrite != 0
	dsl, edtl := b.DataLen(), int(b.EDTL())
	switch {
	case c.discovery:
		// Section 4.3: a discovery session carries text and logout only.
		c.rejectLocked(b, iscsi.RejectNotSupported)
		return false, nil
	case b.ITT() == iscsi.Reserved:
		return false, broken("11.2.1.8", iscsi.RejectField, "a SCSI Command with the reserved task tag")
	case dsl > 0 && !write, !write && !b.Final():
		return false, broken("11.3.1", iscsi.RejectField, "data with a command that does not write")
	case dsl > edtl:
		return false, broken("11.3.4", iscsi.RejectField, "%d bytes of immediate data in a transfer of %d", dsl, edtl)
	case dsl > 0 && !c.params.ImmediateData:
		return false, broken("13.11", iscsi.RejectProtocol, "immediate data, and ImmediateData is No")
	case dsl > c.params.FirstBurst:
		return false, broken("13.14", iscsi.RejectProtocol, "%d bytes of immediate data, and FirstBurstLength is %d", dsl, c.params.FirstBurst)
	case !b.Final() && c.params.InitialR2T:
		return false, broken("13.10", iscsi.RejectProtocol, "unsolicited data announced, and InitialR2T is Yes")
	case c.taskOfITTLocked(b.ITT()) != nil:
		c.rejectLocked(b, iscsi.RejectInProgress)
		return false, nil
	}
	return true, nil
}

// expectLocked notes how much the command moves in each direction, and how much of its Data-Out comes unsolicited.
func (t *task) expectLocked(b iscsi.BHS, extra *iscsi.AHS) {
	read, write := b.Flags()&iscsi.FlagRead != 0, b.Flags()&iscsi.FlagWrite != 0
	dsl, edtl := b.DataLen(), int(b.EDTL())
	if !write {
		if read {
			t.ExpectIn = int64(edtl)
		}
		return
	}
	if read && extra.HasBidi {
		t.ExpectIn = int64(extra.BidiRead)
	}
	o := &t.out
	t.ExpectOut = int64(edtl)
	o.edtl, o.unsol, o.unsolSeen = edtl, dsl, dsl
	if !b.Final() {
		o.unsol = min(edtl, t.c.params.FirstBurst)
		if o.unsol > dsl {
			taskSequence.Move(&o.sequence, sequenceUnsolicited)
		}
	}
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
		c.kickLocked()
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
		// What the device server has not asked for yet waits outside the receive buffer. It asks in order, and does not
		// ask again for what it has had in a move that ended or in one under way.
		if used := o.off + o.have; used < len(imm) {
			c.parkLocked(t, imm[used:], used)
		}
	}
	c.letGo()
}
