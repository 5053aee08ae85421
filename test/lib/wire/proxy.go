package wire

import (
	"errors"
	"net"
	"strconv"
	"sync"
)

// Tap sees what a proxy carries.
type Tap struct {
	// Recorder, if not nil, records each connection as one to Port.
	Recorder *Recorder
	Port     uint16
	// Change, if not nil, may replace bytes before they are recorded and passed on: at is how many bytes of this
	// direction came before. It runs in the goroutine of its direction.
	Change func(conn int, fromClient bool, at int64, b []byte) []byte
	// CutAfter, if not 0, ends a connection at this byte of this direction.
	CutAfter func(conn int, fromClient bool) int64
}

// Proxy passes TCP connections on to a server.
type Proxy struct {
	l    net.Listener
	to   string
	tap  Tap
	wg   sync.WaitGroup
	mu   sync.Mutex
	open map[net.Conn]struct{}
	n    int
	down bool
}

// NewProxy listens on a loopback port and passes each connection on to the server at address to.
func NewProxy(to string, tap Tap) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{l: l, to: to, tap: tap, open: make(map[net.Conn]struct{})}
	p.wg.Go(p.serve)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Port is the port of Addr.
func (p *Proxy) Port() int {
	_, port, err := net.SplitHostPort(p.Addr())
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	return n
}

// CutAll ends all connections that are open, as a pulled cable would.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close()
	}
}

// Close ends everything and waits for it.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	err := p.l.Close()
	p.CutAll()
	p.wg.Wait()
	return err
}

func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return false
	}
	p.open[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
}

func (p *Proxy) serve() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		if !p.keep(in) || !p.keep(out) {
			p.drop(in)
			_ = out.Close()
			return
		}
		n := p.n
		p.n++
		var rec *Recording
		if p.tap.Recorder != nil {
			rec = p.tap.Recorder.Connection(p.tap.Port)
		}
		var both sync.WaitGroup
		both.Go(func() { p.pump(n, true, out, in, rec) })
		both.Go(func() { p.pump(n, false, in, out, rec) })
		p.wg.Go(func() {
			both.Wait()
			p.drop(in)
			p.drop(out)
			if rec != nil {
				rec.Close()
			}
		})
	}
}

// pump carries one direction. The end of a stream is passed on as such; an error ends both directions.
func (p *Proxy) pump(n int, fromClient bool, dst, src net.Conn, rec *Recording) {
	limit := int64(-1)
	if p.tap.CutAfter != nil {
		if l := p.tap.CutAfter(n, fromClient); l > 0 {
			limit = l
		}
	}
	var at int64
	buf := make([]byte, 64<<10)
	for {
		k, err := src.Read(buf)
		b := buf[:k]
		cut := limit >= 0 && at+int64(k) >= limit
		if cut {
			b = b[:limit-at]
		}
		if len(b) > 0 {
			if p.tap.Change != nil {
				b = p.tap.Change(n, fromClient, at, b)
			}
			at += int64(k)
			if rec != nil {
				rec.Data(fromClient, b)
			}
			if _, e := dst.Write(b); e != nil {
				err = errors.Join(err, e)
			}
		}
		if cut {
			_ = src.Close()
			_ = dst.Close()
			return
		}
		if err != nil {
			if tc, ok := dst.(*net.TCPConn); ok {
				_ = tc.CloseWrite()
			}
			return
		}
	}
}
