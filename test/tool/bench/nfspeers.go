package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// libnfs is a running test/tool/bench/libnfs/load.c and the server that it loads.
type libnfs struct {
	cmd    *exec.Cmd
	server *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
}

func startLoad(program, url, file string, server *exec.Cmd) (*libnfs, error) {
	l := &libnfs{cmd: child(program, url, file), server: server}
	l.cmd.Stderr = os.Stderr
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.out = bufio.NewReader(out)
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	var rmax, wmax int
	if _, err := fmt.Fscanf(l.out, "ready %d %d\n", &rmax, &wmax); err != nil || rmax < 1<<20 || wmax < 1<<20 {
		return nil, errors.Join(fmt.Errorf("libnfs at %s: rtmax %d, wtmax %d: %w", url, rmax, wmax, err), kill(l.cmd))
	}
	return l, nil
}

func (l *libnfs) pids() []int { return []int{l.cmd.Process.Pid, l.server.Process.Pid} }

func (l *libnfs) run(w work, d time.Duration) (n int, took time.Duration, err error) {
	op := "r"
	if w.write {
		op = "w"
	}
	if _, err := fmt.Fprintln(l.in, op, w.size, w.depth, volumeSize, d.Milliseconds()); err != nil {
		return 0, 0, err
	}
	var us int64
	_, err = fmt.Fscanf(l.out, "%d %d\n", &n, &us)
	return n, time.Duration(us) * time.Microsecond, err
}

func (l *libnfs) close() error { return errors.Join(l.in.Close(), l.cmd.Wait()) }

// fileDaemon is sluiced with an export.
type fileDaemon struct {
	ours
	tcp, rdma int
}

func startFiles(dir, export string, o options) (*fileDaemon, error) {
	d := &fileDaemon{}
	var err error
	if d.tcp, err = freePort(); err != nil {
		return nil, err
	}
	if d.rdma, err = freePort(); err != nil {
		return nil, err
	}
	conf := fmt.Sprintf(`state_dir: %s
log: {level: warn}
fabric: {crc: "on"}
exports: [{path: %s, name: /bench, clients: [{match: "*", squash: none, any_port: true}]}]
files: {tcp: "127.0.0.1:%d", rdma: "127.0.0.1:%d"}
`, dir, export, d.tcp, d.rdma)
	if err := d.launch(dir, conf, o.daemon); err != nil {
		return nil, err
	}
	if err := d.ready(); err != nil {
		said, _ := os.ReadFile(d.log.Name()) // what it said is a help, not a must
		return nil, errors.Join(fmt.Errorf("%w; sluiced said:\n%s", err, said), d.close())
	}
	return d, nil
}

// profile writes CPU profiles of the daemon, and of this process where it is the client, under the load.
func (d *fileDaemon) profile(who string, r runner, w work, dir string) error {
	name := filepath.Join(dir, strings.Trim(who, "*main.")+"-"+strings.Join(strings.Fields(w.String()), "-"))
	f, err := os.Create(name + "-client.pprof")
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	var wg sync.WaitGroup
	var b []byte
	var perr error
	wg.Go(func() { b, perr = d.get("/debug/pprof/profile?seconds=3") })
	_, _, err = r.run(w, 3500*time.Millisecond)
	pprof.StopCPUProfile()
	wg.Wait()
	if err := errors.Join(err, perr, f.Close()); err != nil {
		return err
	}
	return os.WriteFile(name+"-sluiced.pprof", b, 0o644)
}

// rdmaClient is our client over RDMA, with registered memory. READ goes through File. WRITE goes out as bare calls,
// UNSTABLE and without COMMIT, as the raw side's pwrite is: a File keeps what is not committed and has the server commit it, which would
// measure the disk.
type rdmaClient struct {
	d    *fileDaemon
	dev  *iwarp.Device
	fs   *infs.FS
	file *infs.File
	fh   []byte
	data []*mem.Buf
	conn *infs.Conn
	out  []*mem.Buf // of conn's memory
}

