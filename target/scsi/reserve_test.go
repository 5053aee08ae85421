package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// pr runs a PERSISTENT RESERVE OUT.
func (r *rig) pr(n *Nexus, sa byte, kind prType, key, saKey uint64, flags byte, more ...byte) result {
	list := make([]byte, 24)
	binary.BigEndian.PutUint64(list, key)
	binary.BigEndian.PutUint64(list[8:], saKey)
	list[20] = flags
	if len(more) > 0 {
		list = binary.BigEndian.AppendUint32(list, uint32(len(more)))
		list = append(list, more...)
	}
	return r.run(n, list, 0, "5f 00 00 00 00 00000000 00", func(b []byte) {
		b[1], b[2] = sa, byte(kind)
		binary.BigEndian.PutUint32(b[5:], uint32(len(list)))
	})
}

func (r *rig) mustPR(n *Nexus, sa byte, kind prType, key, saKey uint64, flags byte, more ...byte) {
	r.t.Helper()
	if res := r.pr(n, sa, kind, key, saKey, flags, more...); res.Status != StatusGood {
		r.t.Fatalf("service action %d: %v %X/%04X", sa, res.Status, res.key(), res.asc())
	}
}

func (r *rig) keys(n *Nexus) []uint64 {
	b := r.run(n, nil, 4096, "5e 00 00 00 00 00 00 10 00 00").in
	var k []uint64
	for off := 8; off < 8+int(be32(b[4:])); off += 8 {
		k = append(k, be64(b[off:]))
	}
	slices.Sort(k)
	return k
}

func (r *rig) reservation(n *Nexus) (uint64, prType) {
	b := r.run(n, nil, 4096, "5e 01 00 00 00 00 00 10 00 00").in
	if be32(b[4:]) == 0 {
		return 0, 0
	}
	return be64(b[8:]), prType(b[21])
}

// SPC-4 tables 43 and 44, by type and by what the second nexus is.
func TestReservationConflictsByType(t *testing.T) {
	const readCmd, writeCmd = "28 00 00000000 00 0001 00", "2a 00 00000000 00 0001 00"
	for _, tc := range []struct {
		kind                    prType
		strangerReads           bool
		registrantReads, writes bool
	}{
		{prWriteExclusive, true, true, false},
		{prExclusiveAccess, false, false, false},
		{prWriteExclusiveRO, true, true, true},
		{prExclusiveAccessRO, false, true, true},
		{prWriteExclusiveAR, true, true, true},
		{prExclusiveAccessAR, false, true, true},
	} {
		t.Run(fmt.Sprint(tc.kind), func(t *testing.T) {
			r := newRig(t)
			reg, stranger := r.nexus(2), r.nexus(3)
			r.mustPR(r.n, prRegister, 0, 0, 1, 0)
			r.mustPR(reg, prRegister, 0, 0, 2, 0)
			r.mustPR(r.n, prReserve, tc.kind, 1, 0, 0)
			expect := func(who string, n *Nexus, cmd string, ok bool) {
				t.Helper()
				var out []byte
				in := 512
				if cmd == writeCmd {
					out, in = make([]byte, 512), 0
				}
				want := StatusReservationConflict
				if ok {
					want = StatusGood
				}
				if got := r.run(n, out, in, cmd).Status; got != want {
					t.Errorf("%s, %.2s: %v, want %v", who, cmd, got, want)
				}
			}
			expect("holder", r.n, readCmd, true)
			expect("holder", r.n, writeCmd, true)
			expect("registrant", reg, readCmd, tc.registrantReads)
			expect("registrant", reg, writeCmd, tc.writes)
			expect("stranger", stranger, readCmd, tc.strangerReads)
			expect("stranger", stranger, writeCmd, false)
			// These are nobody's to forbid.
			for _, free := range []string{"00 00 00 00 00 00", "5e 00 00 00 00 00 00 10 00 00", "a0 00 00 000000 00001000 00 00", "03 00 00 00 60 00"} {
				if got := r.run(stranger, nil, 4096, free).Status; got != StatusGood {
					t.Errorf("stranger, %.2s: %v", free, got)
				}
			}
		})
	}
}

