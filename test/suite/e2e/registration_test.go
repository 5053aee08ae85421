package e2e

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// A host that has registered and reserved a volume is the same initiator port when it opens the volume again: it writes, and
// others do not. Another host of its name is another port.
func TestARegistrationSurvivesReattachment(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			s := newStand(t, iwarp.Options{})
			u := url(scheme, s.Portal("127.0.0.1", 1))
			const name = "iqn.2026-01.org.example:host"
			out := func(v *block.Volume, action, kind byte) error {
				p := make([]byte, 24)
				binary.BigEndian.PutUint64(p[8:], 0x1234)
				if action != 0 { // any action but REGISTER names the key it has
					binary.BigEndian.PutUint64(p[0:], 0x1234)
					binary.BigEndian.PutUint64(p[8:], 0)
				}
				_, err := v.Raw(t.Context(), []byte{0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0}, p, false)
				return err
			}
			dir := t.TempDir()
			mine := block.Options{Name: name, StateDir: dir}
			v := open(t, host(t, mine, iwarp.Options{}), u)
			must(t, out(v, 0, 0)) // REGISTER
			must(t, out(v, 1, 1)) // RESERVE, write exclusive
			must(t, v.Close())
			stranger := open(t, host(t, block.Options{Name: name, StateDir: t.TempDir()}, iwarp.Options{}), u)
			if _, err := stranger.WriteAt(make([]byte, 512), 0); !errors.Is(err, block.ErrReserved) {
				t.Fatalf("another host writes: %v", err)
			}
			v = open(t, host(t, mine, iwarp.Options{}), u)
			if _, err := v.WriteAt(make([]byte, 512), 0); err != nil {
				t.Fatalf("the holder of the reservation has come back and may not write: %v", err)
			}
			// Open a second time it is a port of its own: the first session goes on.
			second := open(t, host(t, mine, iwarp.Options{}), u)
			if _, err := second.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
			if _, err := v.WriteAt(make([]byte, 512), 0); err != nil || !v.Paths()[0].Up {
				t.Fatalf("the second session ended the first: %v", err)
			}
			for _, e := range v.Events() {
				if e.Err != nil {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}
