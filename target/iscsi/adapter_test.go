package iscsi

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestISEROverAnAdapter(t *testing.T) {
	transporttest.OverAdapters(t, "^TestReadAndWriteAsAdaptersDo$|OverISER|Discovery|STag|Late|Starv|Window|Unasked", "^$", false)
}

// On adapters private data comes with zeroes behind it, and a peer that says nothing says zeroes.
func TestReadAndWriteAsAdaptersDo(t *testing.T) {
	for _, c := range []struct {
		name    string
		private []byte
		inv     bool
	}{
		{"Linux", iscsi.CMPrivate(true), true},
		{"without remote invalidation", iscsi.CMPrivate(false), false},
		{"without private data", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newAdapterFixture(t)
			p := f.dialISER(c.private)
			if got := p.wire().reply; len(got) < 4 || got[0]&0x80 == 0 || (got[0]&0x40 == 0) != c.inv {
				t.Fatalf("private data of the reply: % x", got)
			}
			p.loginISER()
			p.ready()
			testReadWriteISER(t, p, c.inv, false)
		})
	}
}

// newAdapterFixture is newTwinFixture over a fabric of adapters.
func newAdapterFixture(t testing.TB, opts ...func(*Options)) *fixture {
	t.Helper()
	newTwins = func() (transport.Device, transport.Device) { return transporttest.AdapterTwin(transporttest.Adapter{}) }
	defer func() { newTwins = transporttest.Twin }()
	return newTwinFixture(t, opts...)
}

// On adapters a response that is behind a Read completes behind it, however long the initiator delays that: the others have their
// answers meanwhile, as many as the send queue holds, and the rest when it has answered.
func TestAnInitiatorThatDelaysAReadDelaysNoOtherAnswer(t *testing.T) {
	const queue = 8
	f := newAdapterFixture(t, func(o *Options) { o.Limits.Queue = queue })
	p := f.dialISER(iscsi.CMPrivate(true))
	p.loginISER()
	p.ready()
	held := p.wire().qp.(interface{ HoldReads(bool) })
	held.HoldReads(true)
	data := pattern(16384, 3)
	buf, rem, _ := p.expose(len(data), transport.RemoteRead)
	copy(buf.Bytes(), data)
	w := p.command(write10(0, 32))
	w.Write, w.EDTL = true, uint32(len(data))
	p.sendISER(&iscsi.ISERHeader{WriteValid: true, WriteSTag: rem.STag, WriteBase: rem.Off}, w, nil, nil)
	answered := 0
	ask := func() uint32 {
		c := p.command(make([]byte, 6)) // TEST UNIT READY
		p.send(c, nil, nil)
		return c.ITT
	}
	for range 4 * queue {
		itt := ask()
		if r := p.want(iscsi.OpSCSIResponse); r.b.ITT() != itt || r.b[3] != 0 {
			t.Fatalf("answer %d behind a delayed Read: % x", answered, []byte(r.b))
		}
		answered++
	}
	// READs too: their data is behind the Read as well.
	for range 4 {
		back, rem, _ := p.expose(4096, transport.RemoteWrite)
		c := p.command(read10(64, 8))
		c.Read, c.EDTL = true, 4096
		p.sendISER(&iscsi.ISERHeader{ReadValid: true, ReadSTag: rem.STag, ReadBase: rem.Off}, c, nil, nil)
		if r := p.want(iscsi.OpSCSIResponse); r.b.ITT() != c.ITT || r.b[3] != 0 || !bytes.Equal(back.Bytes(), make([]byte, 4096)) {
			t.Fatalf("a read behind a delayed Read: % x", []byte(r.b))
		}
	}
	// Far more than the queue holds, as the window allows: nothing ends, and all are answered in the end.
	waiting := map[uint32]bool{w.ITT: true}
	released := false
	for sent := 0; sent < 12*queue || len(waiting) > 0; {
		for sent < 12*queue && iscsi.SNLessEq(p.cmdSN, p.max) {
			waiting[ask()] = true
			sent++
		}
		if sent >= 6*queue && !released {
			released = true
			held.HoldReads(false)
		}
		r := p.want(iscsi.OpSCSIResponse)
		if !waiting[r.b.ITT()] || r.b[3] != 0 {
			t.Fatalf("an answer to nothing: % x", []byte(r.b))
		}
		delete(waiting, r.b.ITT())
	}
	if got := p.readISER(0, 32, true); !bytes.Equal(got, data) {
		t.Fatal("data differ")
	}
	if g := f.rnic.Gauges(); g.Connections != 1 {
		t.Fatalf("%+v", g)
	}
}

