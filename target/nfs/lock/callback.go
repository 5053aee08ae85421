package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcbind"
	"github.com/sluice-storage/sluice/internal/xdr"
)

var errNoAnswer = errors.New("lock: the client does not answer")

// callBack makes a call at a client, again and again for a while, which begins at once. Only so many are on their way at a time, as slots has room
// for.
func (m *Manager) callBack(slots chan struct{}, from, to netip.Addr, prog, vers, proc uint32, args []byte) (reply []byte, err error) {
	// A client that does not answer keeps its locks, and others from them, no longer for waiting behind other calls to it.
	ctx, cancel := context.WithTimeout(m.ctx, callTries*(callTime+callPause))
	defer cancel()
	for range callTries {
		if reply, err = m.callOnce(ctx, slots, from, to, prog, vers, proc, args); err == nil {
			return reply, nil
		}
		select {
		case <-time.After(callPause):
		case <-ctx.Done():
			return nil, errors.Join(err, m.ctx.Err())
		}
	}
	return nil, err
}

// callOnce waits for its turn in the client's line, and then for one of the slots, so that clients that do not answer leave most of them to
// others.
func (m *Manager) callOnce(ctx context.Context, slots chan struct{}, from, to netip.Addr, prog, vers, proc uint32, args []byte) ([]byte, error) {
	l := m.lines.join(to)
	defer m.lines.leave(to)
	for _, turn := range [...]chan struct{}{l.turns, slots} {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return nil, errors.Join(errNoAnswer, ctx.Err())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return m.opt.Call(ctx, from, to, prog, vers, proc, args)
}

// caller is the default Caller: it asks a client's rpcbind for a program's port, TCP or else UDP, and makes one call there.
// A port that answered is remembered: a waiter hears of its lock one call later, not three. The first failure forgets it, for
// a client that has restarted listens elsewhere.
type caller struct {
	find func(ctx context.Context, from, to netip.Addr, prog, vers uint32) (port uint16, network string, err error)

	mu    sync.Mutex
	known map[service]place
}

type service struct {
	host       netip.Addr
	prog, vers uint32
}

type place struct {
	port    uint16
	network string
}

func (k *caller) call(ctx context.Context, from, to netip.Addr, prog, vers, proc uint32, args []byte) ([]byte, error) {
	s := service{to, prog, vers}
	k.mu.Lock()
	p, ok := k.known[s]
	k.mu.Unlock()
	if ok {
		b, err := oneCall(ctx, p.network, from, netip.AddrPortFrom(to, p.port), prog, vers, proc, args)
		if err == nil {
			return b, nil
		}
		k.mu.Lock()
		delete(k.known, s)
		k.mu.Unlock()
		if ctx.Err() != nil {
			return nil, err
		}
	}
	var err error
	if p.port, p.network, err = k.find(ctx, from, to, prog, vers); err != nil {
		return nil, err
	}
	b, err := oneCall(ctx, p.network, from, netip.AddrPortFrom(to, p.port), prog, vers, proc, args)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.known) >= maxHosts || k.known == nil {
		k.known = make(map[service]place)
	}
	k.known[s] = p
	return b, nil
}

func portOf(ctx context.Context, from, to netip.Addr, prog, vers uint32) (port uint16, network string, err error) {
	at := netip.AddrPortFrom(to, rpcbind.Port)
	// A client whose rpcbind takes TCP is asked by TCP.
	asked := "tcp"
	ask := func(vers, proc uint32, args []byte) (b []byte, err error) {
		if b, err = oneCall(ctx, asked, from, at, rpcbind.Prog, vers, proc, args); err != nil && asked == "tcp" && ctx.Err() == nil {
			asked = "udp"
			b, err = oneCall(ctx, asked, from, at, rpcbind.Prog, vers, proc, args)
		}
		return b, err
	}
	for _, network = range []string{"tcp", "udp"} {
		if port, err = lookUp(ask, to, prog, vers, network); err != nil {
			return 0, "", err
		}
		if port != 0 {
			return port, network, nil
		}
	}
	return 0, "", fmt.Errorf("lock: rpcbind at %s knows no program %d", to, prog)
}

