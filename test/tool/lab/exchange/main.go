// Command exchange is the peer of the lab's rdmacheck, a C program on librdmacm that lives in the guest. One side
// drives, the other serves, and then they change places. For each length the driver does this:
//
//  1. It asks for memory of that length, and is told an address and a key.
//
//  2. It fetches the memory by RDMA Read and compares it.
//
//  3. It overwrites the memory by RDMA Write, with other bytes.
//
//  4. It sends a message of that length by Send; the server compares message and memory, and says so.
//
//     exchange client|server HOST:PORT [-crc auto|on|off|peer]
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/lockstep"
)

const (
	maxLen   = 1 << 20
	guardLen = 64
	receives = 4
	ctlLen   = 24

	opGrant, opGranted, opGood, opTurn, opBye = 1, 2, 3, 4, 5
)

var lengths = []int{0, 1, 2, 3, 4, 63, 64, 65, 1023, 1024, 1448, 1449, 1450, 1451, 1452, 4095, 4096, 4097, 8191, 8192, 16384,
	32761, 32762, 32763, 65535, 65536, 65537, 131072, 262143, 524288, maxLen - 1, maxLen}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "exchange:", err)
		os.Exit(1)
	}
	fmt.Println("exchange: every byte as expected")
}

func run() error {
	crc := flag.String("crc", "auto", "auto, on, off or peer")
	flag.Parse()
	if flag.NArg() != 2 {
		return fmt.Errorf("usage: exchange [-crc POLICY] client|server HOST:PORT")
	}
	policy, ok := map[string]iwarp.CRC{"auto": iwarp.CRCAuto, "on": iwarp.CRCOn, "off": iwarp.CRCOff, "peer": iwarp.CRCPeer}[*crc]
	if !ok {
		return fmt.Errorf("-crc %q", *crc)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dev := iwarp.New(iwarp.Options{CRC: policy})
	defer func() { _ = dev.Close() }() // the process ends with it
	e, err := newEnd(dev)
	if err != nil {
		return err
	}
	params := transport.ConnParams{ReadsIn: 4, ReadsOut: 4}
	if flag.Arg(0) == "client" {
		if _, err := dev.Dial(ctx, flag.Arg(1), e.QP, params); err != nil {
			return err
		}
		err = first(e.drive(ctx), func() error { return e.say(ctx, ctl{op: opTurn}) }, func() error { return e.serve(ctx) })
	} else {
		if err := accept(ctx, dev, flag.Arg(1), e, params); err != nil {
			return err
		}
		err = first(e.serve(ctx), func() error { return e.drive(ctx) }, func() error { return e.say(ctx, ctl{op: opBye}) })
		if err == nil { // the peer leaves once it has read the last message
			_, _, _ = e.Recv(ctx)
		}
	}
	if err != nil {
		return err
	}
	return e.Close(ctx)
}

func first(err error, then ...func() error) error {
	for _, f := range then {
		if err == nil {
			err = f()
		}
	}
	return err
}

func accept(ctx context.Context, dev transport.Device, addr string, e *end, p transport.ConnParams) error {
	l, err := dev.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // one client is all it takes
	fmt.Println("exchange: listening")
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	return req.Accept(ctx, e.QP, p)
}

// end is one side: memory as the C program has it.
type end struct {
	*lockstep.Conn
	window, out, sink mem.Span
	grant             transport.Window
}

func newEnd(dev transport.Device) (*end, error) {
	slab, err := mem.NewSlab((receives + 3) * (maxLen + guardLen))
	if err != nil {
		return nil, err
	}
	if err := dev.Register(slab); err != nil {
		return nil, err
	}
	span := func(i int) mem.Span {
		return mem.Span{Slab: slab, Off: i * (maxLen + guardLen), Len: maxLen + guardLen}
	}
	qp, err := dev.NewQP(transport.QPOptions{Sends: 8, Recvs: receives})
	if err != nil {
		return nil, err
	}
	e := &end{window: span(0), out: span(1), sink: span(2)}
	if e.grant, err = qp.NewWindow(); err != nil {
		return nil, err
	}
	e.Conn, err = lockstep.New(qp, []mem.Span{span(3), span(4), span(5), span(6)})
	return e, err
}

type ctl struct {
	op, len, seed, rkey uint32
	addr                uint64
}

func (e *end) say(ctx context.Context, c ctl) error {
	b := e.out.Cut(0, ctlLen)
	be := binary.BigEndian
	be.PutUint32(b.Bytes(), c.op)
	be.PutUint32(b.Bytes()[4:], c.len)
	be.PutUint32(b.Bytes()[8:], c.seed)
	be.PutUint32(b.Bytes()[12:], c.rkey)
	be.PutUint64(b.Bytes()[16:], c.addr)
	return e.Do(ctx, transport.WR{Op: transport.OpSend, Local: []mem.Span{b}})
}

func (e *end) hear(ctx context.Context) (c ctl, err error) {
	b, i, err := e.Recv(ctx)
	if err != nil {
		return c, err
	}
	if len(b) != ctlLen {
		return c, fmt.Errorf("a control message of %d bytes", len(b))
	}
	be := binary.BigEndian
	c = ctl{be.Uint32(b), be.Uint32(b[4:]), be.Uint32(b[8:]), be.Uint32(b[12:]), be.Uint64(b[16:])}
	return c, e.Repost(i)
}

func (e *end) drive(ctx context.Context) error {
	for i, n := range lengths {
		seed := uint32(i*3 + 1)
		if err := e.say(ctx, ctl{op: opGrant, len: uint32(n), seed: seed}); err != nil {
			return fmt.Errorf("ask for %d bytes: %w", n, err)
		}
		g, err := e.hear(ctx)
		if err != nil {
			return fmt.Errorf("be granted %d bytes: %w", n, err)
		}
		if g.op != opGranted || int(g.len) != n {
			return fmt.Errorf("the peer answers %+v to a request for %d bytes", g, n)
		}
		at := transport.Remote{STag: g.rkey, Off: g.addr}
		// siw answers a Read of no bytes that comes while it still transmits with as many bytes as its last message had
		// (Linux 6.1, siw_activate_tx and siw_qp_sq_proc_tx), and ends the connection when that is refused. So this one
		// is left to the other direction.
		if n > 0 {
			guard(e.sink, n)
			if err := e.Do(ctx, transport.WR{Op: transport.OpRead, Local: []mem.Span{e.sink.Cut(0, n)}, Remote: at}); err != nil {
				return fmt.Errorf("read %d bytes: %w", n, err)
			}
			if err := same("read", e.sink, n, seed); err != nil {
				return err
			}
		}
		fill(e.out, n, seed+1)
		if err := e.Do(ctx, transport.WR{Op: transport.OpWrite, Local: []mem.Span{e.out.Cut(0, n)}, Remote: at}); err != nil {
			return fmt.Errorf("write %d bytes: %w", n, err)
		}
		fill(e.out, n, seed+2)
		if err := e.Do(ctx, transport.WR{Op: transport.OpSend, Local: []mem.Span{e.out.Cut(0, n)}}); err != nil {
			return fmt.Errorf("send %d bytes: %w", n, err)
		}
		if g, err = e.hear(ctx); err != nil || g.op != opGood {
			return fmt.Errorf("the peer did not take %d bytes: %+v, %w", n, g, err)
		}
	}
	fmt.Printf("exchange: %d lengths driven\n", len(lengths))
	return nil
}

func (e *end) serve(ctx context.Context) error {
	for count := 0; ; count++ {
		c, err := e.hear(ctx)
		if err != nil {
			return err
		}
		if c.op != opGrant {
			fmt.Printf("exchange: %d lengths served\n", count)
			return nil
		}
		if c.len > maxLen {
			return fmt.Errorf("the peer asks for %d bytes", c.len)
		}
		n := int(c.len)
		fill(e.window, n, c.seed)
		guard(e.window, n)
		// A window has at least one byte; a transfer of none names it all the same.
		bind := transport.WR{Op: transport.OpBind, Window: e.grant, Access: transport.RemoteRead | transport.RemoteWrite,
			Local: []mem.Span{e.window.Cut(0, max(n, 1))}}
		if err := e.Do(ctx, bind); err != nil {
			return err
		}
		at := e.grant.Remote()
		if err := e.say(ctx, ctl{op: opGranted, len: c.len, rkey: at.STag, addr: at.Off}); err != nil {
			return err
		}
		b, i, err := e.Recv(ctx)
		if err != nil {
			return fmt.Errorf("receive %d bytes: %w", n, err)
		}
		if len(b) != n {
			return fmt.Errorf("a message of %d bytes in place of %d", len(b), n)
		}

		if err := first(compare("send", b, c.seed+2), func() error { return same("write", e.window, n, c.seed+1) },
			func() error { return e.Repost(i) },
			func() error { return e.Do(ctx, transport.WR{Op: transport.OpInvalidate, Window: e.grant}) },
			func() error { return e.say(ctx, ctl{op: opGood}) }); err != nil {
			return err
		}
	}
}

func byteAt(seed uint32, i int) byte { return byte(uint32(i)*7 + uint32(i>>8)*13 + seed*31) }

func fill(s mem.Span, n int, seed uint32) {
	b := s.Bytes()[:n]
	for i := range b {
		b[i] = byteAt(seed, i)
	}
}

func guard(s mem.Span, n int) {
	for i := range guardLen {
		s.Bytes()[n+i] = 0xa5
	}
}

func compare(what string, b []byte, seed uint32) error {
	for i := range b {
		if b[i] != byteAt(seed, i) {
			return fmt.Errorf("%s of %d bytes: byte %d is %02x, not %02x", what, len(b), i, b[i], byteAt(seed, i))
		}
	}
	return nil
}

// same compares n bytes and looks for damage behind them.
func same(what string, s mem.Span, n int, seed uint32) error {
	if err := compare(what, s.Bytes()[:n], seed); err != nil {
		return err
	}
	for i := range guardLen {
		if s.Bytes()[n+i] != 0xa5 {
			return fmt.Errorf("%s of %d bytes went %d bytes too far", what, n, i+1)
		}
	}
	return nil
}
