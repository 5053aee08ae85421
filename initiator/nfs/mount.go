package nfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"time"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcbind"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// Options configure a mount.
type Options struct {
	// Device is the fabric for RDMA targets. It stays the caller's and must outlive the FS.
	Device transport.Device
	// Provider makes the device of a URL that names a provider or an exposure, and without a Device that of one that names neither
	// (the words are empty then). The devices stay the caller's too.
	Provider func(name, exposure string) (transport.Device, error)
	// Timeout is how long a call waits for its reply before the connection is made again; 0 for a default.
	Timeout time.Duration
	// Credential goes with the calls in place of one of the URL's user and group; nil for that.
	Credential *rpcclient.Auth
	// Log takes what there is to say that is no call's error, such as a lock that another client has got; nil for nothing.
	Log *slog.Logger
	// Dial replaces the connection to the server, for tests: with it, MOUNT is called over the same connection.
	Dial rpcclient.Dialer
}

// FS is a mounted directory of a server. Close it.
type FS struct {
	rpc  *rpcclient.Client
	rdma *rpcclient.RDMA
	pool *mem.Pool // of the RDMA connection, or of plain memory
	cred rpcclient.Auth
	root []byte

	machine string // of calls' credentials, and when they began
	stamp   uint32
	target  *Target // nil where a Dial of the caller's makes the connection

	rsize, wsize, dsize int

	log    *slog.Logger // nil for none
	shared bool         // of Sub: the connection is another FS's
	fabric *fabric.Set  // that Open made, or nil
}

// Mount mounts the directory that a URL names. When it names something else, the directory above is mounted and name is
// the rest; otherwise name is ".".
func Mount(ctx context.Context, rawURL string, o Options) (v *FS, name string, err error) {
	t, err := ParseURL(rawURL)
	if err != nil {
		return nil, "", err
	}
	v = &FS{}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.Close())
			v = nil
		}
	}()
	host, _ := os.Hostname()
	if o.Dial == nil {
		v.target = t
	}
	sys := oncrpc.Sys{UID: t.UID, GID: t.GID}
	v.machine, v.stamp = host[:min(len(host), oncrpc.MaxMachine)], uint32(time.Now().Unix())
	v.cred = rpcclient.Auth{Flavor: oncrpc.AuthSys, Body: sys.Append(nil, v.stamp, v.machine)}
	v.log = o.Log
	if o.Credential != nil {
		v.cred = *o.Credential
	}
	if err := v.connect(ctx, t, o); err != nil {
		return v, "", err
	}
	mnt, err := v.mountClient(ctx, t, o)
	if err != nil {
		return v, "", err
	}
	if mnt != v.rpc {
		defer func() { err = errors.Join(err, mnt.Close()) }()
	}
	dir, name := t.Path, "."
	for {
		v.root, err = v.mnt(ctx, mnt, dir)
		if err == nil {
			break
		}
		// A file, or something below a directory that is exported: the directory above.
		if !errors.Is(err, mount3.ErrNotdir) && !errors.Is(err, mount3.ErrNoent) && !errors.Is(err, mount3.ErrAcces) || dir == "/" {
			return v, "", mountError(t.Path, err)
		}
		first := err
		name = path.Join(path.Base(dir), name)
		if dir = path.Dir(dir); dir == "/" && !errors.Is(err, mount3.ErrNotdir) {
			if v.root, err = v.mnt(ctx, mnt, dir); err != nil {
				return v, "", mountError(t.Path, first)
			}
			break
		}
	}
	return v, name, v.transfers(ctx)
}

// device is what a URL with these words goes through.
func (o *Options) device(provider, exposure string) (transport.Device, error) {
	switch {
	case o.Device != nil && (provider == "" || provider == o.Device.Name()) && exposure == "":
		return o.Device, nil
	case o.Device != nil && o.Provider == nil && exposure != "":
		return nil, fmt.Errorf("%w: exposure=%s", ErrExposure, exposure)
	case o.Provider == nil:
		return nil, ErrNoDevice
	}
	d, err := o.Provider(provider, exposure)
	if err != nil {
		return nil, fmt.Errorf("nfs: %w", err)
	}
	return d, nil
}

