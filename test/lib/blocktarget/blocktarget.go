// Package blocktarget serves one block device in the test's own process, over iSER and iSCSI/TCP at one address.
package blocktarget

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// Name is the target's.
const Name = "iqn.2026-01.org.example:disk"

// Options of a Target.
type Options struct {
	ReadOnly bool
	// User and Secret are asked for, where they are not empty.
	User, Secret string
	// Initiators, where it is not nil, are the only ones that may log in.
	Initiators []string
}

// Target is one that runs.
type Target struct {
	Addr string // "127.0.0.1:port"

	pool   *mem.Pool
	rnic   *iwarp.Device
	srv    *iscsi.Server
	served chan error
}

// Start serves d as LUN 0. The device stays the caller's.
func Start(d blockdev.Device, o Options) (*Target, error) {
	t := &Target{pool: mem.NewPool(128 << 20), rnic: iwarp.New(iwarp.Options{}), served: make(chan error, 1)}
	dev, err := scsi.NewTarget(scsi.TargetOptions{Name: Name, Memory: t.pool})
	if err != nil {
		return nil, err
	}
	lu, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: d, Name: "disk", ReadOnly: o.ReadOnly})
	if err != nil {
		return nil, err
	}
	if err := dev.AddLUN(0, lu); err != nil {
		return nil, err
	}
	if t.srv, err = iscsi.NewServer(iscsi.Options{Memory: t.pool, Device: t.rnic, Timeouts: iscsi.Timeouts{Drain: time.Second}}); err != nil {
		return nil, err
	}
	it := iscsi.Target{Name: Name, SCSI: dev}
	if o.User != "" {
		it.Auth = &iscsi.Auth{Secret: func(user string) (string, bool) { return o.Secret, user == o.User }}
	}
	if o.Initiators != nil {
		it.Initiators = []iscsi.Initiator{}
		for _, n := range o.Initiators {
			it.Initiators = append(it.Initiators, iscsi.Initiator{Name: n})
		}
	}
	if err := t.srv.AddTarget(it); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t.Addr = l.Addr().String()
	go func() { t.served <- t.srv.Serve(context.Background(), l, iscsi.Portal{Group: 1}) }()
	return t, nil
}

// URL names the volume by a scheme, iser or iscsi.
func (t *Target) URL(scheme string) string { return fmt.Sprintf("%s://%s/%s/0", scheme, t.Addr, Name) }

// Close ends it. Buffers that it keeps are an error.
func (t *Target) Close() error {
	err := t.srv.Close(context.Background())
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	if served := <-t.served; !errors.Is(served, iscsi.ErrClosed) {
		err = errors.Join(err, served)
	}
	if n := t.pool.Used(); n != 0 {
		err = errors.Join(err, fmt.Errorf("the target keeps %d bytes of buffers", n))
	}
	return errors.Join(err, t.rnic.Close())
}
