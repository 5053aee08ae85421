package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// attachmentScenarios run test/suite/attachments in the guest, whose kernel has the drivers.
var attachmentScenarios = []Scenario{
	attachmentScenario("attachments-ublk", "ublk"),
	attachmentScenario("attachments-nbd", "device"),
}

func attachmentScenario(name, face string) Scenario {
	return Scenario{
		Name: name, Class: long, Kernel: "6.12", Limit: 30 * time.Minute, Memory: 2048, Script: "attachments.sh", Files: []string{"sluice", "sluiced"},
		About: "every row of the table in docs/attach.md for face " + face + ": helper ended and killed, target away, device in use",
		Prepare: func(r *Run) error {
			r.Args = []string{face, "^(TestEveryRowOfTheTableHolds|TestStormAttachments)$"}
			return buildAttachments(r)
		},
	}
}

// buildAttachments builds the test where the guest finds it.
func buildAttachments(r *Run) error {
	files := filepath.Join(r.Tmp, "share", "files")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(r.Ctx, "go", "test", "-c", "-o", filepath.Join(files, "attachments.test"), "./test/suite/attachments")
	cmd.Dir = r.lab.top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the test: %w\n%s", err, out)
	}
	return nil
}
