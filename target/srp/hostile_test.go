package srp

import (
	"bytes"
	"context"
	"testing"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

func descriptors(all ...wire.Memory) []byte {
	b := make([]byte, len(all)*wire.MemoryLen)
	for i, m := range all {
		m.Put(b[i*wire.MemoryLen:])
	}
	return b
}

// unit writes a command, changed by a hostile hand.
func unit(c wire.Cmd, change func([]byte) []byte) []byte {
	b := make([]byte, 8192)
	if c.CDB == nil {
		c.CDB = append(read10(0, 512), make([]byte, 6)...)
	}
	b = b[:c.Put(b, srpinit.ImmOffset)]
	if change != nil {
		b = change(b)
	}
	return b
}

func set(i int, v byte) func([]byte) []byte {
	return func(b []byte) []byte { b[i] = v; return b }
}

// hostile are units that break a rule, and what is said of it.
var hostile = map[string]struct {
	unit []byte
	why  wire.LogoutReason
}{
	"an empty message":                  {nil, wire.LogoutInvalidUnit},
	"an opcode of no unit":              {[]byte{0x7F, 0, 0, 0}, wire.LogoutInvalidUnit},
	"a login on a channel":              {make([]byte, 64), wire.LogoutInvalidUnit},
	"a target's unit":                   {append([]byte{0xC1}, make([]byte, 63)...), wire.LogoutInvalidUnit},
	"half a command":                    {unit(wire.Cmd{}, func(b []byte) []byte { return b[:40] }), wire.LogoutInvalidUnit},
	"half a task management":            {append([]byte{1}, make([]byte, 20)...), wire.LogoutInvalidUnit},
	"half a logout":                     {[]byte{3, 0, 0}, wire.LogoutInvalidUnit},
	"an answer to no SRP_CRED_REQ":      {append([]byte{0x41}, make([]byte, 15)...), wire.LogoutUnasked},
	"an answer to no SRP_AER_REQ":       {append([]byte{0x42}, make([]byte, 15)...), wire.LogoutUnasked},
	"a CDB longer than its unit":        {unit(wire.Cmd{}, set(31, 0xFC)), wire.LogoutInvalidUnit},
	"a Data-Out format of none":         {unit(wire.Cmd{}, set(5, 0x50)), wire.LogoutOutFormat},
	"a Data-In format of none":          {unit(wire.Cmd{}, set(5, 0x0E)), wire.LogoutInFormat},
	"more descriptors than the table":   {unit(wire.Cmd{In: wire.Buffer{Format: wire.Indirect, Len: 512, List: descriptors(wire.Memory{Len: 256}, wire.Memory{Len: 256}), Table: wire.Memory{Len: 16}}}, nil), wire.LogoutInCount},
	"descriptors for less than is said": {unit(wire.Cmd{In: wire.Buffer{Format: wire.Indirect, Len: 513, List: descriptors(wire.Memory{Len: 256}, wire.Memory{Len: 256})}}, nil), wire.LogoutInCount},
	"descriptors that are not there":    {unit(wire.Cmd{In: wire.Buffer{Format: wire.Indirect, Len: 0, List: descriptors(wire.Memory{Len: 256})}}, set(7, 200)), wire.LogoutInvalidUnit},
	"a table beyond any buffer":         {unit(wire.Cmd{In: wire.Buffer{Format: wire.Indirect, Len: 512, List: descriptors(wire.Memory{Len: 512}), Table: wire.Memory{Len: 1 << 30}}}, nil), wire.LogoutInCount},
	"immediate data that is not there":  {unit(wire.Cmd{Out: wire.Buffer{Format: wire.Immediate, Len: 1 << 31}}, nil), wire.LogoutInvalidUnit},
	"immediate data beyond the receive": {unit(wire.Cmd{Out: wire.Buffer{Format: wire.Immediate, Len: 1 << 16}}, nil), wire.LogoutInvalidUnit},
}

// What breaks a rule ends its channel, which is told why, and nothing else: not the other channel of the session, and not the other session.
func TestHostileUnits(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		b := f.login(1)
		other := f.login(2)
		for name, h := range hostile {
			a := f.another(1)
			f.ready(a)
			want := noise(4096, 3)
			must(t, a.Send(h.unit))
			_ = a.Send(h.unit) // it goes on, or hears of its end
			e := told(a)
			if len(e) != 1 || e[0].Op != wire.OpTLogout || e[0].Reason != h.why {
				t.Errorf("%s: told %+v", name, e)
			}
			good(t, b.Do(f.ctx(), srpinit.Command{CDB: write10(0, 4096), Out: want}))
			if r := good(t, other.Do(f.ctx(), srpinit.Command{CDB: read10(0, 4096), In: 4096})); !bytes.Equal(r.In, want) {
				t.Errorf("%s: other bytes", name)
			}
		}
		if n := f.logs.FilterMessage("SRP channel ends: the initiator broke a rule").Len(); n == 0 || n > 2*len(hostile) {
			t.Errorf("%d lines", n)
		}
		if l := f.srv.Sessions(); len(l) != 2 {
			t.Errorf("%+v", l)
		}
	})
}

