package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"

	"github.com/sluice-storage/sluice/internal/rpc"
	"github.com/sluice-storage/sluice/internal/rpcbind"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// call is the default Caller: it asks the client's rpcbind for the program's TCP port, and makes one call there.
func call(ctx context.Context, host netip.Addr, prog, vers, proc uint32, args []byte) ([]byte, error) {
	port, err := portOf(ctx, host, prog, vers)
	if err != nil {
		return nil, err
	}
	return oneCall(ctx, netip.AddrPortFrom(host, port), prog, vers, proc, args)
}

func portOf(ctx context.Context, host netip.Addr, prog, vers uint32) (uint16, error) {
	at := netip.AddrPortFrom(host, rpcbind.Port)
	if host.Is4() {
		m := rpcbind.Mapping{Prog: prog, Vers: vers, Prot: rpcbind.ProtoTCP}
		b, err := oneCall(ctx, at, rpcbind.Prog, rpcbind.VersPmap, rpcbind.ProcGetport, m.Append(nil))
		if err != nil {
			return 0, err
		}
		r := xdr.NewReader(b)
		port := r.Uint32()
		if r.Err() != nil || port == 0 || port > 65535 {
			return 0, fmt.Errorf("lock: rpcbind at %s knows no program %d", host, prog)
		}
		return uint16(port), nil
	}
	m := rpcbind.Binding{Prog: prog, Vers: vers, Netid: "tcp6"}
	b, err := oneCall(ctx, at, rpcbind.Prog, rpcbind.Vers4, rpcbind.ProcGetaddr, m.Append(nil))
	if err != nil {
		return 0, err
	}
	r := xdr.NewReader(b)
	ap, err := rpcbind.ParseUaddr(rpcbind.ParseAddr(&r))
	if err != nil || r.Err() != nil {
		return 0, errors.Join(fmt.Errorf("lock: rpcbind at %s knows no program %d", host, prog), err)
	}
	return ap.Port(), nil
}

// oneCall makes a connection for a single call.
func oneCall(ctx context.Context, at netip.AddrPort, prog, vers, proc uint32, args []byte) ([]byte, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("lock: call back to %s: %w", net.JoinHostPort(at.Addr().String(), strconv.Itoa(int(at.Port()))), err)
	}
	defer func() { _ = nc.Close() }()
	if dl, ok := ctx.Deadline(); ok {
		if err := nc.SetDeadline(dl); err != nil {
			return nil, err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	h := rpc.Call{XID: prog ^ proc ^ 0x5a5a5a5a, Prog: prog, Vers: vers, Proc: proc}
	msg := append(h.Append(make([]byte, rpc.MarkLen)), args...)
	rpc.PutMark(msg, len(msg)-rpc.MarkLen, true)
	if _, err := nc.Write(msg); err != nil {
		return nil, err
	}
	var reply []byte
	for last := false; !last; {
		var mark [rpc.MarkLen]byte
		if _, err := io.ReadFull(nc, mark[:]); err != nil {
			return nil, err
		}
		var n int
		if n, last = rpc.ParseMark(mark[:]); n > maxReply-len(reply) || n == 0 {
			return nil, &rpc.RecordError{Len: n, Max: maxReply}
		}
		from := len(reply)
		reply = append(reply, make([]byte, n)...)
		if _, err := io.ReadFull(nc, reply[from:]); err != nil {
			return nil, err
		}
	}
	r := xdr.NewReader(reply)
	xid, err := rpc.ParseReply(&r)
	if err == nil && xid != h.XID {
		err = errors.New("lock: a reply to another call")
	}
	return r.Rest(), err
}