// lookUp asks for one port; 0 is none.
func lookUp(ask func(vers, proc uint32, args []byte) ([]byte, error), host netip.Addr, prog, vers uint32, network string) (uint16, error) {
	if host.Is4() {
		m := rpcbind.Mapping{Prog: prog, Vers: vers, Prot: rpcbind.ProtoTCP}
		if network == "udp" {
			m.Prot = rpcbind.ProtoUDP
		}
		b, err := ask(rpcbind.VersPmap, rpcbind.ProcGetport, m.Append(nil))
		if err != nil {
			return 0, err
		}
		r := xdr.NewReader(b)
		port := r.Uint32()
		if r.Err() != nil || port > 65535 {
			return 0, fmt.Errorf("lock: rpcbind at %s names no port of program %d: %w", host, prog, errors.Join(r.Err(), errNoAnswer))
		}
		return uint16(port), nil
	}
	m := rpcbind.Binding{Prog: prog, Vers: vers, Netid: network + "6"}
	b, err := ask(rpcbind.Vers4, rpcbind.ProcGetaddr, m.Append(nil))
	if err != nil {
		return 0, err
	}
	r := xdr.NewReader(b)
	addr := rpcbind.ParseAddr(&r)
	if r.Err() != nil {
		return 0, r.Err()
	}
	if len(addr) == 0 {
		return 0, nil
	}
	ap, err := rpcbind.ParseUaddr(addr)
	if err != nil {
		return 0, fmt.Errorf("lock: rpcbind at %s: %w", host, err)
	}
	return ap.Port(), nil
}

// oneCall makes a connection, or sends a datagram, for a single call.
func oneCall(ctx context.Context, network string, from netip.Addr, at netip.AddrPort, prog, vers, proc uint32, args []byte) ([]byte, error) {
	var d net.Dialer
	// Lock managers refuse what does not come from the server as they know it.
	if from.IsValid() && !from.IsUnspecified() && from.Is4() == at.Addr().Is4() {
		d.LocalAddr = &net.TCPAddr{IP: from.AsSlice(), Zone: from.Zone()}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: from.AsSlice(), Zone: from.Zone()}
		}
	}
	nc, err := d.DialContext(ctx, network, at.String())
	if err != nil {
		return nil, fmt.Errorf("lock: call back to %s: %w", net.JoinHostPort(at.Addr().String(), strconv.Itoa(int(at.Port()))), err)
	}
	defer func() { _ = nc.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	h := oncrpc.Call{XID: rand.Uint32(), Prog: prog, Vers: vers, Proc: proc}
	msg := append(h.Append(make([]byte, oncrpc.MarkLen)), args...)
	var reply []byte
	if network == "udp" {
		reply, err = exchange(nc, msg[oncrpc.MarkLen:])
	} else {
		oncrpc.PutMark(msg, len(msg)-oncrpc.MarkLen, true)
		if _, err = nc.Write(msg); err == nil {
			reply, err = readRecord(nc)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lock: call back to %s: %w", at, errors.Join(ctx.Err(), err))
	}
	r := xdr.NewReader(reply)
	xid, err := oncrpc.ParseReply(&r)
	if err == nil && xid != h.XID {
		err = errors.New("lock: a reply to another call")
	}
	return r.Rest(), err
}

// exchange sends a datagram until one comes back or the connection is closed.
func exchange(nc net.Conn, msg []byte) ([]byte, error) {
	reply := make([]byte, maxReply)
	for wait := resend; ; wait *= 2 {
		if _, err := nc.Write(msg); err != nil {
			return nil, err
		}
		if err := nc.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return nil, err
		}
		n, err := nc.Read(reply)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return reply[:n], err
		}
	}
}

// readRecord takes a reply from a stream.
func readRecord(nc net.Conn) (reply []byte, err error) {
	for last := false; !last; {
		var mark [oncrpc.MarkLen]byte
		if _, err := io.ReadFull(nc, mark[:]); err != nil {
			return nil, err
		}
		var n int
		if n, last = oncrpc.ParseMark(mark[:]); n > maxReply-len(reply) || n == 0 {
			return nil, &oncrpc.RecordError{Len: n, Max: maxReply}
		}
		from := len(reply)
		reply = append(reply, make([]byte, n)...)
		if _, err := io.ReadFull(nc, reply[from:]); err != nil {
			return nil, err
		}
	}
	return reply, nil
}