// TestReservationsFollowTheModel runs random service actions against a model that is as small as the rules allow.
func TestReservationsFollowTheModel(t *testing.T) {
	kinds := []prType{prWriteExclusive, prExclusiveAccess, prWriteExclusiveRO, prExclusiveAccessRO, prWriteExclusiveAR, prExclusiveAccessAR}
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t)
		nx := []*Nexus{r.n, r.nexus(2), r.nexus(3)}
		key := map[int]uint64{} // registered nexuses
		holder, kind := -1, prType(0)
		clear := func(n *Nexus) { // its unit attentions
			for r.run(n, nil, 0, "00 00 00 00 00 00").Status != StatusGood {
			}
		}
		ar := func() bool { return kind == prWriteExclusiveAR || kind == prExclusiveAccessAR }
		holds := func(i int) bool {
			if kind == 0 {
				return false
			}
			if _, reg := key[i]; ar() {
				return reg
			}
			return holder == i
		}
		drop := func(i int) {
			h := holds(i)
			delete(key, i)
			if h && (!ar() || len(key) == 0) {
				holder, kind = -1, 0
			}
		}
		steps := rapid.IntRange(1, 25).Draw(rt, "steps")
		for range steps {
			i := rapid.IntRange(0, 2).Draw(rt, "nexus")
			n := nx[i]
			clear(n)
			mine, reg := key[i]
			given := mine
			if rapid.IntRange(0, 4).Draw(rt, "wrong") == 0 {
				given = 99
			}
			sa := rapid.SampledFrom([]byte{prRegister, prRegisterIgnore, prReserve, prRelease, prClear, prPreempt, prPreemptAbort, 0xFE, 0xFF}).Draw(rt, "action")
			k := rapid.SampledFrom(kinds).Draw(rt, "type")
			other := uint64(rapid.IntRange(0, 4).Draw(rt, "key"))
			want := StatusGood
			var got Status
			switch sa {
			case 0xFE, 0xFF: // read, write
				ok := kind == 0 || holds(i) || reg && kind >= prWriteExclusiveRO
				if sa == 0xFE {
					ok = ok || kind == prWriteExclusive || kind == prWriteExclusiveRO || kind == prWriteExclusiveAR
					got = r.run(n, nil, 512, "28 00 00000000 00 0001 00").Status
				} else {
					got = r.run(n, make([]byte, 512), 0, "2a 00 00000000 00 0001 00").Status
				}
				if !ok {
					want = StatusReservationConflict
				}
			default:
				got = r.pr(n, sa, k, given, other, 0).Status
				switch {
				case sa == prRegister && given != mine, sa != prRegister && sa != prRegisterIgnore && (!reg || given != mine):
					want = StatusReservationConflict
				case sa == prRegister, sa == prRegisterIgnore:
					if other == 0 {
						drop(i)
					} else {
						key[i] = other
					}
				case sa == prReserve:
					if kind == 0 {
						holder, kind = i, k
					} else if !holds(i) || kind != k {
						want = StatusReservationConflict
					}
				case sa == prRelease:
					if holds(i) {
						if kind != k {
							want = StatusCheckCondition
						} else {
							holder, kind = -1, 0
						}
					}
				case sa == prClear:
					key, holder, kind = map[int]uint64{}, -1, 0
				default: // preempt
					found := false
					for _, v := range key {
						found = found || v == other
					}
					all := kind != 0 && ar() && other == 0
					wholder := kind != 0 && !ar() && key[holder] == other
					switch {
					case !all && other == 0:
						want = StatusCheckCondition
					case !all && !found:
						want = StatusReservationConflict
					default:
						for j, v := range key {
							if j != i && (all || v == other) {
								delete(key, j)
							}
						}
						if all || wholder {
							holder, kind = i, k
						}
					}
				}
			}
			if got != want {
				rt.Fatalf("nexus %d, action %X, type %d, key %d (own %d), argument %d: %v, want %v", i, sa, k, given, mine, other, got, want)
			}
			var keys []uint64
			for _, v := range key {
				keys = append(keys, v)
			}
			slices.Sort(keys)
			clear(n)
			if g := r.keys(n); !slices.Equal(g, keys) {
				rt.Fatalf("keys %v, want %v", g, keys)
			}
			if _, g := r.reservation(n); g != kind {
				rt.Fatalf("type %d, want %d", g, kind)
			}
		}
	})
}

