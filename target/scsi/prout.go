package scsi

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
)

func beginPROut(c *Command) stepResult {
	n := int(be32(c.CDB[5:]))
	sa := c.CDB[1] & 0x1F
	if sa != prRegisterAndMove && n < 24 || n > maxParameter {
		return c.end(check(IllegalRequest, ASCParameterListLength))
	}
	return c.asyncParams(n, func(c *Command, list []byte) error {
		return c.x.lu.persistentReserveOut(c, sa, c.CDB[2]&0x0F, c.CDB[2]>>4, list)
	})
}

// prOut is the decoded parameter list.
type prOut struct {
	key, saKey        uint64
	specIPT, all, tpl bool
}

// persistentReserveOut changes the reservations, one change at a time a unit. A change is durable before it is visible.
// PREEMPT AND ABORT waits for the commands that it aborts without the lock, because one of them may be waiting for it.
func (lu *LogicalUnit) persistentReserveOut(c *Command, sa, kind, scope byte, list []byte) error {
	gone, err := lu.changeReservations(c, sa, kind, scope, list)
	for gone != nil {
		select {
		case <-gone:
			gone = nil
		case <-c.x.wake:
			// A command that was aborted itself is never answered, so it does not wait: two that abort each other would
			// wait for ever.
			if c.stopping() {
				return c.x.err
			}
		}
	}
	return err
}

func (lu *LogicalUnit) changeReservations(c *Command, sa, kind, scope byte, list []byte) (gone <-chan struct{}, err error) {
	lu.prMu.Lock()
	defer lu.prMu.Unlock()
	if c.stopping() {
		return nil, c.x.err // aborted while it waited for its turn: nothing of it may take effect any more
	}
	if h := lu.spc2.Load(); h != nil && h != c.x.itl {
		return nil, statusError(StatusReservationConflict) // SPC-2 section 5.5.1
	}
	r := lu.pr.Load().clone()
	me := c.x.itl.id
	var e prEffect
	if sa == prRegisterAndMove {
		err = r.registerAndMove(c, me, list, prType(kind), &e, lu.durable())
	} else {
		err = lu.prChange(c, r, me, sa, prType(kind), scope, list, &e)
	}
	if err != nil {
		return nil, err
	}
	if err := lu.publish(r); err != nil {
		return nil, err
	}
	return lu.applyEffect(c, sa, &e), nil
}

func (lu *LogicalUnit) prChange(c *Command, r *reservations, me nexusID, sa byte, kind prType, scope byte, list []byte, e *prEffect) error {
	p := prOut{key: be64(list), saKey: be64(list[8:]), specIPT: list[20]&8 != 0, all: list[20]&4 != 0, tpl: list[20]&1 != 0}
	registering := sa == prRegister || sa == prRegisterIgnore
	if !p.specIPT && len(list) != 24 {
		return check(IllegalRequest, ASCParameterListLength)
	}
	if p.specIPT && sa != prRegister {
		return badParam(20)
	}
	if registering && p.tpl && !lu.durable() {
		return badParam(20)
	}
	if sa == prReserve || sa == prRelease || sa == prPreempt || sa == prPreemptAbort {
		if scope != 0 && (sa == prReserve || sa == prRelease) {
			return badCDB(2)
		}
	}
	k := r.find(me)
	switch {
	case sa == prRegisterIgnore:
	case k < 0 && sa == prRegister:
		if p.key != 0 {
			return statusError(StatusReservationConflict)
		}
	case k < 0, r.Regs[k].Key != p.key:
		return statusError(StatusReservationConflict)
	}
	switch sa {
	case prRegister, prRegisterIgnore:
		return lu.prRegister(c, r, me, p, list, e)
	case prReserve:
		if !kind.valid() {
			return badCDB(2)
		}
		if r.Type != 0 {
			// SPC-4 section 5.13.9: a holder may repeat its reservation, and no nexus may change it.
			if r.holds(me) && r.Type == kind {
				return nil
			}
			return statusError(StatusReservationConflict)
		}
		r.Type, r.Holder = kind, me
		return nil
	case prRelease:
		if !r.holds(me) {
			return nil // SPC-4 section 5.13.11.2.2: no reservation of ours is no error
		}
		if r.Type != kind {
			return check(IllegalRequest, ASCInvalidRelease)
		}
		r.release(me, e)
		return nil
	case prClear:
		for _, g := range r.Regs {
			if g.nexusID != me {
				e.tell(g.nexusID, ASCReservationsPreempted)
			}
		}
		r.Regs, r.Type, r.Holder = nil, 0, nexusID{}
		r.Generation++
		return nil
	case prPreempt, prPreemptAbort:
		if err := r.preempt(me, p.saKey, kind, e); err != nil {
			return err
		}
		r.Generation++
		return nil
	}
	return badCDBBit(1, 4)
}

