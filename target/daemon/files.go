package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/nfs/lock"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/transport"
)

// files is the running file service.
type files struct {
	nfs  *nfs.Server
	lock *lock.Manager
	rpc  *rpcserver.Server
	bind *rpcserver.Server     // the embedded rpcbind, nil without one
	reg  *rpcserver.Registered // with the system's rpcbind, nil without
	udp  *rpcserver.Server     // what is served by UDP beside it
	tcp  net.Listener
	rdma transport.Listener // of the software RNIC
	// over is the address that adapters serve, empty for none; end stops them.
	over    string
	end     context.CancelFunc
	wg      sync.WaitGroup
	ended   chan struct{} // closed when finish has ended
	failed  error         // then
	endOnce sync.Once
}

// exports is the file service's form of the configured exports.
func (c *Config) exports() []nfs.Export {
	var out []nfs.Export
	squash := map[string]nfs.Squash{"": nfs.SquashRoot, "root": nfs.SquashRoot, "all": nfs.SquashAll, "none": nfs.SquashNone}
	for _, e := range c.Exports {
		x := nfs.Export{Path: path.Clean(e.Name), Dir: e.Path, AnonUID: e.AnonUID, AnonGID: e.AnonGID, Async: e.Async, SubtreeCheck: e.Subtree}
		for _, r := range e.Clients {
			x.Clients = append(x.Clients, nfs.Client{Match: r.Match, Rights: nfs.Rights{ReadOnly: r.ReadOnly, Squash: squash[r.Squash], Insecure: r.AnyPort}})
		}
		if len(e.Clients) == 0 { // this machine only, ordinary users included
			for _, m := range []string{"127.0.0.0/8", "::1/128"} {
				x.Clients = append(x.Clients, nfs.Client{Match: m, Rights: nfs.Rights{Insecure: true}})
			}
		}
		out = append(out, x)
	}
	return out
}

// openFiles binds the file service's addresses; it serves nothing yet. Without exports there is none. What was opened before an
// error is closed again. At a start an export that cannot be opened is left out.
func (d *Daemon) openFiles(c *Config, start bool) (_ *files, o *offer, err error) {
	if c.Files == nil {
		return nil, nil, nil
	}
	for _, e := range c.Exports {
		if filepath.Dir(e.Path) == filepath.Join(c.StateDir, "exports") {
			if err := makeExport(e); err != nil && !start {
				return nil, nil, fmt.Errorf("export %s: %w", e.Name, err)
			} else if err != nil {
				d.log.Error("the directory of an export could not be made", zap.String("export", e.Name), zap.Error(err))
			}
		}
	}
	state := filepath.Join(d.stateDir, "nfs")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, nil, err
	}
	f := &files{}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close(context.Background()))
		}
	}()
	if f.nfs, err = nfs.NewServer(nfs.Options{StateDir: state, Log: d.log}); err != nil {
		return nil, nil, err
	}
	if o, err = d.offered(c, start, f.nfs.SetExports); err != nil {
		return nil, nil, err
	}
	if why := f.nfs.Squashed(); why != "" {
		d.log.Warn("every caller acts as the daemon's own user", zap.String("why", why))
	}
	if f.lock, err = lock.NewManager(lock.Options{StateDir: state, Grace: time.Duration(c.Files.Grace), Log: d.log}, f.nfs); err != nil {
		return nil, nil, err
	}
	f.rpc = rpcserver.NewServer(rpcserver.Options{Log: d.log}, append(f.nfs.Programs(), f.lock.Programs()...)...)
	if c.Files.TCP != "none" {
		if f.tcp, err = net.Listen("tcp", c.Files.TCP); err != nil {
			return nil, nil, fmt.Errorf("files.tcp %s: %w; does this machine's own NFS server have the port?", c.Files.TCP, err)
		}
	}
	if c.Files.RDMA != "none" && d.device != nil {
		if f.rdma, err = d.device.Listen(context.Background(), c.Files.RDMA); err != nil {
			return nil, nil, fmt.Errorf("files.rdma %s: %w; does this machine's own NFS server have the port?", c.Files.RDMA, err)
		}
	}
	if c.Files.RDMA != "none" {
		f.over = c.Files.RDMA
		if f.rdma != nil {
			f.over = listening(f.over, f.rdma.Addr().String())
		}
	}
	if err := f.openBinder(c); err != nil {
		return nil, nil, err
	}
	return f, o, nil
}

