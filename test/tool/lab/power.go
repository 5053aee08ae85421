package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-storage/sluice/test/lib/faultfs"
	"github.com/sluice-storage/sluice/test/lib/proc"
)

var powerScenarios = []Scenario{
	{
		Name: "power-ext4", Class: long, Turn: true, Limit: 40 * time.Minute, Host: []string{"sluiced"}, Script: "power.sh",
		About:   "the target's machine loses its power below ext4 over ib_iser: what was synced is there, what was not is an error; LAB_CUTS times",
		Prepare: preparePower("iser", "ext4", "128MiB"), OnHost: hostPower,
	},
	{
		Name: "power-xfs", Class: long, Turn: true, Limit: 40 * time.Minute, Host: []string{"sluiced"}, Script: "power.sh",
		About:   "the same below xfs over iscsi_tcp",
		Prepare: preparePower("tcp", "xfs", "320MiB"), OnHost: hostPower,
	},
}

// preparePower puts the volume on a file system that forgets what no fsync has made durable.
func preparePower(transport, kind, size string) func(*Run) error {
	return func(r *Run) error {
		r.Args = []string{transport, kind}
		r.Env = append(r.Env, "CUTS="+getenv("LAB_CUTS", "3"), "REPLACEMENT_S=2")
		dir := filepath.Join(r.Tmp, "medium")
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		f, end, err := faultfs.New(dir)
		if err != nil {
			return err
		}
		r.Defer(func() {
			if err := end(); err != nil {
				r.Logf("%v", err)
			}
		})
		f.Tear(4096) // the volume's physical block, below which guests expect no tearing
		r.medium = f
		// Another process makes the file: this one serves the file system.
		if out, err := r.tool("truncate", "-s", size[:len(size)-2], filepath.Join(dir, "disk")); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if err := os.Symlink(filepath.Join(dir, "disk"), r.image("disk")); err != nil {
			return err
		}
		_, err = r.serve(unit{"disk", "file", size})
		return err
	}
}

// hostPower: off, on, lie.
func hostPower(r *Run, name string, _ []string) (string, error) {
	switch name {
	case "off":
		seed := rand.Uint64()
		r.medium.CutAfter(rand.IntN(128), seed) // calls, and blocks that become durable: seconds of the work, on a busy machine too
		for end := time.Now().Add(100 * time.Second); !r.medium.IsOff(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return "", errors.New("nothing is written for 100 s")
			}
		}
		if rand.IntN(2) == 0 { // the medium goes first: commands end with errors
			time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
		}
		r.target.proc.kill()
		r.medium.Restore()
		return fmt.Sprintf("off, seed %d\n", seed), proc.NextBoot(filepath.Join(r.Tmp, "state"))
	case "on":
		return "on\n", r.target.start()
	case "lie":
		r.medium.Lie(func(c faultfs.Call) bool { return c.Name == "fsync" })
		return "from now on a fsync does nothing\n", nil
	}
	return "", fmt.Errorf("power has nothing named %q", name)
}