// connect makes the client of the NFS program.
func (v *FS) connect(ctx context.Context, t *Target, o Options) error {
	ro := rpcclient.Options{Timeout: o.Timeout}
	v.pool = mem.NewPool(maxMemory)
	switch {
	case o.Dial != nil:
		v.rpc = rpcclient.NewClient(o.Dial, ro)
	case t.RDMA:
		dev, err := o.device(t.Provider, t.Exposure)
		if err != nil {
			return err
		}
		if v.rdma, err = rpcclient.NewRDMA(dev); err != nil {
			return err
		}
		v.pool = v.rdma.Memory()
		port := t.Port
		if port == 0 {
			port = PortRDMA
		}
		ro.Woken = v.rdma.Woken
		v.rpc = rpcclient.NewClient(v.rdma.Dialer(t.at(port)), ro)
	default:
		port := t.Port
		if port == 0 {
			var err error
			if port, err = getport(ctx, t, nfs3.Prog, nfs3.Vers); err != nil {
				port = PortTCP
			}
		}
		v.rpc = rpcclient.NewClient(rpcclient.TCP(t.addr(port)), ro)
	}
	return nil
}

// mountClient makes the client of the MOUNT program: at the port that the URL or rpcbind names, else over the connection
// of NFS, where servers like ours answer it.
func (v *FS) mountClient(ctx context.Context, t *Target, o Options) (*rpcclient.Client, error) {
	if o.Dial != nil || t.Socket != "" {
		return v.rpc, nil
	}
	port := t.MountPort
	if port == 0 {
		var err error
		if port, err = getport(ctx, t, mount3.Prog, mount3.Vers); err != nil {
			return v.rpc, nil
		}
	}
	if !t.RDMA && port == t.Port {
		return v.rpc, nil
	}
	return rpcclient.NewClient(rpcclient.TCP(t.addr(port)), rpcclient.Options{Timeout: o.Timeout}), nil
}

// getport asks the server's rpcbind for a TCP port.
func getport(ctx context.Context, t *Target, prog, vers uint32) (int, error) {
	c := rpcclient.NewClient(rpcclient.TCP(t.addr(rpcbind.Port)), rpcclient.Options{})
	m := rpcbind.Mapping{Prog: prog, Vers: vers, Prot: rpcbind.ProtoTCP}
	call := rpcclient.Call{Prog: rpcbind.Prog, Vers: rpcbind.VersPmap, Proc: rpcbind.ProcGetport, Args: m.Append(nil)}
	err := c.Do(ctx, &call)
	res := xdr.NewReader(call.Results)
	port := int(res.Uint32())
	if err == nil {
		err = res.Err()
	}
	err = errors.Join(err, c.Close())
	if err == nil && (port == 0 || port > 65535) {
		err = fmt.Errorf("nfs: rpcbind on %s knows no program %d; give nfsport and mountport", t.Host, prog)
	}
	return port, err
}

func (v *FS) mnt(ctx context.Context, c *rpcclient.Client, dir string) ([]byte, error) {
	a := mount3.PathArgs{Path: []byte(dir)}
	call := rpcclient.Call{Prog: mount3.Prog, Vers: mount3.Vers, Proc: mount3.ProcMnt, Cred: v.cred, Args: a.Append(nil)}
	if err := c.Do(ctx, &call); err != nil {
		return nil, err
	}
	var r mount3.MntRes
	res := xdr.NewReader(call.Results)
	r.Parse(&res)
	if err := res.Err(); err != nil {
		return nil, err
	}
	if r.Status != mount3.OK {
		return nil, r.Status
	}
	return append([]byte(nil), r.FH...), nil
}

// FSInfo is what a server can do (FSINFO, RFC 1813 section 3.3.19). Sizes are in bytes.
type FSInfo struct {
	Attr                           OptAttr // of the mounted directory
	ReadMax, ReadPref, ReadMult    uint32
	WriteMax, WritePref, WriteMult uint32
	DirPref                        uint32
	MaxFileSize                    uint64
	TimeDelta                      Time   // how fine the server's times are
	Properties                     uint32 // FSF3_LINK and so on
}

