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
		d := &datagram{u: u}
		d.call.server, d.call.recycle = u.s, func() {}
		d.call.begin(d, &Peer{Addr: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), Local: local, UDP: true})
		d.call.grow(0, n)
		copy(d.call.msg, buf[:n])
		if _, err := u.s.handle(&d.call, turnReader, true); err != nil {
			continue // no call: a datagram needs no answer
		}
	}
}

// datagram is a call that came in one.
type datagram struct {
	inMessage
	call  Call
	u     *datagrams
	plain *[]byte // pooled memory of the result
	spans [1][]byte
}

func (d *datagram) gone() bool { return false } // a datagram has no connection to lose

func (d *datagram) reply(bool) {
	c := &d.call
	b := c.Out
	if c.payload > 0 {
		b = c.appendReply(nil)
	}
	if len(b) <= 64<<10-512 {
		// A datagram that cannot be sent is lost, as any may be; the client asks again.
		_, _ = d.u.pc.WriteToUDPAddrPort(b, c.Peer.Addr)
	}
	d.drop()
}

func (d *datagram) finish(v Verdict, _ error, flush bool) {
	if v == Drop {
		d.drop()
		return
	}
	d.reply(flush)
}

func (d *datagram) drop() {
	u := d.u
	d.call.release()
	<-u.slots
}

func (d *datagram) sinkFor(n int) ([][]byte, error) {
	d.plain = getBytes(max(n, 1))
	d.spans[0] = (*d.plain)[:n]
	return d.spans[:1], nil
}

func (d *datagram) dropSink() {
	if d.plain != nil {
		putBytes(d.plain)
		d.plain = nil
	}
}