// A table of descriptors that name less memory than the command says is found out when it has been fetched.
func TestHostileTable(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		b := f.login(1)
		a := f.another(1)
		f.ready(a)
		p := f.start(a, srpinit.Command{CDB: read10(0, 4096), In: 4096, Pieces: tiny(60), Within: 1, Total: 4097})
		if e := told(a); len(e) != 1 || e[0].Reason != wire.LogoutInCount {
			t.Errorf("told %+v", e)
		}
		if r := p.Wait(); r.Err == nil {
			t.Errorf("answered: %+v", r)
		}
		f.ready(b)
	})
}

// More requests than there are credits are no flood: they end the channel.
func TestBeyondTheCredits(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		b := f.login(1)
		a := f.another(1)
		f.ready(a)
		f.dev.shut()
		read := wire.Cmd{In: wire.Buffer{Format: wire.Direct, List: descriptors(wire.Memory{Key: 1, Len: 512})}}
		for range a.Login.Credits + 1 {
			if a.Send(unit(read, nil)) != nil {
				break
			}
		}
		if e := told(a); len(e) > 1 || len(e) == 1 && e[0].Reason != wire.LogoutInvalidUnit {
			t.Errorf("told %+v", e)
		}
		f.dev.open()
		f.ready(b)
	})
}

// Memory that was not exposed, or not for that, ends the connection as the fabric has it, and nothing is read or written.
func TestWrongKeys(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		b := f.login(1)
		before := f.stored(0, 4096)
		for _, out := range []bool{false, true} {
			a := f.another(1)
			f.ready(a)
			l := wire.Buffer{Format: wire.Direct, List: descriptors(wire.Memory{VA: 1 << 40, Key: 0xDEAD, Len: 4096})}
			c := wire.Cmd{CDB: append(read10(0, 4096), make([]byte, 6)...), In: l}
			if out {
				c = wire.Cmd{CDB: append(write10(0, 4096), make([]byte, 6)...), Out: l}
			}
			must(t, a.Send(unit(c, nil)))
			<-a.Done()
		}
		f.ready(b)
		if !bytes.Equal(f.stored(0, 4096), before) {
			t.Error("the medium has changed")
		}
	})
}

// FuzzChannel sends a channel what a peer may send, unit by unit, each with its length before it. Whatever comes, the server goes on for others.
func FuzzChannel(f *testing.F) {
	add := func(units ...[]byte) {
		var in []byte
		for _, u := range units {
			in = append(append(in, byte(len(u)>>8), byte(len(u))), u...)
		}
		f.Add(in)
	}
	for _, h := range hostile {
		add(h.unit)
	}
	tsk := make([]byte, wire.TskMgmtLen)
	(&wire.TskMgmt{Function: wire.LUNReset}).Put(tsk)
	w := unit(wire.Cmd{CDB: append(write10(0, 512), make([]byte, 6)...), Out: wire.Buffer{Format: wire.Immediate, Len: 512, Data: noise(512, 1)}}, nil)
	add(w, tsk, w)
	add(unit(wire.Cmd{In: wire.Buffer{Format: wire.Direct, List: descriptors(wire.Memory{Key: 1, Len: 512})}}, nil))
	x := newFixture(f, "twin")
	watch := x.login(1)
	f.Fuzz(func(t *testing.T, in []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c, err := srpinit.Dial(ctx, x.far, x.farM, x.addr, x.request(2))
		must(t, err)
		defer c.End()
		for len(in) > 2 {
			n := min(int(in[0])<<8|int(in[1]), len(in)-2, int(c.Login.MaxITUnit))
			if c.Send(in[2:2+n]) != nil {
				break
			}
			in = in[2+n:]
		}
		if r := watch.Do(ctx, srpinit.Command{CDB: []byte{0}}); r.Err != nil {
			t.Fatal(r.Err)
		}
	})
}
