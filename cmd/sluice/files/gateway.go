package files

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/internal/fabricflag"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func gatewayCommand() *cobra.Command {
	var listen string
	var binder bool
	var ff fabricflag.Flags
	c := &cobra.Command{
		Use:   "gateway URL",
		Short: "Give NFS clients that only know TCP a server that is reached by RDMA",
		Long: `gateway takes NFS and MOUNT calls on a TCP port of this machine and makes them at the server of the URL, over RDMA for
nfs+rdma:// URLs. Credentials pass through as they are: a program that reaches the port speaks with this machine's trust, so
it listens on loopback unless told otherwise.

` + urlHelp,
		Example: `  sluice gateway nfs+rdma://192.0.2.1/
  nfs-ls 'nfs://127.0.0.1/data?nfsport=2049&mountport=2049'`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if !nfs.IsURL(args[0]) {
				return ui.Usagef("%s is no nfs:// or nfs+rdma:// URL", args[0])
			}
			o, done, err := options(ff, c.ErrOrStderr())
			if err != nil {
				return err
			}
			err = gateway(c.Context(), args[0], listen, binder, o, func(a net.Addr) {
				ui.Note(c.ErrOrStderr(), "gateway to %s on %s", args[0], a)
			})
			return explain(errors.Join(err, done()))
		},
	}
	ff.Add(c.Flags())
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:2049", "address to take calls on")
	c.Flags().BoolVar(&binder, "rpcbind", false, "answer rpcbind on port 111 of the same address, for clients that must ask it")
	return c
}

