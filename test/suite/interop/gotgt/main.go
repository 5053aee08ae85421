// Command gotgt runs gotgt's iSCSI target on one volume, for the interop test of blockdev/gotgt and as a peer to
// measure beside. The volume is ours, reached through the bridge, or with -store=file gotgt's own.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/gostor/gotgt/pkg/config"
	_ "github.com/gostor/gotgt/pkg/port/iscsit" // registers the iSCSI driver
	"github.com/gostor/gotgt/pkg/scsi"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/blockdev/gotgt"
)

func main() {
	port := flag.Int("port", 3260, "TCP port, on every address: gotgt cannot bind to one")
	store := flag.String("store", "sluice", "sluice or file")
	path := flag.String("file", "", "backing file")
	size := flag.Int64("size", 0, "make the file of so many bytes")
	thin := flag.Bool("thin", true, "report thin provisioning")
	iqn := flag.String("target", "iqn.2026-01.io.sluice:gotgt", "target name")
	quiet := flag.Bool("quiet", false, "log errors only")
	flag.Parse()
	if err := run(*port, *store, *path, *size, *thin, *iqn, *quiet); err != nil {
		fmt.Fprintln(os.Stderr, "gotgt:", err)
		os.Exit(1)
	}
}

func run(port int, store, path string, size int64, thin bool, iqn string, quiet bool) error {
	logs := zap.NewProductionConfig()
	logs.DisableStacktrace = true
	if quiet {
		logs.Level.SetLevel(zap.ErrorLevel)
	}
	log, err := logs.Build()
	if err != nil {
		return err
	}
	gotgt.RouteLogs(log)
	gotgt.Register("sluice", func(path string) (blockdev.Device, error) {
		return file.Open(path, file.Options{Size: size})
	})
	if store == "file" && size > 0 {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		if err := f.Truncate(size); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	conf := &config.Config{
		Storages:     []config.BackendStorage{{DeviceID: 1000, Path: store + ":" + path, Online: true, ThinProvisioning: thin, BlockShift: 9}},
		ISCSIPortals: []config.ISCSIPortalInfo{{ID: 0, Portal: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}},
		ISCSITargets: map[string]config.ISCSITarget{iqn: {TPGTs: map[string][]uint64{"1": {0}}, LUNs: map[string]uint64{"0": 1000}}},
	}
	if err := scsi.InitSCSILUMap(conf); err != nil {
		return err
	}
	driver, err := scsi.NewTargetDriver("iscsi", scsi.NewSCSITargetService())
	if err != nil {
		return err
	}
	if err := driver.NewTarget(iqn, conf); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- driver.Run(port) }()
	if err := listening(port, ended); err != nil {
		return err
	}
	fmt.Printf("ready on port %d\n", port)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	select {
	case err := <-ended:
		return err
	case <-stop:
		return driver.Close()
	}
}

// listening returns once port accepts connections: gotgt says so nowhere else.
func listening(port int, ended <-chan error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return c.Close()
		}
		select {
		case err := <-ended:
			return err
		case <-tick.C:
		}
	}
	return fmt.Errorf("nobody listens on port %d", port)
}