func TestPreemptTellsAndAborts(t *testing.T) {
	for _, tas := range []bool{false, true} {
		testPreemptTellsAndAborts(t, tas)
	}
}

func testPreemptTellsAndAborts(t *testing.T, tas bool) {
	r := newRig(t)
	r.lu.set(flagTAS, tas)
	victim := r.nexus(2)
	r.mustPR(r.n, prRegister, 0, 0, 1, 0)
	r.mustPR(victim, prRegister, 0, 0, 2, 0)
	r.mustPR(victim, prReserve, prExclusiveAccess, 2, 0, 0)
	hold(r.disk)
	c, h := r.start(victim, cdb("2a 00 00000000 00 0001 00"), pattern(512, 1), 0)
	<-r.disk.arrived
	list := make([]byte, 24)
	list[7], list[15] = 1, 2
	p, ph := r.start(r.n, cdb("5f 05 03 00 00 00000018 00"), list, 0)
	select {
	case <-ph.done:
		t.Fatal("PREEMPT AND ABORT ended while the medium has the victim's write")
	case <-h.done:
		t.Fatal("the write completed while the medium has it")
	default:
	}
	for aborted := false; !aborted; time.Sleep(time.Millisecond) {
		c.x.mu.Lock()
		aborted = c.x.abort != abortNone
		c.x.mu.Unlock()
	}
	r.disk.letGo()
	h.wait(t)
	ph.wait(t)
	if p.Status != StatusGood || c.Silent == tas || tas && c.Status != StatusTaskAborted {
		t.Fatalf("TAS %v: %v; the victim's write: silent %v, %v", tas, p.Status, c.Silent, c.Status)
	}
	var seen []ASC
	for {
		res := r.run(victim, nil, 0, "00 00 00 00 00 00")
		if res.Status == StatusGood {
			break
		}
		seen = append(seen, res.asc())
	}
	if slices.Contains(seen, ASCCommandsCleared) == tas || !slices.Contains(seen, ASCRegistrationsPreempted) {
		t.Errorf("attentions %04X", seen)
	}
	if key, kind := r.reservation(r.n); key != 1 || kind != prExclusiveAccess {
		t.Errorf("reservation %d %d", key, kind)
	}
}

// SPC-4 table 43 and SBC-3 table 13: what an initiator needs to find out about a disk works under exclusive access too.
func TestWhatIsAllowedUnderExclusiveAccess(t *testing.T) {
	for _, spc2 := range []bool{false, true} {
		r := newRig(t)
		stranger := r.nexus(2)
		if spc2 {
			r.good(nil, 0, "16 00 00 00 00 00")
		} else {
			r.mustPR(r.n, prRegister, 0, 0, 1, 0)
			r.mustPR(r.n, prReserve, prExclusiveAccess, 1, 0, 0)
		}
		for cdbs, allowed := range map[string]bool{
			"12 00 00 00 60 00": true, "03 00 00 00 60 00": true, "a0 00 00 000000 00000040 00 00": true, // INQUIRY, REQUEST SENSE, REPORT LUNS
			"25 00 00000000 00 0000 00": true, "9e 10 0000000000000000 00000020 00 00": true, // READ CAPACITY
			"4d 00 40 00 00 00 00 00 40 00": true, "a3 0f 00 00 0000 00000040 00 00": true, // LOG SENSE, REPORT TIMESTAMP
			"a3 0a 00 00 0000 00000040 00 00": true,                              // REPORT TARGET PORT GROUPS
			"28 00 00000000 00 0001 00":       false, "1a 00 3f 00 40 00": false, // READ, MODE SENSE
			"9e 12 0000000000000000 00000040 00 00": false, "5a 00 3f 00 00 00 00 00 40 00": false,
		} {
			res := r.run(stranger, nil, 512, cdbs)
			if (res.Status == StatusGood) != allowed || !allowed && res.Status != StatusReservationConflict {
				t.Errorf("SPC-2 %v: %s: %v", spc2, cdbs, res.Status)
			}
		}
	}
}