// makeExport makes the directory of an export that names none. An export without rules is for the users of this machine. Where the
// daemon is root, they are squashed to another user: so the directory is open to all, as /tmp is. Where there are rules, the operator
// sets its permissions.
func makeExport(e ExportConfig) error {
	err := os.Mkdir(e.Path, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(e.Path), 0o755); err == nil {
			err = os.Mkdir(e.Path, 0o755)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		// Earlier versions made it so that it stayed empty.
		fi, serr := os.Stat(e.Path)
		if serr != nil {
			return serr
		}
		left, rerr := os.ReadDir(e.Path)
		if rerr != nil || len(left) > 0 || fi.Mode().Perm() != 0o755 {
			return rerr
		}
		err = nil
	}
	if err != nil || len(e.Clients) > 0 || os.Geteuid() != 0 {
		return err
	}
	return os.Chmod(e.Path, 0o777|fs.ModeSticky)
}

// openBinder registers the programs with an rpcbind, the embedded or the system's. Its clients may also want UDP: old ones for MOUNT, and
// status monitors, which announce their restart by datagrams only.
func (f *files) openBinder(c *Config) error {
	if c.Files.Rpcbind == "none" {
		return nil
	}
	b := rpcserver.NewBinder()
	var small []rpcserver.Program
	for _, p := range f.rpc.Programs() {
		if f.tcp != nil {
			set(b, p, "tcp", f.tcp.Addr().(*net.TCPAddr).AddrPort())
		}
		if a, ok := f.rdmaAddr(); ok {
			set(b, p, "rdma", a)
		}
		switch p.ID() {
		case mount3.Prog, nlm4.Prog, nlm4.NSMProg:
			small = append(small, p)
		}
	}
	if f.tcp != nil {
		pc, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(f.tcp.Addr().(*net.TCPAddr).AddrPort()))
		if err != nil {
			return fmt.Errorf("files.tcp %s, by UDP: %w", c.Files.TCP, err)
		}
		for _, p := range small {
			set(b, p, "udp", pc.LocalAddr().(*net.UDPAddr).AddrPort())
		}
		f.udp = rpcserver.NewServer(rpcserver.Options{}, small...)
		f.wg.Go(func() { _ = f.udp.ServeUDP(pc) }) // ends with Close
	}
	if c.Files.Rpcbind == "system" {
		var err error
		if f.reg, err = b.Register(rpcserver.SystemSocket); err != nil {
			return fmt.Errorf("files.rpcbind: %w", err)
		}
		return nil
	}
	f.bind = rpcserver.NewServer(rpcserver.Options{}, b)
	l, err := net.Listen("tcp", ":111")
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("files.rpcbind: %w; an ordinary user cannot have port 111: leave it at none, the URLs in the log carry the ports", err)
	case err != nil:
		return fmt.Errorf("files.rpcbind: %w; where the system's rpcbind runs, say system", err)
	}
	pc, err := net.ListenUDP("udp", &net.UDPAddr{Port: 111})
	if err != nil {
		return errors.Join(fmt.Errorf("files.rpcbind: %w", err), l.Close())
	}
	f.wg.Go(func() { _ = f.bind.ServeTCP(l) }) // ends with Close
	f.wg.Go(func() { _ = f.bind.ServeUDP(pc) })
	return nil
}