// FSInfo asks what the server can do.
func (v *FS) FSInfo(ctx context.Context) (FSInfo, error) {
	a := nfs3.FHArgs{FH: v.root}
	var r nfs3.FsinfoRes
	if err := v.call(ctx, nfs3.ProcFsinfo, a.Append(nil), 0, r.Parse); err != nil {
		return FSInfo{}, err
	}
	if r.Status != nfs3.OK {
		return FSInfo{}, status(r.Status)
	}
	return FSInfo{
		Attr: optAttrOf(&r.Attr), ReadMax: r.RTMax, ReadPref: r.RTPref, ReadMult: r.RTMult, WriteMax: r.WTMax, WritePref: r.WTPref, WriteMult: r.WTMult,
		DirPref: r.DTPref, MaxFileSize: r.MaxFileSize, TimeDelta: Time(r.TimeDelta), Properties: r.Properties,
	}, nil
}

// transfers learns how much one READ, WRITE and READDIRPLUS may carry.
func (v *FS) transfers(ctx context.Context) error {
	i, err := v.FSInfo(ctx)
	if err != nil {
		return err
	}
	size := func(n uint32) int {
		if n == 0 {
			return 4096
		}
		return int(min(n, maxTransfer))
	}
	v.rsize, v.wsize, v.dsize = size(i.ReadMax), size(i.WriteMax), int(min(max(i.DirPref, 4096), listReply))
	return nil
}

// call makes a call whose results hold no bulk data.
func (v *FS) call(ctx context.Context, p nfs3.Proc, args []byte, maxReply int, parse func(*xdr.Reader)) error {
	c := struct { // in one piece of memory: parse keeps it from the stack
		rpcclient.Call
		res xdr.Reader
	}{Call: rpcclient.Call{Prog: nfs3.Prog, Vers: nfs3.Vers, Proc: uint32(p), Cred: v.cred, Args: args, MaxReply: maxReply}}
	if err := v.do(ctx, &c.Call); err != nil {
		return fmt.Errorf("nfs: %s: %w", p, err)
	}
	c.res.Reset(c.Results)
	parse(&c.res)
	if err := c.res.Err(); err != nil {
		return fmt.Errorf("nfs: %s: the server's answer: %w", p, err)
	}
	return nil
}

// Close ends the connection, and with it all calls under way. Unsynced data is lost; File.Close syncs. Memory must have been
// released before.
func (v *FS) Close() error {
	if v.shared {
		return nil
	}
	err := v.disconnect()
	if v.fabric != nil {
		err = errors.Join(err, v.fabric.Close())
	}
	return err
}

func (v *FS) disconnect() error {
	var err error
	if v.rpc != nil {
		err = v.rpc.Close()
	}
	if v.rdma != nil {
		return errors.Join(err, v.rdma.Close())
	}
	if v.pool != nil {
		err = errors.Join(err, v.pool.Close())
	}
	return err
}

// Memory is where buffers for File.ReadSpan come from. They must be released before Close.
func (v *FS) Memory() *mem.Pool { return v.pool }

// Stats counts connections made and calls sent again.
func (v *FS) Stats() rpcclient.Stats { return v.rpc.Stats() }

// Conn are clients of a server's NFS and MOUNT programs, without a mount: what a gateway needs.
type Conn struct {
	NFS, Mount *rpcclient.Client
	v          *FS
}

// Connect makes clients for the server that a URL names.
func Connect(ctx context.Context, rawURL string, o Options) (*Conn, error) {
	t, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	v := &FS{}
	if err := v.connect(ctx, t, o); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	m, err := v.mountClient(ctx, t, o)
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return &Conn{NFS: v.rpc, Mount: m, v: v}, nil
}

// Memory is where memory for bulk data comes from; all of it must be released before Close.
func (c *Conn) Memory() *mem.Pool { return c.v.pool }

// Close ends the clients and their calls.
func (c *Conn) Close() error {
	var err error
	if c.Mount != c.NFS {
		err = c.Mount.Close()
	}
	return errors.Join(err, c.v.Close())
}
