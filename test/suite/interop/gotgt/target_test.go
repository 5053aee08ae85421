package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev/gotgt"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// serveStore runs our target on gotgt's file store and returns its address.
func serveStore(t *testing.T, name string) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(path)
	must(err)
	must(errors.Join(f.Truncate(100<<20), f.Close()))
	dev, err := gotgt.Open("file:"+path, gotgt.Options{})
	must(err)
	pool := mem.NewPool(128 << 20)
	st, err := scsi.NewTarget(scsi.TargetOptions{Name: name, Memory: pool})
	must(err)
	lu, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: dev, Name: "gotgt"})
	must(err)
	must(st.AddLUN(0, lu))
	srv, err := iscsi.NewServer(iscsi.Options{Memory: pool})
	must(err)
	must(srv.AddTarget(iscsi.Target{Name: name, SCSI: st}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background(), l, iscsi.Portal{Group: 1}) }()
	t.Cleanup(func() {
		if err := errors.Join(srv.Close(context.Background()), dev.Close()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil && !errors.Is(err, iscsi.ErrClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// TestLibiscsiThroughOurTargetOnGotgtsStore is the bridge the other way: the store below is gotgt's, all else ours, and
// nothing is skipped.
func TestLibiscsiThroughOurTargetOnGotgtsStore(t *testing.T) {
	tool := need.Tool(t, "iscsi-test-cu", "libiscsi-bin")
	list, err := exec.Command(tool, "-l").Output()
	if err != nil && len(list) == 0 {
		t.Fatalf("iscsi-test-cu -l: %v", err)
	}
	const name = "iqn.2026-01.io.sluice:store"
	addr := serveStore(t, name)
	for test := range strings.FieldsSeq(string(list)) {
		if !families.MatchString(test) {
			continue
		}
		t.Run(strings.TrimPrefix(test, "ALL."), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			out, err := exec.CommandContext(ctx, tool, "-d", "-n", "-t", test, fmt.Sprintf("iscsi://%s/%s/0", addr, name)).CombinedOutput()
			if err != nil || !summary.Match(out) || strings.Contains(string(out), "[SKIPPED]") {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}