// set registers a program for every family that an address takes.
func set(b *rpcserver.Binder, p rpcserver.Program, name string, at netip.AddrPort) {
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if a := at.Addr(); a.Is6() {
		b.Set(p, name+"6", at)
		if !a.IsUnspecified() {
			return
		}
	}
	b.Set(p, name, at) // [::], which is what Go makes of 0.0.0.0 too, takes IPv4's callers
}

func (f *files) rdmaAddr() (netip.AddrPort, bool) {
	if f.rdma == nil {
		return netip.AddrPort{}, false
	}
	a, err := netip.ParseAddrPort(f.rdma.Addr().String())
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), err == nil
}

// serveFiles begins to answer.
func (d *Daemon) serveFiles() {
	f := d.files
	if f == nil {
		return
	}
	f.tell(d)
	fail := func(what string, err error) {
		if err != nil && !errors.Is(err, rpcserver.ErrServerClosed) {
			select {
			case d.failed <- fmt.Errorf("files.%s: %w", what, err):
			default:
			}
		}
	}
	if f.tcp != nil {
		d.log.Info("files open", zap.String("over", "TCP"), zap.Stringer("address", f.tcp.Addr()))
		f.wg.Go(func() { fail("tcp", f.rpc.ServeTCP(f.tcp)) })
	}
	if f.rdma != nil {
		d.log.Info("files open", zap.String("over", "RDMA"), zap.Stringer("address", f.rdma.Addr()))
		f.wg.Go(func() { fail("rdma", f.rpc.ServeRDMA(d.device, f.rdma)) })
	}
	if f.over != "" {
		var ctx context.Context
		ctx, f.end = context.WithCancel(context.Background())
		for _, a := range d.adapters {
			f.wg.Go(func() { a.serveFiles(ctx, f, f.over) })
		}
	}
}

// listening is where adapters listen beside a socket: the address that is configured, with the port that the socket got where
// none was.
func listening(configured, got string) string {
	host, port, err := net.SplitHostPort(configured)
	if _, p, gerr := net.SplitHostPort(got); err == nil && gerr == nil && port == "0" {
		return net.JoinHostPort(host, p)
	}
	return configured
}

// tell logs what is served where.
func (f *files) tell(d *Daemon) {
	for _, e := range d.cfg.Exports {
		if d.absent[path.Clean(e.Name)] != "" {
			continue // which the log has said
		}
		d.log.Info("export", zap.String("name", e.Name), zap.String("directory", e.Path), zap.String("url", f.url(e.Name)))
	}
}

// url is what a client of this machine can use: it names the ports, for no rpcbind may know them.
func (f *files) url(name string) string {
	if f.tcp == nil {
		return "nfs+rdma://" + f.over + name
	}
	a := f.tcp.Addr().(*net.TCPAddr)
	return fmt.Sprintf("nfs://%s%s?nfsport=%d&mountport=%d", hostOf(a), name, a.Port, a.Port)
}

func hostOf(a *net.TCPAddr) string {
	if a.IP.IsUnspecified() {
		return "127.0.0.1"
	}
	if a.IP.To4() == nil {
		return "[" + a.IP.String() + "]"
	}
	return a.IP.String()
}

// close ends the service: listeners, connections, then the exports.
func (f *files) close(ctx context.Context) error {
	var errs []error
	if f.reg != nil {
		errs = append(errs, f.reg.Close()) // first: no new client should be sent here
	}
	if f.end != nil {
		f.end()
	}
	if f.rpc != nil {
		errs = append(errs, f.rpc.Close(ctx))
	}
	for _, s := range []*rpcserver.Server{f.bind, f.udp} {
		if s != nil {
			errs = append(errs, s.Close(ctx))
		}
	}
	if f.tcp != nil {
		_ = f.tcp.Close() // closed already where it was served
	}
	if f.rdma != nil {
		_ = f.rdma.Close()
	}
	f.wg.Wait()
	if f.lock != nil {
		errs = append(errs, f.lock.Close())
	}
	if f.nfs != nil {
		errs = append(errs, f.nfs.Close())
	}
	return errors.Join(errs...)
}