// A nexus that is just ending may still have a write with the medium: who preempts it must not be told GOOD before.
func TestPreemptAndAbortWaitsForANexusThatEnds(t *testing.T) {
	r := newRig(t)
	victim := r.nexus(2)
	r.mustPR(r.n, prRegister, 0, 0, 1, 0)
	r.mustPR(victim, prRegister, 0, 0, 2, 0)
	hold(r.disk)
	_, h := r.start(victim, cdb("2a 00 00000000 00 0001 00"), pattern(512, 1), 0)
	<-r.disk.arrived
	closed := make(chan struct{})
	victim.Close(func() { close(closed) })
	list := make([]byte, 24)
	list[7], list[15] = 1, 2
	p, ph := r.start(r.n, cdb("5f 05 03 00 00 00000018 00"), list, 0)
	// The change is visible before the wait begins.
	for len(r.lu.pr.Load().Regs) != 1 {
		time.Sleep(time.Millisecond)
	}
	r.n.Manage(QueryTaskSet, 0, 0, func(got TMFResponse) {
		if got != FunctionSucceeded {
			t.Error("PREEMPT AND ABORT ended while the medium has the victim's write")
		}
	})
	r.disk.letGo()
	ph.wait(t)
	select {
	case <-h.done:
	default:
		t.Error("PREEMPT AND ABORT ended before the victim's write")
	}
	if p.Status != StatusGood {
		t.Errorf("%v", p.Status)
	}
	wait(t, "close", closed)
}

// One PERSISTENT RESERVE OUT may abort another that waits for its turn, or that waits for the commands of the first.
func TestPreemptAndAbortOfOneAnother(t *testing.T) {
	r := newRig(t)
	other := r.nexus(2)
	preempt := func(own, its byte) []byte { return []byte{7: own, 15: its, 23: 0} }
	for range 40 {
		r.mustPR(r.n, prRegisterIgnore, 0, 0, 1, 0)
		r.mustPR(other, prRegisterIgnore, 0, 0, 2, 0)
		r.lu.prMu.Lock()
		a, ah := r.start(r.n, cdb("5f 05 03 00 00 00000018 00"), preempt(1, 2), 0)
		_, bh := r.start(other, cdb("5f 06 00 00 00 00000018 00"), preempt(0, 2), 0)
		b, ch := r.start(other, cdb("5f 05 03 00 00 00000018 00"), preempt(2, 1), 0)
		r.lu.prMu.Unlock()
		for _, h := range []*host{ah, bh, ch} {
			h.wait(t)
		}
		if !a.Silent && a.Status == StatusGood && !b.Silent && b.Status == StatusGood && len(r.lu.pr.Load().Regs) != 1 {
			t.Fatalf("both preempted, and %d are registered", len(r.lu.pr.Load().Regs))
		}
		for _, n := range []*Nexus{r.n, other} {
			for r.run(n, nil, 0, "00 00 00 00 00 00").Status != StatusGood {
				continue
			}
		}
	}
}

