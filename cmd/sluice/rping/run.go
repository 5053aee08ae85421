package rping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/lockstep"
)

// Config is what one connection does.
type Config struct {
	Size   int  // bytes of a ping, MinSize to MaxSize; the server takes what the client names
	Count  int  // pings of the client, 0 until the context ends
	Verify bool // the server compares too: what it fetches must be a ping's text
	Params transport.ConnParams

	OnPing func(n int, data []byte) // after each ping, if set; data is only lent
}

// Result is what happened.
type Result struct {
	Peer    string  `json:"peer"`
	Pings   int     `json:"pings"`
	Size    int     `json:"size"` // bytes of a ping, of the last one at the server
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	// Depth is the number of RDMA Reads agreed each way.
	ReadsIn  int `json:"reads_in"`
	ReadsOut int `json:"reads_out"`
}

// register maps the memory of a side: two messages to receive, one to send, and the data twice. It stays mapped as long
// as the process runs, because a provider keeps what is registered.
func register(dev transport.Device, size int) (*mem.Slab, error) {
	slab, err := mem.NewSlab(2*size + 3*infoLen)
	if err != nil {
		return nil, err
	}
	return slab, dev.Register(slab)
}

// side is one end of a connection.
type side struct {
	*lockstep.Conn
	send, src, dst mem.Span
}

func newSide(dev transport.Device, slab *mem.Slab, size int) (*side, error) {
	qp, err := dev.NewQP(transport.QPOptions{Sends: 8, Recvs: 2})
	if err != nil {
		return nil, err
	}
	cut := func(off, n int) mem.Span { return mem.Span{Slab: slab, Off: off, Len: n} }
	s := &side{src: cut(0, size), dst: cut(size, size), send: cut(2*size, infoLen)}
	s.Conn, err = lockstep.New(qp, []mem.Span{cut(2*size+infoLen, infoLen), cut(2*size+2*infoLen, infoLen)})
	return s, err
}

// hear takes one message and makes its receive available again before anything is answered.
func (s *side) hear(ctx context.Context) ([infoLen]byte, int, error) {
	var m [infoLen]byte
	b, i, err := s.Recv(ctx)
	if err != nil {
		return m, 0, err
	}
	n := copy(m[:], b)
	return m, n, s.Repost(i)
}

func (s *side) say() transport.WR {
	return transport.WR{Op: transport.OpSend, Local: []mem.Span{s.send}}
}

func (s *side) result(peer transport.Peer) Result {
	d := s.QP.Depth()
	r := Result{ReadsIn: d.In, ReadsOut: d.Out}
	if peer.Remote != nil {
		r.Peer = peer.Remote.String()
	}
	return r
}

// Client connects to addr and pings.
func Client(ctx context.Context, dev transport.Device, addr string, c Config) (res Result, err error) {
	if c.Size < MinSize || c.Size > MaxSize {
		return res, fmt.Errorf("rping: a ping has %d to %d bytes, not %d", MinSize, MaxSize, c.Size)
	}
	slab, err := register(dev, c.Size)
	if err != nil {
		return res, err
	}
	s, err := newSide(dev, slab, c.Size)
	if err != nil {
		return res, err
	}
	peer, err := dev.Dial(ctx, addr, s.QP, c.Params)
	if err != nil {
		return res, err
	}
	res = s.result(peer)
	res.Size = c.Size
	defer func() { err = errors.Join(err, s.finish(err)) }()
	win, err := s.QP.NewWindow()
	if err != nil {
		return res, err
	}
	begin := time.Now()
	for n := 0; (c.Count == 0 || n < c.Count) && ctx.Err() == nil; n++ {
		fill(s.src.Bytes(), n)
		clear(s.dst.Bytes())
		if err := s.offer(ctx, win, s.src, transport.RemoteRead); err != nil {
			return res, s.while(ctx, "the server reads", n, err)
		}
		if err := s.offer(ctx, win, s.dst, transport.RemoteWrite); err != nil {
			return res, s.while(ctx, "the server writes", n, err)
		}
		if err := differ(n, s.dst.Bytes(), s.src.Bytes()); err != nil {
			return res, err
		}
		res.Pings++
		res.Bytes += 2 * int64(c.Size)
		res.Seconds = time.Since(begin).Seconds()
		if c.OnPing != nil {
			c.OnPing(n, s.dst.Bytes())
		}
	}
	return res, nil
}

