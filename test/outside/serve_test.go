package outside_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/slogcore"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport"
)

const target = "iqn.2026-11.example.sluice:disk"

// disks is a target with one logical unit, served over TCP and over fabrics.
type disks struct {
	srv  *iscsi.Server
	unit *scsi.LogicalUnit
	runs sync.WaitGroup
	errs []error // guarded by runs
}

// serveBlocks makes a target of any block engine. dev, which may be nil, answers iSER at the portals of TCP. handler gets what is logged.
func serveBlocks(engine blockdev.Device, dev transport.Device, handler slog.Handler) (*disks, error) {
	memory := mem.NewPool(64 << 20)
	unit, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: engine, Name: "disk"})
	if err != nil {
		return nil, err
	}
	st, err := scsi.NewTarget(scsi.TargetOptions{Name: target, Memory: memory})
	if err != nil {
		return nil, err
	}
	if err := st.AddLUN(0, unit); err != nil {
		return nil, err
	}
	srv, err := iscsi.NewServer(iscsi.Options{Memory: memory, Device: dev, Log: slogcore.Logger(handler)})
	if err != nil {
		return nil, err
	}
	return &disks{srv: srv, unit: unit}, srv.AddTarget(iscsi.Target{Name: target, SCSI: st})
}

// listen opens a portal at any port and returns its address.
func (d *disks) listen() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	d.run(func() error { return d.srv.Serve(context.Background(), l, iscsi.Portal{Group: 1}) })
	return l.Addr().String(), nil
}

// listenOn is listen for a fabric.
func (d *disks) listenOn(dev transport.Device) (string, error) {
	l, err := dev.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	d.run(func() error { return d.srv.ServeRDMA(context.Background(), dev, l, iscsi.Portal{Group: 2}) })
	return l.Addr().String(), nil
}

func (d *disks) run(serve func() error) {
	n := len(d.errs)
	d.errs = append(d.errs, nil)
	d.runs.Go(func() { d.errs[n] = serve() })
}

// close ends what serves. The engine is the caller's to close, after it.
func (d *disks) close() error {
	err := d.srv.Close(context.Background())
	d.runs.Wait()
	d.unit.Close()
	return errors.Join(append(d.errs, err)...)
}

// files is a server of one directory.
type files struct {
	nfs  *nfs.Server
	srv  *rpcserver.Server
	runs sync.WaitGroup
}

// serveFiles exports a directory as /data, to every client. handler gets what is logged.
func serveFiles(dir string, handler slog.Handler) (*files, error) {
	log := slogcore.Logger(handler)
	s, err := nfs.NewServer(nfs.Options{Log: log}, nfs.Export{Path: "/data", Dir: dir, Rights: nfs.Rights{Squash: nfs.SquashNone, Insecure: true}})
	if err != nil {
		return nil, err
	}
	return &files{nfs: s, srv: rpcserver.NewServer(rpcserver.Options{Log: log}, s.Programs()...)}, nil
}

func (f *files) listenOn(dev transport.Device) (url string, err error) {
	l, err := dev.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	f.runs.Go(func() { _ = f.srv.ServeRDMA(dev, l) })
	return "nfs+rdma://" + l.Addr().String() + "/data", nil
}

func (f *files) close() error {
	err := f.srv.Close(context.Background())
	f.runs.Wait()
	return errors.Join(err, f.nfs.Close())
}