func TestRegisterForOthersAndMove(t *testing.T) {
	r := newRig(t)
	other := r.nexus(2)
	id := transportID(other.port)
	r.mustPR(r.n, prRegister, 0, 0, 5, 8, id...) // SPEC_I_PT
	if k := r.keys(r.n); !slices.Equal(k, []uint64{5, 5}) {
		t.Fatalf("keys %v", k)
	}
	r.mustPR(r.n, prReserve, prWriteExclusive, 5, 0, 0)
	full := r.run(r.n, nil, 4096, "5e 03 00 00 00 00 00 10 00 00").in
	if n := int(be32(full[4:])); n != 2*(24+len(id)) || full[8+12]&1 == 0 {
		t.Errorf("full status: %d bytes, % X", n, full[8:32])
	}
	// REGISTER AND MOVE to the other, unregistering ourselves.
	list := make([]byte, 24, 64)
	binary.BigEndian.PutUint64(list, 5)
	binary.BigEndian.PutUint64(list[8:], 6)
	list[17], list[19] = 2, 1
	binary.BigEndian.PutUint32(list[20:], uint32(len(id)))
	list = append(list, id...)
	if res := r.run(r.n, list, 0, "5f 07 01 00 00 00000000 00", put32(5, uint32(len(list)))); res.Status != StatusGood {
		t.Fatalf("%v %04X", res.Status, res.asc())
	}
	if k := r.keys(r.n); !slices.Equal(k, []uint64{6}) {
		t.Fatalf("keys %v", k)
	}
	if got := r.run(other, make([]byte, 512), 0, "2a 00 00000000 00 0001 00").Status; got != StatusGood {
		t.Errorf("new holder: %v", got)
	}
	if got := r.run(r.n, make([]byte, 512), 0, "2a 00 00000000 00 0001 00").Status; got != StatusReservationConflict {
		t.Errorf("old holder: %v", got)
	}
}

// A table of registrations that is full lets those in it change their keys and leave, and what one initiator says for others
// does not fill it.
func TestAFullTableOfRegistrationsCanBeLeft(t *testing.T) {
	r := newRig(t)
	full := &reservations{}
	for k := range maxRegistrations - 1 {
		full.Regs = append(full.Regs, registration{nexusID: nexusID{Initiator: fmt.Sprint("iqn.x,i,0x", k)}, Key: 1})
	}
	r.lu.pr.Store(full)
	r.mustPR(r.n, prRegister, 0, 0, 5, 0)
	other := r.nexus(2)
	if res := r.pr(other, prRegister, 0, 0, 5, 0); res.asc() != ASCInsufficientRegistrations {
		t.Errorf("one more: %v %04X", res.Status, res.asc())
	}
	r.mustPR(r.n, prRegister, 0, 5, 6, 0)
	r.mustPR(r.n, prRegister, 0, 6, 0, 0)
	r.mustPR(other, prRegister, 0, 0, 5, 0)

	r = newRig(t)
	var ids []byte
	for k := range maxRegistrations {
		ids = append(ids, transportID(fmt.Sprintf("a,i,0x%012x", k))...)
	}
	if res := r.pr(r.n, prRegister, 0, 0, 5, 8, ids[:24*maxRegistrations*3/4]...); res.asc() != ASCInsufficientRegistrations || len(r.keys(r.n)) != 0 {
		t.Errorf("SPEC_I_PT: %v %04X, %d keys", res.Status, res.asc(), len(r.keys(r.n)))
	}
	r.mustPR(r.n, prRegister, 0, 0, 5, 8, ids[:24*100]...)
	r.mustPR(r.nexus(2), prRegister, 0, 0, 5, 0)
}

// A RESERVE of a nexus that ends just then reserves nothing for ever.
func TestAReservationOfANexusThatEndsEndsWithIt(t *testing.T) {
	reserve, err := lookup(cdb("16 00 00 00 00 00"))
	if err != nil {
		t.Fatal(err)
	}
	begin := reserve.begin
	defer func() { reserve.begin = begin }()
	for name, end := range map[string]func(r *rig, n *Nexus) error{
		"the session ends":   func(_ *rig, n *Nexus) error { n.Close(func() {}); return nil },
		"the LUN is removed": func(r *rig, _ *Nexus) error { return errors.Join(r.target.RemoveLUN(0), r.target.AddLUN(0, r.lu)) },
	} {
		r := newRig(t)
		other := r.nexus(2)
		reserve.begin = func(c *Command) stepResult {
			if err := end(r, c.Nexus); err != nil {
				t.Error(err)
			}
			return begin(c)
		}
		r.run(other, nil, 0, "16 00 00 00 00 00")
		reserve.begin = begin
		r.run(r.n, nil, 0, "00 00 00 00 00 00") // the LUN that came back
		if res := r.run(r.n, make([]byte, 512), 0, "2a 00 00000000 00 0001 00"); res.Status != StatusGood {
			t.Errorf("%s: a write of another nexus: %v", name, res.Status)
		}
	}
}