// while says in which step the connection ended; a cancelled context is an orderly end.
func (s *side) while(ctx context.Context, what string, n int, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("rping: ping %d, while %s: %w", n, what, err)
}

// offer exposes a span, tells the server, waits for its go-ahead and takes the span back.
func (s *side) offer(ctx context.Context, win transport.Window, span mem.Span, a transport.Access) error {
	if err := s.Do(ctx, transport.WR{Op: transport.OpBind, Window: win, Access: a, Local: []mem.Span{span}}); err != nil {
		return err
	}
	info{win.Remote(), span.Len}.put(s.send.Bytes())
	if err := s.Do(ctx, s.say()); err != nil {
		return err
	}
	if _, n, err := s.hear(ctx); err != nil {
		return err
	} else if n != infoLen {
		return fmt.Errorf("a go-ahead of %d bytes, not %d", n, infoLen)
	}
	return s.Do(ctx, transport.WR{Op: transport.OpInvalidate, Window: win})
}

// finish closes the connection, or buries one that has failed, so that its memory is free again.
func (s *side) finish(failed error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := s.Close(ctx)
	if err != nil && failed == nil {
		return fmt.Errorf("rping: close: %w", err)
	}
	return nil
}

// Server serves one client at a time, always from the same memory.
type Server struct {
	dev  transport.Device
	slab *mem.Slab
}

// NewServer registers the server's memory.
func NewServer(dev transport.Device) (*Server, error) {
	slab, err := register(dev, MaxSize)
	return &Server{dev, slab}, err
}

// Serve answers one connection request and serves it until the client goes. The error is nil when it went between
// two pings.
func (v *Server) Serve(ctx context.Context, req transport.Request, c Config) (res Result, err error) {
	s, err := newSide(v.dev, v.slab, MaxSize)
	if err != nil {
		return res, err
	}
	if err := req.Accept(ctx, s.QP, c.Params); err != nil {
		return res, err
	}
	res = s.result(req.Peer())
	defer func() { err = errors.Join(err, s.finish(err)) }()
	begin := time.Now()
	for n := 0; c.Count == 0 || n < c.Count; n++ {
		from, err := s.ask(ctx)
		if err != nil {
			if n > 0 && gone(err) || ctx.Err() != nil {
				return res, nil
			}
			return res, s.while(ctx, "waiting for the client", n, err)
		}
		data := s.src.Cut(0, from.size)
		err = s.Do(ctx, transport.WR{Op: transport.OpRead, Local: []mem.Span{data}, Remote: from.at})
		if err != nil {
			return res, s.while(ctx, "reading", n, err)
		}
		if c.Verify {
			if err := check(data.Bytes(), n); err != nil {
				return res, err
			}
		}
		if err := s.Do(ctx, s.say()); err != nil {
			return res, s.while(ctx, "answering", n, err)
		}
		to, err := s.ask(ctx)
		if err != nil {
			return res, s.while(ctx, "waiting for the second address", n, err)
		}
		if to.size != from.size {
			return res, fmt.Errorf("rping: ping %d has %d bytes to read and %d to write", n, from.size, to.size)
		}
		err = s.Do(ctx, transport.WR{Op: transport.OpWrite, Local: []mem.Span{data}, Remote: to.at}, s.say())
		if err != nil {
			return res, s.while(ctx, "writing", n, err)
		}
		res.Pings++
		res.Size = from.size
		res.Bytes += 2 * int64(from.size)
		res.Seconds = time.Since(begin).Seconds()
		if c.OnPing != nil {
			c.OnPing(n, data.Bytes())
		}
	}
	// The client closes after its last ping; closing first could overtake the go-ahead it still waits for.
	if _, _, err := s.hear(ctx); err != nil && !gone(err) && ctx.Err() == nil {
		return res, s.while(ctx, "the client leaves", c.Count, err)
	}
	return res, nil
}

func (s *side) ask(ctx context.Context) (info, error) {
	b, n, err := s.hear(ctx)
	if err != nil {
		return info{}, err
	}
	return parseInfo(b[:n])
}

// gone reports whether a connection ended without a complaint.
func gone(err error) bool {
	var t *transport.TerminateError
	return errors.Is(err, transport.ErrClosed) && !errors.As(err, &t)
}