// unwilling is a device that cannot take memory at first, as an adapter where too little may be locked.
type unwilling struct {
	transport.Device
	no bool
}

func (d *unwilling) Register(s *mem.Slab) error {
	if d.no {
		return errors.New("no memory may be locked")
	}
	return d.Device.Register(s)
}

// A fabric that could not be served is served when it can be, and then it knows the memory.
func TestMemoryThatCouldNotBeRegisteredIsRegisteredTheNextTime(t *testing.T) {
	f := newAdapterFixture(t)
	b, err := f.pool.Get(4096)
	must(t, err)
	b.Release()
	near, _ := transporttest.AdapterTwin(transporttest.Adapter{})
	d := &unwilling{Device: near, no: true}
	t.Cleanup(func() { must(t, near.Close()) })
	for range 2 {
		l, err := d.Listen(t.Context(), "twin:3261")
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err = f.srv.ServeRDMA(ctx, d, l, Portal{Group: 1})
		cancel()
		if err == nil || !strings.Contains(err.Error(), "locked") {
			t.Fatalf("served with memory that the device does not know: %v", err)
		}
	}
	d.no = false
	l, err := d.Listen(t.Context(), "twin:3261")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.srv.ServeRDMA(ctx, d, l, Portal{Group: 1}) }()
	cancel()
	must(t, <-done)
}

// A response whose completion waits behind a Read has left, and the initiator has taken it: there may be as many of them as the send
// queue holds, and none is a sign of an initiator that does not read (transport, rule 4).
func TestResponsesBehindADelayedReadAreNotTakenForUnread(t *testing.T) {
	f := newAdapterFixture(t)
	p := f.dialISER(iscsi.CMPrivate(true))
	p.loginISER()
	p.ready()
	held := p.wire().qp.(interface{ HoldReads(bool) })
	held.HoldReads(true)
	_, rem, _ := p.expose(16384, transport.RemoteRead)
	w := p.command(write10(0, 32))
	w.Write, w.EDTL = true, 16384
	p.sendISER(&iscsi.ISERHeader{WriteValid: true, WriteSTag: rem.STag, WriteBase: rem.Off}, w, nil, nil)
	// More than a host could leave unread, fewer than the send queue holds.
	for i := range f.srv.opt.Limits.Queue + maxImmediate + maxQueuedControl + 50 {
		c := p.command(make([]byte, 6)) // TEST UNIT READY
		p.send(c, nil, nil)
		if r := p.want(iscsi.OpSCSIResponse); r.b.ITT() != c.ITT || r.b[3] != 0 {
			t.Fatalf("answer %d behind a delayed Read: % x", i, []byte(r.b))
		}
	}
	held.HoldReads(false)
	if r := p.want(iscsi.OpSCSIResponse); r.b.ITT() != w.ITT || r.b[3] != 0 {
		t.Fatalf("the answer to what was delayed: % x", []byte(r.b))
	}
	f.srv.mu.Lock()
	defer f.srv.mu.Unlock()
	for c := range f.srv.conns {
		c.mu.Lock()
		if c.killErr != nil {
			t.Errorf("a good session was ended: %v", c.killErr)
		}
		c.mu.Unlock()
	}
}