func TestRegisterThroughAllTargetPorts(t *testing.T) {
	r := newRig(t)
	second := r.target.NewNexus(NexusOptions{InitiatorName: r.n.opt.InitiatorName, ISID: r.n.opt.ISID, TargetPortGroup: 2, Memory: r.pool.Quota(1 << 20)})
	for r.run(second, nil, 0, "00 00 00 00 00 00").Status != StatusGood {
	}
	r.mustPR(r.n, prRegister, 0, 0, 5, 4)
	r.mustPR(second, prReserve, prExclusiveAccess, 5, 0, 0)
	if k := r.keys(r.n); !slices.Equal(k, []uint64{5, 5}) {
		t.Errorf("keys %v", k)
	}
}

// APTPL: what was registered with it is there after a loss of power: a new unit on the same state directory, on another boot.
func TestReservationsSurvive(t *testing.T) {
	again := boot(t)
	dir := t.TempDir()
	state := func(o *LUOptions) { o.StateDir = dir }
	r := newRig(t, state)
	r.mustPR(r.n, prRegister, 0, 0, 7, 1)
	r.mustPR(r.n, prReserve, prWriteExclusive, 7, 0, 0)
	again("second")
	r = rigOn(t, r.disk, state)
	if key, kind := r.reservation(r.n); key != 7 || kind != prWriteExclusive {
		t.Fatalf("after a restart: %d %d", key, kind)
	}
	if got := r.run(r.nexus(2), make([]byte, 512), 0, "2a 00 00000000 00 0001 00").Status; got != StatusReservationConflict {
		t.Errorf("another initiator writes: %v", got)
	}
	if got := r.run(r.n, make([]byte, 512), 0, "2a 00 00000000 00 0001 00").Status; got != StatusGood {
		t.Errorf("the holder: %v", got)
	}
	// Given up: a registration without APTPL.
	r.mustPR(r.n, prRegister, 0, 7, 8, 0)
	again("third")
	r = rigOn(t, r.disk, state)
	if k := r.keys(r.n); len(k) != 0 {
		t.Errorf("keys %v after APTPL was given up", k)
	}
	plain := newRig(t)
	if res := plain.pr(plain.n, prRegister, 0, 0, 7, 1); res.asc() != ASCInvalidFieldInParameters {
		t.Errorf("APTPL without a state directory: %v %04X", res.Status, res.asc())
	}
}

func TestReserveAndRelease(t *testing.T) {
	r := newRig(t)
	other := r.nexus(2)
	r.good(nil, 0, "16 00 00 00 00 00")
	r.good(nil, 0, "16 00 00 00 00 00")
	for _, cmd := range []string{"16 00 00 00 00 00", "28 00 00000000 00 0001 00", "00 00 00 00 00 00", "5e 00 00 00 00 00 00 10 00 00"} {
		if got := r.run(other, nil, 512, cmd).Status; got != StatusReservationConflict {
			t.Errorf("%.2s: %v", cmd, got)
		}
	}
	if got := r.pr(other, prRegister, 0, 0, 1, 0).Status; got != StatusReservationConflict {
		t.Errorf("PERSISTENT RESERVE OUT: %v", got)
	}
	for _, cmd := range []string{"12 00 00 00 60 00", "a0 00 00 000000 00001000 00 00", "17 00 00 00 00 00"} {
		if got := r.run(other, nil, 512, cmd).Status; got != StatusGood {
			t.Errorf("%.2s: %v", cmd, got)
		}
	}
	// The end of the nexus is the end of the reservation.
	done := make(chan struct{})
	r.n.Close(func() { close(done) })
	wait(t, "close", done)
	if got := r.run(other, nil, 0, "56 00 00 00 00 00 00 00 00 00").Status; got != StatusGood {
		t.Errorf("%v", got)
	}
	answer(t, manage(other, LogicalUnitReset, 0, 0), FunctionComplete)
	if r.lu.spc2.Load() != nil {
		t.Error("it outlives a reset")
	}
}