func dialRDMA(d *fileDaemon) (*rdmaClient, error) {
	c := &rdmaClient{d: d, dev: iwarp.New(iwarp.Options{})}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *rdmaClient) open() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	url := fmt.Sprintf("nfs+rdma://127.0.0.1:%d/bench?mountport=%d", c.d.rdma, c.d.tcp) // the rpcbind here is ganesha's
	v, _, err := infs.Mount(ctx, url, infs.Options{Device: c.dev})
	if err != nil {
		return err
	}
	c.fs = v
	if c.file, err = v.OpenFile(context.Background(), "sluice", os.O_RDWR, 0); err != nil {
		return err
	}
	if c.conn, err = infs.Connect(ctx, url, infs.Options{Device: c.dev}); err != nil {
		return err
	}
	call := rpcclient.Call{Prog: mount3.Prog, Vers: mount3.Vers, Proc: mount3.ProcMnt, Cred: cred(), Args: (&mount3.PathArgs{Path: []byte("/bench")}).Append(nil)}
	if err := c.conn.Mount.Do(ctx, &call); err != nil {
		return err
	}
	var m mount3.MntRes
	res := xdr.NewReader(call.Results)
	if m.Parse(&res); m.Status != mount3.OK {
		return m.Status
	}
	a := nfs3.DirOp{Dir: m.FH, Name: []byte("sluice")}
	call = rpcclient.Call{Prog: nfs3.Prog, Vers: nfs3.Vers, Proc: uint32(nfs3.ProcLookup), Cred: cred(), Args: a.Append(nil)}
	if err := c.conn.NFS.Do(ctx, &call); err != nil {
		return err
	}
	var r nfs3.LookupRes
	res = xdr.NewReader(call.Results)
	if r.Parse(&res); r.Status != nfs3.OK {
		return r.Status
	}
	c.fh = append([]byte(nil), r.FH...)
	for range 32 {
		b, err := v.Memory().Get(1 << 20)
		if err != nil {
			return err
		}
		c.data = append(c.data, b)
		if b, err = c.conn.Memory().Get(1 << 20); err != nil {
			return err
		}
		c.out = append(c.out, b)
	}
	return nil
}

func cred() rpcclient.Auth {
	return rpcclient.Auth{Flavor: oncrpc.AuthSys, Body: (&oncrpc.Sys{}).Append(nil, 0, "bench")}
}

func (c *rdmaClient) close() error {
	var errs []error
	for _, b := range append(c.data, c.out...) {
		b.Release()
	}
	if c.fs != nil {
		errs = append(errs, c.fs.Close())
	}
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	return errors.Join(append(errs, c.dev.Close())...)
}

func (c *rdmaClient) pids() []int { return c.d.pids() }

func (c *rdmaClient) run(w work, d time.Duration) (int, time.Duration, error) {
	var next, done atomic.Int64
	var stop atomic.Bool
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	timer := time.AfterFunc(d, func() { stop.Store(true) })
	defer timer.Stop()
	for i := range w.depth {
		wg.Go(func() {
			for !stop.Load() {
				off := w.offset(int(next.Add(1) - 1))
				if err := c.one(w, i, off); err != nil {
					failed.Store(&err)
					stop.Store(true)
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, 0, *err
	}
	return int(done.Load()), time.Since(start), nil
}

func (c *rdmaClient) one(w work, i int, off int64) error {
	if !w.write {
		n, err := c.file.ReadSpan(context.Background(), c.data[i].Span().Cut(0, w.size), off)
		if err == nil && n != w.size {
			err = fmt.Errorf("READ gave %d bytes", n)
		}
		return err
	}
	n := uint32(w.size)
	a := nfs3.WriteArgs{FH: c.fh, Offset: uint64(off), Count: n, Stable: nfs3.Unstable, Len: n}
	call := rpcclient.Call{Prog: nfs3.Prog, Vers: nfs3.Vers, Proc: uint32(nfs3.ProcWrite), Cred: cred(), Args: a.Append(nil), DataSpan: c.out[i].Span().Cut(0, w.size)}
	if err := c.conn.NFS.Do(context.Background(), &call); err != nil {
		return err
	}
	var r nfs3.WriteRes
	res := xdr.NewReader(call.Results)
	r.Parse(&res)
	if r.Status != nfs3.OK {
		return r.Status
	}
	if r.Count != n {
		return fmt.Errorf("WRITE took %d bytes of %d", r.Count, n)
	}
	return res.Err()
}