// gateway serves until the context ends.
func gateway(ctx context.Context, url, listen string, binder bool, o nfs.Options, ready func(net.Addr)) error {
	up, err := nfs.Connect(ctx, url, o)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return errors.Join(err, up.Close())
	}
	programs := []rpcserver.Program{&forward{id: nfs3.Prog, low: nfs3.Vers, high: nfs3.Vers, up: up.NFS}, &forward{id: mount3.Prog, low: mount3.Vers, high: mount3.Vers, up: up.Mount}}
	var pm net.Listener
	if binder {
		b := rpcserver.NewBinder()
		at, err := netip.ParseAddrPort(l.Addr().String())
		if err == nil {
			pm, err = net.Listen("tcp", netip.AddrPortFrom(at.Addr(), 111).String())
		}
		if err != nil {
			return errors.Join(fmt.Errorf("rpcbind: %w", err), l.Close(), up.Close())
		}
		for _, p := range programs {
			b.Set(p, "tcp", at)
		}
		programs = append(programs, b)
	}
	srv := rpcserver.NewServer(rpcserver.Options{}, programs...)
	errs := make(chan error, 2)
	n := 1
	go func() { errs <- srv.ServeTCP(l) }()
	if pm != nil {
		n++
		go func() { errs <- srv.ServeTCP(pm) }()
	}
	ready(l.Addr())
	err = nil
	select {
	case <-ctx.Done():
	case err = <-errs:
		n--
	}
	// The clients first: it ends the calls that wait for a server that is away.
	err = errors.Join(err, up.Close())
	stop, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err = errors.Join(err, srv.Close(stop))
	for ; n > 0; n-- {
		if e := <-errs; !errors.Is(e, rpcserver.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// forward is a program that makes each call at another server. Only the bulk data is told apart, because RDMA places it
// apart; all else passes as bytes.
type forward struct {
	id, low, high uint32
	up            *rpcclient.Client
}

// ID is the program number.
func (f *forward) ID() uint32 { return f.id }

// Versions are what is forwarded.
func (f *forward) Versions() (low, high uint32) { return f.low, f.high }

// Keeps asks for the reply cache here: the server above sees another XID for each call.
func (f *forward) Keeps(_, proc uint32) bool {
	switch nfs3.Proc(proc) {
	case nfs3.ProcSetattr, nfs3.ProcCreate, nfs3.ProcMkdir, nfs3.ProcSymlink, nfs3.ProcMknod, nfs3.ProcRemove, nfs3.ProcRmdir, nfs3.ProcRename, nfs3.ProcLink:
		return f.id == nfs3.Prog
	}
	return false
}

// Overwrites asks for a call to be left out that its client has repeated on a newer connection: the server above would take it for
// another one.
func (f *forward) Overwrites(vers, proc uint32) bool {
	return f.id == nfs3.Prog && nfs3.Proc(proc) == nfs3.ProcWrite || f.Keeps(vers, proc)
}

// Classify leaves all to workers.
func (f *forward) Classify(*rpcserver.Call) rpcserver.Class { return rpcserver.Worker }

// Serve makes the call above.
func (f *forward) Serve(c *rpcserver.Call) rpcserver.Verdict {
	u := rpcclient.Call{Prog: c.Prog, Vers: c.Vers, Proc: c.Proc, Cred: rpcclient.Auth(c.Cred), MaxReply: 8 << 10}
	if f.id != nfs3.Prog {
		u.Args = c.Args.Rest()
		return f.plain(c, &u)
	}
	switch nfs3.Proc(c.Proc) {
	case nfs3.ProcRead, nfs3.ProcReadlink:
		return f.read(c, &u)
	case nfs3.ProcWrite:
		var a nfs3.WriteArgs
		a.Parse((*xdr.Reader)(&c.Args))
		u.Args = a.Append(nil)
		return f.withData(c, &u, a.Len)
	case nfs3.ProcSymlink:
		var a nfs3.SymlinkArgs
		a.Parse((*xdr.Reader)(&c.Args))
		u.Args = a.Append(nil)
		return f.withData(c, &u, a.PathLen)
	case nfs3.ProcReaddir, nfs3.ProcReaddirplus:
		u.MaxReply = 64<<10 + 1024
	default:
		u.MaxReply = 0
	}
	u.Args = c.Args.Rest()
	return f.plain(c, &u)
}

// do makes the call. false means that a verdict was reached.
func (f *forward) do(c *rpcserver.Call, u *rpcclient.Call) (rpcserver.Verdict, bool) {
	err := f.up.Do(context.Background(), u)
	var re *rpcclient.ReplyError
	switch {
	case err == nil:
		// The server above decides on rights. Who has one has the reply cache here.
		if status := xdr.NewReader(u.Results); f.id == nfs3.Prog && nfs3.Status(status.Uint32()) == nfs3.OK && status.Err() == nil {
			c.Peer.Trust()
		}
		return rpcserver.Done, true
	case errors.As(err, &re) && !re.Denied:
		return c.Fail(rpcserver.AcceptStat(re.Accept)), false
	case errors.As(err, &re):
		return c.Fail(rpcserver.SystemErr), false
	}
	return rpcserver.Drop, false // the gateway ends; the client asks again
}

func (f *forward) plain(c *rpcserver.Call, u *rpcclient.Call) rpcserver.Verdict {
	v, ok := f.do(c, u)
	if ok {
		c.Out = append(c.Out, u.Results...)
	}
	return v
}

func (f *forward) withData(c *rpcserver.Call, u *rpcclient.Call, n uint32) rpcserver.Verdict {
	data, err := c.Data(int(n))
	if err != nil || c.Args.Err() != nil {
		return c.Garbage()
	}
	if len(data) == 1 {
		u.Data = data[0]
	} else {
		for _, b := range data {
			u.Data = append(u.Data, b...)
		}
	}
	u.MaxReply = 0
	return f.plain(c, u)
}

func (f *forward) read(c *rpcserver.Call, u *rpcclient.Call) rpcserver.Verdict {
	link := nfs3.Proc(c.Proc) == nfs3.ProcReadlink
	args, n := c.Args, nfs3.MaxPath // args: a second reader of the same bytes
	if !link {
		var a nfs3.RangeArgs
		if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
			return c.Garbage()
		}
		n = int(min(a.Count, rpcserver.MaxPayload))
		a.Count = uint32(n)
		u.Args = a.Append(nil)
	} else {
		u.Args = args.Rest()
	}
	sink, err := c.Sink(max(n, 1))
	if err != nil || len(sink) != 1 {
		return c.Fail(rpcserver.SystemErr)
	}
	u.Sink, u.MaxReply = sink[0][:n], 0
	v, ok := f.do(c, u)
	if !ok {
		return v
	}
	var got uint32
	res := xdr.NewReader(u.Results)
	if link {
		var r nfs3.ReadlinkRes
		r.Parse(&res)
		got = r.Len
		c.Out = r.Append(c.Out)
	} else {
		var r nfs3.ReadRes
		r.Parse(&res)
		got = r.Len
		c.Out = r.Append(c.Out)
	}
	if res.Err() != nil || u.Result(res.Rest(), int(min(got, 1<<30))) != nil {
		return c.Fail(rpcserver.SystemErr)
	}
	c.SetPayload(int(got))
	return rpcserver.Done
}
