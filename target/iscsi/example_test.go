package iscsi_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"

	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// A disk in memory is served at one port, by iSER and by iSCSI/TCP, to those who know a secret.
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
	srv, err := iscsi.NewServer(iscsi.Options{Memory: memory, Device: rnic})
	if err != nil {
		log.Fatal(err)
	}
	auth := &iscsi.Auth{Secret: iscsi.SecretMap(map[string]string{"alice": "a secret of alice"})}
	if err := srv.AddTarget(iscsi.Target{Name: name, SCSI: st, Auth: auth}); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background(), l, iscsi.Portal{Group: 1}) }()

	for _, scheme := range []string{"iser://", "iscsi://"} {
		url := scheme + l.Addr().String() + "/" + name + "/0"
		_, err := block.Open(context.Background(), url, block.Options{CHAP: block.Secret{Name: "alice", Secret: "what is no secret"}})
		fmt.Println("refused:", errors.Is(err, block.ErrAuth))
		v, err := block.Open(context.Background(), url, block.Options{CHAP: block.Secret{Name: "alice", Secret: "a secret of alice"}})
		if err != nil {
			log.Fatal(err)
		}
		n, err := v.WriteAt([]byte("hello"), 0)
		fmt.Println(n, "bytes by", scheme, err)
		if err := v.Close(); err != nil {
			log.Fatal(err)
		}
	}

	err = errors.Join(srv.Close(context.Background()), <-served) // the server first, then what it serves
	unit.Close()
	if err := errors.Join(err, disk.Close(), memory.Close(), rnic.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// refused: true
	// 5 bytes by iser:// <nil>
	// refused: true
	// 5 bytes by iscsi:// <nil>
}
