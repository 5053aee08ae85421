package rpcserver

import (
	"errors"
	"net"
	"net/netip"
)

// ServeUDP answers calls that come as datagrams until Close; it is meant for rpcbind, MOUNT, NLM and NSM, whose clients
// still use it. It closes pc.
func (s *Server) ServeUDP(pc *net.UDPConn) error {
	if !s.track(pc) {
		_ = pc.Close()
		return ErrServerClosed
	}
	u := &datagrams{s: s, pc: pc, slots: make(chan struct{}, maxInFlight)}
	err := u.loop()
	_ = pc.Close()
	for range cap(u.slots) {
		u.slots <- struct{}{} // all calls in progress are answered
	}
	s.untrack(pc)
	return err
}

type datagrams struct {
	s     *Server
	pc    *net.UDPConn
	slots chan struct{}
}

func (u *datagrams) loop() error {
	local := addrPort(u.pc.LocalAddr())
	if ua, ok := u.pc.LocalAddr().(*net.UDPAddr); ok {
		local = ua.AddrPort()
	}
	buf := make([]byte, maxDatagram+1)
	for {
		n, from, err := u.pc.ReadFromUDPAddrPort(buf)
		if err != nil {
			if u.s.isClosed() || errors.Is(err, net.ErrClosed) {
				return ErrServerClosed
			}
			continue // an ICMP error of an earlier answer
		}
		if n > maxDatagram {
			continue
		}
		u.slots <- struct{}{}
		c := u.s.newCall(u, &Peer{Addr: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), Local: local, UDP: true})
		c.grow(0, n)
		copy(c.msg, buf[:n])
		if _, err := u.s.handle(c, true); err != nil {
			continue // no call: a datagram needs no answer
		}
	}
}

func (u *datagrams) gone() bool { return false } // a datagram has no connection to lose

func (u *datagrams) reply(c *Call, _ bool) {
	b := c.Out
	if c.payload > 0 {
		left := c.payload
		for _, p := range c.sink {
			p = p[:min(len(p), left)]
			left -= len(p)
			b = append(b, p...)
		}
		b = append(b, c.trailer[:-c.payload&3]...)
	}
	if len(b) <= 64<<10-512 {
		// A datagram that cannot be sent is lost, as any may be; the client asks again.
		_, _ = u.pc.WriteToUDPAddrPort(b, c.Peer.Addr)
	}
	u.drop(c)
}

func (u *datagrams) finish(c *Call, v Verdict, _ error, flush bool) {
	if v == Drop {
		u.drop(c)
		return
	}
	u.reply(c, flush)
}

func (u *datagrams) drop(c *Call) {
	c.release()
	<-u.slots
}

func (u *datagrams) sinkFor(c *Call, n int) ([][]byte, error) {
	c.plain = getBytes(max(n, 1))
	c.sinkArr[0] = (*c.plain)[:n]
	return c.sinkArr[:1], nil
}
