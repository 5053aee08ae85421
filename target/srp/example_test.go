package srp_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/target/srp"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// A disk in memory is served by SRP, on a fabric of any provider. Initiators are told the identifier of the target's port.
func Example() {
	const name = "iqn.2026-11.example:disk"
	memory, rnic := mem.NewPool(64<<20), iwarp.New(iwarp.Options{})
	disk, err := bmem.Open(bmem.Options{Size: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	unit, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: disk, Name: "disk", Volatile: true})
	if err != nil {
		log.Fatal(err)
	}
	st, err := scsi.NewTarget(scsi.TargetOptions{Name: name, Memory: memory})
	if err != nil {
		log.Fatal(err)
	}
	if err := st.AddLUN(0, unit); err != nil {
		log.Fatal(err)
	}
	find := func(group uint16, target, _ scsi.SRPPort) (srp.Grant, error) {
		if target != srp.TargetPort(name, group) {
			return srp.Grant{}, errors.New("there is no such target")
		}
		return srp.Grant{Target: name, SCSI: st}, nil // for each initiator, all LUNs
	}
	srv, err := srp.NewServer(srp.Options{Memory: memory, Find: find})
	if err != nil {
		log.Fatal(err)
	}
	l, err := rnic.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background(), rnic, l, func() uint16 { return 1 }) }()
	fmt.Printf("%x\n", srp.TargetPort(name, 1))

	// Here initiators log in.

	err = srv.Close(context.Background()) // the server first, then what it serves
	if end := <-served; !errors.Is(end, srp.ErrClosed) {
		err = errors.Join(err, end)
	}
	unit.Close()
	if err := errors.Join(err, disk.Close(), rnic.Close(), memory.Close()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(srv.Counts().Logins, "logins")
	// Output:
	// 00000000000000018a1888a2260355f6
	// 0 logins
}
