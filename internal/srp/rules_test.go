package srp

import (
	"errors"
	"testing"
)

// Residuals are set for more and for less, of each direction by itself, and are bounded by their field.
func TestResiduals(t *testing.T) {
	for _, x := range []struct {
		in, out int64
		flags   uint8
		i, o    uint32
	}{{0, 0, 0, 0, 0}, {-5, 0, InUnder, 5, 0}, {5, 0, InOver, 5, 0}, {0, -7, OutUnder, 0, 7}, {3, -7, InOver | OutUnder, 3, 7}, {1 << 40, 1 << 33, InOver | OutOver, 1<<32 - 1, 1<<32 - 1}} {
		var r Rsp
		r.SetResiduals(x.in, x.out)
		if r.Flags != x.flags || r.InResidual != x.i || r.OutResidual != x.o {
			t.Errorf("%d and %d: %+v", x.in, x.out, r)
		}
	}
}

// SOLNT asks for success and failure apart.
func TestNotify(t *testing.T) {
	for n, want := range map[Notify][2]bool{0: {false, false}, 1 << 1: {true, false}, 1 << 2: {false, true}, 6: {true, true}, 0xF9: {false, false}} {
		if got := [2]bool{n.Wants(true), n.Wants(false)}; got != want {
			t.Errorf("%02X: %v", uint8(n), got)
		}
	}
}

// A table that is too long, or names too little memory, is refused with the reason of its direction; one that is right becomes the list.
func TestTables(t *testing.T) {
	list := make([]byte, 3*MemoryLen)
	for i := range 3 {
		Memory{Len: 100}.Put(list[i*MemoryLen:])
	}
	for _, x := range []struct {
		name string
		of   func(*Cmd) *Buffer
		why  LogoutReason
	}{{"Data-Out", func(c *Cmd) *Buffer { return &c.Out }, LogoutOutCount}, {"Data-In", func(c *Cmd) *Buffer { return &c.In }, LogoutInCount}} {
		var c Cmd
		f := x.of(&c)
		f.Table.Len, f.Len = 3*MemoryLen, 300
		if err := c.AtMost(3); err != nil {
			t.Error(err)
		}
		var pe *ProtocolError
		if err := c.AtMost(2); !errors.As(err, &pe) || pe.Reason != x.why {
			t.Errorf("%s: %v", x.name, err)
		}
		if err := c.Take(f, list[MemoryLen:]); !errors.As(err, &pe) || pe.Reason != x.why || f.List != nil {
			t.Errorf("%s: %v", x.name, err)
		}
		if err := c.Take(f, list); err != nil || len(f.List) != len(list) {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}
