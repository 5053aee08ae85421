package stand

import (
	"context"
	"net"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport"
)

// Name is the name of a target that is given none.
const Name = "iqn.2026-01.org.example:disk"

// BlockOptions say what a block target is made of.
type BlockOptions struct {
	Name   string             // of the target, Name if empty
	Memory int64              // of its pool, 64 MiB if 0
	SCSI   scsi.TargetOptions // Name and Memory are filled in
	ISCSI  iscsi.Target       // Name and SCSI are filled in
	Server iscsi.Options      // Memory is filled in; Device is closed with the stand; Timeouts.Drain is a second if 0
}

// Blocks is a block target. Its Server has no portal yet.
type Blocks struct {
	Pool   *mem.Pool
	SCSI   *scsi.Target
	Units  []*scsi.LogicalUnit
	Server *iscsi.Server

	t    T
	name string
	at   string // the first portal
	runs []chan error
}

// NewBlocks puts up a target whose LUNs, from 0 on, are the units. Their devices are closed with it.
func NewBlocks(t T, o BlockOptions, units ...scsi.LUOptions) *Blocks {
	t.Helper()
	if o.Memory == 0 {
		o.Memory = 64 << 20
	}
	if o.Server.Timeouts.Drain == 0 {
		o.Server.Timeouts.Drain = time.Second
	}
	b := &Blocks{Pool: mem.NewPool(o.Memory), t: t}
	if o.Name == "" {
		o.Name = Name
	}
	o.SCSI.Name, o.SCSI.Memory, o.Server.Memory = o.Name, b.Pool, b.Pool
	var err error
	b.SCSI, err = scsi.NewTarget(o.SCSI)
	must(t, err)
	for n, u := range units {
		lu, err := scsi.NewLogicalUnit(u)
		must(t, err)
		b.Units = append(b.Units, lu)
		must(t, b.SCSI.AddLUN(uint16(n), lu))
	}
	b.Server, err = iscsi.NewServer(o.Server)
	must(t, err)
	o.ISCSI.Name, o.ISCSI.SCSI = o.Name, b.SCSI
	must(t, b.Server.AddTarget(o.ISCSI))
	b.name = o.Name
	t.Cleanup(func() { b.close(o.Server.Device, units) })
	return b
}

// Disk is a device in memory, with blocks of 512 bytes.
func Disk(t T, size int64) blockdev.Device {
	t.Helper()
	d, err := bmem.Open(bmem.Options{Size: size, Logical: 512})
	must(t, err)
	return d
}

// Portal serves TCP on any port of host, and iSER where the server has a device, and returns the address.
func (b *Blocks) Portal(host string, group uint16) string {
	b.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	must(b.t, err)
	b.run(func() error { return b.Server.Serve(context.Background(), l, iscsi.Portal{Group: group}) })
	if b.at == "" {
		b.at = l.Addr().String()
	}
	return l.Addr().String()
}

// URL names LUN 0 at the first portal, by a scheme: iser or iscsi.
func (b *Blocks) URL(scheme string) string { return scheme + "://" + b.at + "/" + b.name + "/0" }

// Fabric serves iSER at an address of a fabric. The device is the test's to close, after the stand: t.Cleanup before NewBlocks.
func (b *Blocks) Fabric(dev transport.Device, addr string, group uint16) string {
	b.t.Helper()
	l, err := dev.Listen(context.Background(), addr)
	must(b.t, err)
	b.run(func() error { return b.Server.ServeRDMA(context.Background(), dev, l, iscsi.Portal{Group: group}) })
	return l.Addr().String()
}

func (b *Blocks) run(serve func() error) {
	done := make(chan error, 1)
	b.runs = append(b.runs, done)
	go func() { done <- serve() }()
}

func (b *Blocks) close(dev transport.Device, units []scsi.LUOptions) {
	check(b.t, "close the target", b.Server.Close(context.Background())) // initiators that the test has left are cut
	for _, done := range b.runs {
		check(b.t, "serve", <-done)
	}
	for _, lu := range b.Units {
		lu.Close()
	}
	if n := b.Pool.Used(); n != 0 {
		b.t.Errorf("the target keeps %d bytes of buffers", n)
	}
	if dev != nil {
		check(b.t, "close the fabric", dev.Close())
	}
	for _, u := range units {
		check(b.t, "close the medium", u.Device.Close())
	}
}
