package rpcserver

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// tight is a device whose queue pairs may find no room for memory.
type tight struct {
	transport.Device
	send  func([]transport.WR) error
	recv  func([]transport.Recv) error
	widen error
}

type tightQP struct {
	transport.QP
	d *tight
}

func (d *tight) NewQP(o transport.QPOptions) (transport.QP, error) {
	q, err := d.Device.NewQP(o)
	return tightQP{q, d}, err
}

func (d *tight) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := d.Device.Listen(ctx, addr)
	return tightListener{l}, err
}

type tightListener struct{ transport.Listener }

func (l tightListener) Accept(ctx context.Context) (transport.Request, error) {
	r, err := l.Listener.Accept(ctx)
	return tightRequest{r}, err
}

type tightRequest struct{ transport.Request }

func (r tightRequest) Accept(ctx context.Context, q transport.QP, p transport.ConnParams) error {
	return r.Request.Accept(ctx, q.(tightQP).QP, p)
}

func (q tightQP) Post(wrs []transport.WR) (int, error) {
	if q.d.send != nil {
		if err := q.d.send(wrs); err != nil {
			return 0, err
		}
	}
	return q.QP.Post(wrs)
}

func (q tightQP) Widen() error { return q.d.widen }

func (q tightQP) PostRecv(rs []transport.Recv) (int, error) {
	if q.d.recv != nil {
		if err := q.d.recv(rs); err != nil {
			return 0, err
		}
	}
	return q.QP.PostRecv(rs)
}

var errTight = fmt.Errorf("a slab: %w", mem.ErrNoRoom)

// serveTight is serveFabric over a device that may be tight, with the warnings that were logged.
func serveTight(t *testing.T, o Options, d *tight) (s *Server, p *program, connect func() *fabricClient, warned func() int, end func()) {
	t.Helper()
	twins := newTwins
	newTwins = func() (here, there transport.Device) {
		d.Device, there = twins()
		return d, there
	}
	defer func() { newTwins = twins }()
	core, logs := observer.New(zap.WarnLevel)
	o.Log = zap.New(core)
	s, p, connect, end = serveFabric(t, o)
	return s, p, connect, func() int { return logs.FilterMessageSnippet("no room").Len() }, end
}

// Credits are promised with their receives only (RFC 8166 section 3.3.1): where the memory of more finds no room in the adapter the
// connection keeps those it has.
func TestCreditsWhoseReceivesFindNoRoomAreNotPromised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &tight{}
		s, p, connect, _, end := serveTight(t, Options{RDMA: RDMAOptions{Credits: 40}}, d)
		defer end()
		c := connect()
		c.granted(16)
		d.recv = func(rs []transport.Recv) error {
			if len(rs) > 1 {
				return errTight
			}
			return nil
		}
		c.hold(12)
		c.granted(16)
		c.hold(3)
		if n := s.Stats().Credits; n != 16 {
			t.Errorf("%d credits are counted", n)
		}
		d.recv = nil
		c.granted(32)
		c.hold(13)
		p.open(c)
		if c.ended || len(c.got) != int(c.xid) {
			t.Errorf("%d replies to %d calls, ended %v", len(c.got), c.xid, c.ended)
		}
	})
}

// A connection for whose reply, or for the receive behind it, an adapter has no room ends at once, and the log says why: its client would
// wait for a completion that never comes.
func TestAConnectionWhoseReplyFindsNoRoomEnds(t *testing.T) {
	for name, d := range map[string]*tight{
		"reply":   {send: func([]transport.WR) error { return errTight }},
		"receive": {recv: func(rs []transport.Recv) error { return map[bool]error{true: errTight}[len(rs) == 1] }},
		"other":   {send: func([]transport.WR) error { return fmt.Errorf("a slab: not permitted") }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, connect, warned, end := serveTight(t, Options{}, d)
				defer end()
				c := connect()
				c.call(procEcho)
				if want := map[bool]int{true: 1}[name != "other"]; !c.ended || s.Stats().Connections != 0 || warned() != want {
					t.Errorf("ended %v, %d connections, %d warnings", c.ended, s.Stats().Connections, warned())
				}
			})
		})
	}
}

// What has no place in a full queue waits for a completion.
func TestAConnectionWhoseQueueIsFullGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := 1
		d := &tight{send: func([]transport.WR) error {
			if full--; full >= 0 {
				return transport.ErrQueueFull
			}
			return nil
		}}
		_, _, connect, warned, end := serveTight(t, Options{}, d)
		defer end()
		c := connect()
		first := c.call(procEcho)
		c.call(procEcho)
		if c.ended || c.got[first] != 1 || c.got[c.xid] != 1 || warned() != 0 {
			t.Errorf("ended %v, %d and %d replies, %d warnings", c.ended, c.got[first], c.got[c.xid], warned())
		}
	})
}

// Where there is no room for all memory in a connection whose client has shown a right, it goes on with what it uses: cut off, the client
// would come again at once, and find as little. The log says so. That a connection ends meanwhile is no want of room.
func TestAClientGoesOnWhereThereIsNotRoomForAllMemory(t *testing.T) {
	for name, d := range map[string]*tight{
		"no room": {widen: errTight},
		"ended":   {widen: transport.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, _, connect, warned, end := serveTight(t, Options{}, d)
				defer end()
				c := connect()
				c.call(procTrust)
				c.call(procEcho)
				if want := map[bool]int{true: 1}[name == "no room"]; c.ended || c.got[c.xid] != 1 || warned() != want {
					t.Errorf("ended %v, %d replies, %d warnings", c.ended, c.got[c.xid], warned())
				}
			})
		})
	}
}

// A client whose connection has ended for want of room is refused for a moment: it waits longer each time it is refused, and after a
// connection that ended it would come again at once, for ever.
func TestAClientForWhichThereWasNoRoomIsRefusedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &tight{send: func([]transport.WR) error { return errTight }}
		s, _, connect, warned, end := serveTight(t, Options{}, d)
		defer end()
		c := connect()
		c.call(procEcho)
		if !c.ended {
			t.Fatal("it goes on")
		}
		d.send = nil
		for range 3 {
			qp, err := c.dev.NewQP(transport.QPOptions{Sends: 1, Recvs: 1})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.dev.Dial(t.Context(), c.addr, qp, transport.ConnParams{ReadsIn: 16}); err == nil {
				t.Error("it is connected at once")
			}
			_ = qp.Close(transport.Reason{})
			time.Sleep(roomTime / 4)
		}
		time.Sleep(roomTime / 4)
		c = connect()
		c.call(procEcho)
		if c.ended || c.got[c.xid] != 1 || s.Stats().Connections != 1 || warned() != 1 {
			t.Errorf("then: ended %v, %d replies, %d connections, %d warnings", c.ended, c.got[c.xid], s.Stats().Connections, warned())
		}
		other := netip.MustParseAddr("192.0.2.7")
		var l crowd
		l.add(other)
		if !l.has(other) || l.has(other.Next()) {
			t.Error("it is not told from others")
		}
		time.Sleep(roomTime)
		if l.add(other.Next()); len(l.until) != 1 {
			t.Error("it is remembered for ever")
		}
	})
}
