package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// disk is a volume of the daemon as an initiator of that name has it. It outlives the daemon.
func disk(t *testing.T, d *Daemon, name string, lun int) *block.Volume {
	t.Helper()
	rnic := iwarp.New(iwarp.Options{})
	i, err := block.New(block.Options{Name: name, Device: rnic})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := i.Open(ctx, fmt.Sprintf("iser://%s/%s/%d", d.Rig.Addr, d.Rig.Target, lun))
	t.Cleanup(func() {
		if v != nil {
			err = v.Close()
		}
		if err := errors.Join(err, i.Close(), rnic.Close()); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(d.Log()))
	}
	return v
}

// command runs a command until it gets through: unit attentions and lost connections lie in between.
func command(t *testing.T, v *block.Volume, cdb, data []byte, in bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, err := v.Raw(ctx, cdb, data, in)
		var s *block.SenseError
		if errors.As(err, &s) && s.Key == 6 || errors.Is(err, block.ErrOutcomeUnknown) || errors.Is(err, block.ErrUnsettled) {
			continue
		}
		return err
	}
}

// reserveOut is PERSISTENT RESERVE OUT with APTPL.
func reserveOut(action, kind byte, key, saKey uint64) (cdb, list []byte) {
	cdb, list = []byte{0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0}, make([]byte, 24)
	binary.BigEndian.PutUint64(list, key)
	binary.BigEndian.PutUint64(list[8:], saKey)
	list[20] = 1
	return cdb, list
}

// Registrations and the reservation whose change was answered GOOD with APTPL are there after SIGKILL of the daemon, at
// once and by the last key, and they bind as before (SPC-4 section 5.13.5); so is a saved mode page.
func TestReservationsSurviveSIGKILL(t *testing.T) {
	d := start(t, false)
	holder, other := disk(t, d, "iqn.2026-11.io.sluice:holder", victimLUN), disk(t, d, "iqn.2026-11.io.sluice:other", victimLUN)
	must := func(v *block.Volume, cdb, data []byte, in bool) {
		t.Helper()
		if err := command(t, v, cdb, data, in); err != nil {
			t.Fatalf("%x: %v\n%s", cdb[:2], err, tail(d.Log()))
		}
	}
	out := func(action, kind byte, key, saKey uint64) {
		t.Helper()
		cdb, list := reserveOut(action, kind, key, saKey)
		must(holder, cdb, list, false)
	}
	// D_SENSE, saved; the other bits of the control page as they are.
	control := make([]byte, 16)
	must(other, []byte{0x1A, 8, 0x0A, 0, 16, 0}, control, true)
	control[0], control[2], control[4], control[6] = 0, 0, 0x0A, control[6]|4
	must(other, []byte{0x15, 0x11, 0, 0, 16, 0}, control, false)

	key := uint64(1)
	out(0x06, 0, 0, key) // REGISTER AND IGNORE EXISTING KEY
	out(0x01, 3, key, 0) // RESERVE, exclusive access
	sector := make([]byte, 512)
	for round := range 5 {
		// The last answer is all that the kill waits for.
		out(0x00, 0, key, key+1)
		key++
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		keys := make([]byte, 16)
		must(other, []byte{0x5E, 0, 0, 0, 0, 0, 0, 0, 16, 0}, keys, true)
		if got := binary.BigEndian.Uint64(keys[8:]); got != key || binary.BigEndian.Uint32(keys[4:]) != 8 {
			t.Fatalf("round %d: key %d of % x, want %d", round, got, keys, key)
		}
		held := make([]byte, 24)
		must(other, []byte{0x5E, 1, 0, 0, 0, 0, 0, 0, 24, 0}, held, true)
		if binary.BigEndian.Uint64(held[8:]) != key || held[21] != 3 {
			t.Fatalf("round %d: reservation % x", round, held)
		}
		if err := command(t, other, []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}, sector, true); !errors.Is(err, block.ErrReserved) {
			t.Fatalf("round %d: another initiator's read: %v", round, err)
		}
		must(holder, []byte{0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0}, sector, false)
	}
	saved := make([]byte, 16)
	must(holder, []byte{0x1A, 8, 0x0A, 0, 16, 0}, saved, true)
	if saved[6]&4 == 0 {
		t.Errorf("the saved control page is gone: % x", saved)
	}
	// Without APTPL it stays as long as there is power, which the end of a daemon leaves alone.
	cdb, list := reserveOut(0x00, 0, key, key)
	list[20] = 0
	must(holder, cdb, list, false)
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	keys := make([]byte, 16)
	must(other, []byte{0x5E, 0, 0, 0, 0, 0, 0, 0, 16, 0}, keys, true)
	if binary.BigEndian.Uint32(keys[4:]) != 8 || binary.BigEndian.Uint64(keys[8:]) != key {
		t.Errorf("without APTPL: keys % x", keys)
	}
}

// A WRITE ATOMIC(16) that SIGKILL of the daemon caught is there in full or not at all; one that was answered is there.
func TestAtomicWritesSurviveSIGKILL(t *testing.T) {
	const blocks = 64
	d := start(t, false)
	v := disk(t, d, "iqn.2026-11.io.sluice:atomic", victimLUN)
	data, got := make([]byte, blocks*512), make([]byte, blocks*512)
	cdb := []byte{0x9C, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, blocks, 0, 0}
	fill := func(n uint64) {
		for i := 0; i < len(data); i += 8 {
			binary.BigEndian.PutUint64(data[i:], n)
		}
	}
	n := uint64(0)
	for round := range 4 {
		killed := make(chan error, 1)
		answered := n
		for step := 0; ; step++ {
			if step == 3 {
				go func() { killed <- d.Kill() }()
			}
			n++
			fill(n)
			if _, err := v.Raw(t.Context(), cdb, data, false); err == nil {
				answered = n
			} else if step < 3 {
				t.Fatalf("round %d: %v\n%s", round, err, tail(d.Log()))
			}
			if step >= 3 && len(killed) > 0 {
				break
			}
		}
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		if err := command(t, v, []byte{0x28, 0, 0, 0, 0, 8, 0, 0, blocks, 0}, got, true); err != nil {
			t.Fatal(err)
		}
		is := binary.BigEndian.Uint64(got)
		fill(is)
		if is < answered || is > n || !bytes.Equal(got, data) {
			t.Fatalf("round %d: write %d is there, %d was answered and %d sent, or it is torn", round, is, answered, n)
		}
	}
}
