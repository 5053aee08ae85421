package rpcserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcbind"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// SystemSocket is where the system's rpcbind takes registrations: by this socket only, because it tells who asks.
const SystemSocket = "/run/rpcbind.sock"

// Registered are entries of ours in the system's rpcbind. Close takes them back.
type Registered struct {
	socket string
	list   []rpcbind.Binding
}

// ErrRegistered says that another service has a program already.
var ErrRegistered = errors.New("another service is registered")

// Register tells the rpcbind behind a socket all that b knows. An entry whose service is gone, as a killed daemon leaves
// it, is replaced; one whose service answers is not, and then nothing is registered.
func (b *Binder) Register(socket string) (r *Registered, err error) {
	r = &Registered{socket: socket}
	nc, err := net.DialTimeout("unix", socket, systemTimeout)
	if err != nil {
		return nil, fmt.Errorf("rpcbind of this system: %w; is it running?", err)
	}
	defer func() {
		_ = nc.Close()
		if err != nil {
			err = errors.Join(err, r.Close())
			r = nil
		}
	}()
	owner := fmt.Sprint(os.Geteuid())
	for _, x := range b.all() {
		if x.prog == rpcbind.Prog {
			continue
		}
		m := rpcbind.Binding{Prog: x.prog, Vers: x.vers, Netid: x.netid, Addr: rpcbind.Uaddr(x.addr), Owner: owner}
		if err := r.set(nc, m); err != nil {
			return r, fmt.Errorf("rpcbind of this system, program %d version %d at %s %s: %w", m.Prog, m.Vers, m.Netid, m.Addr, err)
		}
		r.list = append(r.list, m)
	}
	return r, nil
}

func (r *Registered) set(nc net.Conn, m rpcbind.Binding) error {
	for try := 0; ; try++ {
		ok, err := systemCall(nc, rpcbind.ProcSet, &m, (*xdr.Reader).Bool)
		if ok || err != nil {
			return err
		}
		// Not GETADDR: that answers for the transport it is asked over.
		l, err := systemCall(nc, rpcbind.ProcDump, nil, rpcbind.ParseDump)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(l, func(x rpcbind.Binding) bool { return x.Prog == m.Prog && x.Vers == m.Vers && x.Netid == m.Netid })
		var old netip.AddrPort
		if i >= 0 {
			old, err = rpcbind.ParseUaddr(l[i].Addr)
		}
		switch {
		case err != nil || i < 0 || try > 0:
			return errors.New("refused; only root and the owner may change an entry")
		case answers(m.Netid, old):
			return fmt.Errorf("%w, at %s; stop it, or set files.rpcbind to none", ErrRegistered, old)
		}
		if _, err := systemCall(nc, rpcbind.ProcUnset, &m, (*xdr.Reader).Bool); err != nil {
			return err
		}
	}
}

// answers reports whether connections are taken at an address. Of datagrams nothing can be told without asking the
// program; what is registered for them is, in fact, also registered for streams, and those are asked first. A fabric's
// port lies in TCP's space.
func answers(netid string, a netip.AddrPort) bool {
	if strings.HasPrefix(netid, "udp") {
		return false
	}
	if a.Addr().IsUnspecified() {
		lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if strings.HasSuffix(netid, "6") {
			lo = netip.IPv6Loopback()
		}
		a = netip.AddrPortFrom(lo, a.Port())
	}
	nc, err := net.DialTimeout("tcp", a.String(), systemTimeout)
	if err == nil {
		_ = nc.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED)
}

// Close takes the entries back. An rpcbind that has gone took them with it.
func (r *Registered) Close() error {
	nc, err := net.DialTimeout("unix", r.socket, systemTimeout)
	if err != nil {
		return nil
	}
	defer func() { _ = nc.Close() }()
	for i := range r.list {
		if _, err := systemCall(nc, rpcbind.ProcUnset, &r.list[i], (*xdr.Reader).Bool); err != nil {
			return fmt.Errorf("rpcbind of this system: take back program %d: %w", r.list[i].Prog, err)
		}
	}
	r.list = nil
	return nil
}

// systemCall makes one call of rpcbind version 4. The server package has no client otherwise; this one needs no more.
func systemCall[T any](nc net.Conn, proc uint32, m *rpcbind.Binding, parse func(*xdr.Reader) T) (res T, err error) {
	if err := nc.SetDeadline(time.Now().Add(systemTimeout)); err != nil {
		return res, err
	}
	xid := uint32(time.Now().UnixNano())
	c := oncrpc.Call{XID: xid, Prog: rpcbind.Prog, Vers: rpcbind.Vers4, Proc: proc}
	b := c.Append(make([]byte, oncrpc.MarkLen))
	if m != nil {
		b = m.Append(b)
	}
	oncrpc.PutMark(b, len(b)-oncrpc.MarkLen, true)
	if _, err := nc.Write(b); err != nil {
		return res, err
	}
	var mark [oncrpc.MarkLen]byte
	if _, err := io.ReadFull(nc, mark[:]); err != nil {
		return res, err
	}
	n, last := oncrpc.ParseMark(mark[:])
	if !last || n > maxDump {
		return res, &oncrpc.RecordError{Len: n, Max: maxDump}
	}
	msg := make([]byte, n)
	if _, err := io.ReadFull(nc, msg); err != nil {
		return res, err
	}
	r := xdr.NewReader(msg)
	if got, err := oncrpc.ParseReply(&r); err != nil {
		return res, err
	} else if got != xid {
		return res, fmt.Errorf("an answer to call %d, not %d", got, xid)
	}
	return parse(&r), r.Err()
}
