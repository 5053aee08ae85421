// Package libiscsi runs the programs of libiscsi, an initiator that none of us wrote, against the target over TCP.
package libiscsi

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

const targetName = "iqn.2026-11.dev.sluice:disk"

// patience bounds one program; the whole set takes seconds.
const patience = 2 * time.Minute

// serve starts a target with one thin volume in memory and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	log := zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel), zaptest.WrapOptions(zap.AddStacktrace(zap.DPanicLevel)))
	o := stand.BlockOptions{Name: targetName, Memory: 256 << 20, SCSI: scsi.TargetOptions{StateDir: t.TempDir()},
		Server: iscsi.Options{Log: log, Timeouts: iscsi.Timeouts{Drain: 2 * time.Second}}}
	disk := scsi.LUOptions{Device: stand.Disk(t, 64<<20), Name: "disk", Serial: "0001", Volatile: true}
	return stand.NewBlocks(t, o, disk).Portal("127.0.0.1", 1)
}

func run(t *testing.T, name string, arg ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, arg...).CombinedOutput()
	return string(out), err
}

func TestToolsReadWhatTheTargetSays(t *testing.T) {
	ls, inq := need.Tool(t, "iscsi-ls", "libiscsi-bin"), need.Tool(t, "iscsi-inq", "libiscsi-bin")
	rc := need.Tool(t, "iscsi-readcapacity16", "libiscsi-bin")
	addr := serve(t)
	for _, c := range []struct {
		tool string
		arg  []string
		want string
	}{
		{ls, []string{"--show-luns", "iscsi://" + addr}, "Lun:0"},
		{inq, []string{"iscsi://" + addr + "/" + targetName + "/0"}, "DIRECT_ACCESS"},
		{rc, []string{"iscsi://" + addr + "/" + targetName + "/0"}, "67108864"},
	} {
		out, err := run(t, c.tool, c.arg...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s %s: %v, wanted %q in\n%s", c.tool, strings.Join(c.arg, " "), err, c.want, out)
		}
	}
}

// families of iscsi-test-cu that must pass whole.
var families = []string{"SCSI.Inquiry", "SCSI.Mandatory", "SCSI.ModeSense6", "SCSI.Read10", "SCSI.Read16", "SCSI.ReadCapacity10",
	"SCSI.ReadCapacity16", "SCSI.TestUnitReady",
	"SCSI.ReportSupportedOpcodes",
	"SCSI.Unmap", "SCSI.Write10", "SCSI.Write16",
	"SCSI.WriteSame16", "iSCSI.iSCSIcmdsn", "iSCSI.iSCSIdatasn", "iSCSI.iSCSIResiduals", "iSCSI.iSCSITMF"}

func TestConformanceFamilies(t *testing.T) {
	cu := need.Tool(t, "iscsi-test-cu", "libiscsi-bin")
	for _, f := range families {
		t.Run(f, func(t *testing.T) {
			addr := serve(t)
			out, err := run(t, cu, "--dataloss", "--test="+f, "iscsi://"+addr+"/"+targetName+"/0")
			// A test that passed may have printed [FAILED] on its way: for a command that was meant to fail.
			if err != nil || strings.Contains(out, "...FAILED") || !strings.Contains(out, "Run Summary") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
