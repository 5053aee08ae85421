package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev/gotgt"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/stand"
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
	return stand.NewBlocks(t, stand.BlockOptions{Name: name}, scsi.LUOptions{Device: dev, Name: "gotgt"}).Portal("127.0.0.1", 1)
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