// prRegister is REGISTER and REGISTER AND IGNORE EXISTING KEY (SPC-4 section 5.13.7).
func (lu *LogicalUnit) prRegister(c *Command, r *reservations, me nexusID, p prOut, list []byte, e *prEffect) error {
	t := c.Nexus.target
	// An initiator port comes by target ports of its protocol alone. The nexus that asks has come by its own, whatever that speaks now.
	portsFor := func(initiator string) (ports []uint16) {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, port := range t.ports {
			own := port == me.Port
			if own && initiator == me.Initiator || (own || p.all) && t.speaksLocked(port, protocolOf(initiator)) {
				ports = append(ports, port)
			}
		}
		return ports
	}
	initiators := []string{me.Initiator}
	if p.specIPT {
		if r.registered(me) {
			return badParam(20) // SPC-4 section 6.16.3: SPEC_I_PT only while we are not registered
		}
		more, err := parseTransportIDs(list)
		if err != nil {
			return err
		}
		if len(more) > maxRegistrations/2 {
			return check(IllegalRequest, ASCInsufficientRegistrations)
		}
		for _, i := range more {
			if len(portsFor(i)) == 0 {
				return badParam(24)
			}
			if r.registered(nexusID{i, me.Target, me.Port}) {
				return statusError(StatusReservationConflict)
			}
		}
		initiators = append(initiators, more...)
	}
	before := len(r.Regs)
	for _, i := range initiators {
		for _, port := range portsFor(i) {
			id := nexusID{i, me.Target, port}
			if p.saKey == 0 {
				r.unregister(id, e)
			} else {
				r.register(id, p.saKey, p.all)
			}
		}
	}
	// Only what is added counts: a registered nexus can always change its key or leave. Names of others, which cost
	// nothing to make up, fill no more than half.
	most := maxRegistrations
	if p.specIPT {
		most /= 2
	}
	if n := len(r.Regs); n > before && n > most {
		return check(IllegalRequest, ASCInsufficientRegistrations)
	}
	r.APTPL = p.tpl
	r.Generation++
	return nil
}

// parseTransportIDs reads the additional parameter data of SPEC_I_PT.
func parseTransportIDs(list []byte) ([]string, error) {
	if len(list) < 28 || int(be32(list[24:])) != len(list)-28 {
		return nil, check(IllegalRequest, ASCParameterListLength)
	}
	var names []string
	for off := 28; off < len(list); {
		name, n, err := parseTransportID(list[off:])
		if err != nil {
			return nil, err
		}
		names = append(names, name)
		off += n
	}
	return names, nil
}

// parseTransportID reads one TransportID: of SRP, or of iSCSI in both formats (SPC-4 section 7.6.4.6).
func parseTransportID(b []byte) (name string, n int, err error) {
	if name, is := parseSRPTransportID(b); is {
		return name, srpTransportIDLen, nil
	}
	if len(b) < 24 || b[0]&0x0F != protoISCSI || b[0]>>6 > 1 {
		return "", 0, badParam(24)
	}
	size := int(be16(b[2:]))
	if size < 20 || size%4 != 0 || size+4 > len(b) || size > 244 {
		return "", 0, badParam(24)
	}
	raw := b[4 : 4+size]
	end := bytes.IndexByte(raw, 0)
	if end < 1 {
		return "", 0, badParam(24)
	}
	name = string(raw[:end])
	sep := strings.Index(name, ",i,0x")
	if b[0]>>6 == 0 {
		// Format 00b names a device, not a port: which of its sessions is meant cannot be told.
		return "", 0, badParam(24)
	}
	if sep < 1 {
		return "", 0, badParam(24)
	}
	isid := strings.ToLower(name[sep+5:])
	if raw, err := hex.DecodeString(isid); err != nil || len(raw) != 6 {
		return "", 0, badParam(24)
	}
	return name[:sep] + ",i,0x" + isid, size + 4, nil
}

