package volumedev

import (
	"context"
	"errors"
	"flag"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		if err := flag.Set("rapid.checks", "10"); err != nil { // each step is a conversation over sockets
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// The rules of blockdev hold across a fabric: medium, target, wire and initiator together pass as one engine.
func TestConformance(t *testing.T) {
	for _, scheme := range []string{"iser", "iscsi"} {
		t.Run(scheme, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Options{Open: func(t testing.TB) blockdev.Device { return remote(t, scheme) }})
		})
	}
}

func remote(t testing.TB, scheme string) blockdev.Device {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const iqn = "iqn.2026-01.org.example:volumedev"
	disk, err := bmem.Open(bmem.Options{Size: 8 << 20})
	must(err)
	pool, rnic, far := mem.NewPool(64<<20), iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{})
	tg, err := scsi.NewTarget(scsi.TargetOptions{Name: iqn, Memory: pool})
	must(err)
	lu, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: disk, Name: "disk"})
	must(err)
	must(tg.AddLUN(0, lu))
	srv, err := iscsi.NewServer(iscsi.Options{Memory: pool, Device: rnic, Timeouts: iscsi.Timeouts{Drain: time.Second}})
	must(err)
	must(srv.AddTarget(iscsi.Target{Name: iqn, SCSI: tg}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background(), l, iscsi.Portal{Group: 1}) }()
	i, err := block.New(block.Options{Device: far})
	must(err)
	v, err := i.Open(context.Background(), scheme+"://"+l.Addr().String()+"/"+iqn+"/0")
	must(err)
	t.Cleanup(func() {
		err := v.Close()
		if errors.Is(err, block.ErrClosed) {
			err = nil
		}
		if err := errors.Join(err, i.Close(), srv.Close(context.Background()), <-served, disk.Close(), rnic.Close(), far.Close()); err != nil {
			t.Error(err)
		}
	})
	return New(v)
}
