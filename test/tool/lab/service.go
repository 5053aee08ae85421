package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

var serviceScenarios = []Scenario{
	{
		Name: "service", Class: long, Limit: 40 * time.Minute, Systemd: true, Memory: 1536,
		About:   "the Debian package under systemd: install, kernel initiators, reload and restart under load, watchdog, sandbox, purge",
		Prepare: prepareService,
	},
}

// prepareService builds the package as it is handed out, but for its compression, where the guest finds it.
func prepareService(r *Run) error {
	files := filepath.Join(r.Tmp, "share", "files")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(r.Ctx, "go", "run", "./packaging", "-out", files, "-compression", "none", "deb")
	cmd.Dir = r.lab.top
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the package: %w\n%s", err, out)
	}
	debs, err := filepath.Glob(filepath.Join(files, "*.deb"))
	if err != nil || len(debs) != 1 {
		return errors.Join(err, fmt.Errorf("%d packages were built", len(debs)))
	}
	r.Logf("%s", filepath.Base(debs[0]))
	return os.Rename(debs[0], filepath.Join(files, "sluice.deb"))
}