// registerAndMove hands a reservation over to another I_T nexus (SPC-4 section 5.13.8).
func (r *reservations) registerAndMove(c *Command, me nexusID, list []byte, kind prType, e *prEffect, durable bool) error {
	if len(list) < 24+24 || int(be32(list[20:])) != len(list)-24 {
		return check(IllegalRequest, ASCParameterListLength)
	}
	key, saKey := be64(list), be64(list[8:])
	unreg, tpl := list[17]&2 != 0, list[17]&1 != 0
	port := be16(list[18:])
	k := r.find(me)
	if k < 0 || r.Regs[k].Key != key {
		return statusError(StatusReservationConflict)
	}
	if !r.holds(me) {
		return statusError(StatusReservationConflict)
	}
	if r.Type.allRegistrants() {
		return statusError(StatusReservationConflict)
	}
	if saKey == 0 {
		return badParam(8)
	}
	if tpl && !durable {
		return badParam(17)
	}
	t := c.Nexus.target
	t.mu.Lock()
	known := slices.Contains(t.ports, port)
	t.mu.Unlock()
	if !known {
		return badParam(18)
	}
	name, _, err := parseTransportID(list[24:])
	if err != nil {
		return err
	}
	t.mu.Lock()
	meets := t.speaksLocked(port, protocolOf(name))
	t.mu.Unlock()
	if !meets {
		return badParam(24) // SPC-4 section 5.13.8: the TransportID is one of the protocol of that port
	}
	to := nexusID{name, me.Target, port}
	if to == me {
		return badParam(24)
	}
	r.register(to, saKey, false)
	r.Holder = to
	if unreg {
		r.Regs = slices.Delete(r.Regs, r.find(me), r.find(me)+1)
	}
	r.APTPL = tpl
	r.Generation++
	return nil
}

// applyEffect tells and aborts the nexuses that a change concerns. The channel that it returns is closed once the
// commands that PREEMPT AND ABORT aborts have ended. Those of nexuses that are just ending are among them, because
// their writes may still be with the medium (SPC-4 section 5.13.11.5).
func (lu *LogicalUnit) applyEffect(c *Command, sa byte, e *prEffect) <-chan struct{} {
	gone := make(chan struct{})
	w := newWait(func() { close(gone) })
	aborts := func(i *itl) bool { return sa == prPreemptAbort && e.abort[i.id] && i != c.x.itl }
	tas := lu.has(flagTAS)
	lu.all(func(i *itl) {
		if aborts(i) {
			kind := abortReported
			if !tas {
				kind = abortSilent
				i.attention(ASCCommandsCleared)
			}
			i.abortAll(w, kind)
			lu.mu.Lock()
			i.prevent = false
			lu.mu.Unlock()
		}
		if asc, ok := e.attention[i.id]; ok && i != c.x.itl {
			i.attention(asc)
		}
	}, func(i *itl) {
		if aborts(i) {
			i.abortClosing(w)
		}
	})
	w.release()
	return gone
}

// beginReserve is RESERVE(6) and (10) of SPC-2, kept for initiators that know nothing else, with the exceptions of the
// CRH bit (SPC-4 table 45).
func beginReserve(c *Command) stepResult {
	lu := c.x.lu
	if c.CDB[1]&0x11 != 0 {
		return c.end(badCDBBit(1, 4)) // third party and extents are obsolete
	}
	if r := lu.pr.Load(); len(r.Regs) > 0 {
		// A registered nexus is told GOOD and the persistent rules stay. Others conflict.
		if r.registered(c.x.itl.id) {
			return stepDone
		}
		return c.end(statusError(StatusReservationConflict))
	}
	if !lu.spc2.CompareAndSwap(nil, c.x.itl) && lu.spc2.Load() != c.x.itl {
		return c.end(statusError(StatusReservationConflict))
	}
	return stepDone
}

// beginRelease is RELEASE(6) and (10): of a reservation that is not ours it changes nothing and succeeds.
func beginRelease(c *Command) stepResult {
	lu := c.x.lu
	if c.CDB[1]&0x11 != 0 {
		return c.end(badCDBBit(1, 4))
	}
	if r := lu.pr.Load(); len(r.Regs) > 0 && !r.registered(c.x.itl.id) {
		return c.end(statusError(StatusReservationConflict))
	}
	lu.spc2.CompareAndSwap(c.x.itl, nil)
	return stepDone
}
