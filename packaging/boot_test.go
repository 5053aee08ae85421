//go:build !race

// Other programs do the work here, in which the race detector sees nothing.

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// The order at boot: network, attachments, mounts of fstab that are on the network; and backwards when the machine goes down. systemd's
// own generator says what it makes of a line of fstab.
func TestTheOrderAtBoot(t *testing.T) {
	const generator = "/usr/lib/systemd/system-generators/systemd-fstab-generator"
	need.File(t, generator, "systemd")
	dir := t.TempDir()
	tab := filepath.Join(dir, "fstab")
	if err := os.WriteFile(tab, []byte("iser://192.0.2.1/iqn.2026-11.org.example:data/0 /mnt/data sluice _netdev,fstype=ext4 0 0\n/dev/disk/by-id/x /mnt/other ext4 _netdev 0 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(generator, dir, dir, dir)
	c.Env = append(os.Environ(), "SYSTEMD_FSTAB="+tab)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var mounts []string
	for _, m := range []string{"mnt-data.mount", "mnt-other.mount"} {
		b, err := os.ReadFile(filepath.Join(dir, m))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "remote-fs.target.requires", m)); err != nil {
			t.Errorf("remote-fs.target does not want %s: %v", m, err)
		}
		if !slices.Contains(words(string(b), "Before"), "remote-fs.target") {
			t.Errorf("%s is not before remote-fs.target: %s", m, b)
		}
		mounts = append(mounts, string(b))
	}
	if !strings.Contains(mounts[0], "Type=sluice\n") || !strings.Contains(mounts[0], "_netdev") {
		t.Errorf("the mount of a volume is %s", mounts[0])
	}
	// A mount that is _netdev comes after remote-fs-pre.target and network-online.target (systemd.mount(5)): what attaches is before that.
	for _, u := range []string{"sluice-map.service", "sluice-attach@.service"} {
		b := string(must(os.ReadFile("../configs/systemd/" + u))(t))
		for key, wants := range map[string][]string{
			"After":     {"network-online.target", "systemd-modules-load.service", "local-fs.target"},
			"Before":    {"remote-fs-pre.target", "shutdown.target"},
			"Wants":     {"network-online.target", "remote-fs-pre.target"},
			"Conflicts": {"shutdown.target"},
			"WantedBy":  {"remote-fs.target"},
		} {
			got := words(b, key)
			for _, w := range wants {
				if !slices.Contains(got, w) {
					t.Errorf("%s: %s= has no %s but %v", u, key, w, got)
				}
			}
		}
		// What is listed is all that orders it.
		if !slices.Contains(words(b, "DefaultDependencies"), "no") {
			t.Errorf("%s has default dependencies", u)
		}
	}
	// A target that comes later than its host does not end the boot: an attachment that fails is tried again.
	b := string(must(os.ReadFile("../configs/systemd/sluice-attach@.service"))(t))
	if !slices.Contains(words(b, "Restart"), "on-failure") || !slices.Contains(words(b, "StartLimitIntervalSec"), "0") {
		t.Error("sluice-attach@.service is not tried until its target is there")
	}
	// The targets serve what local file systems have, and initiators of this machine come after them only by waiting.
	for _, u := range []string{"sluiced.service", "sluiced-files.service"} {
		if got := words(string(must(os.ReadFile("../configs/systemd/"+u))(t)), "After"); !slices.Contains(got, "local-fs.target") || !slices.Contains(got, "network-online.target") {
			t.Errorf("%s is after %v", u, got)
		}
	}
}

// words are all values of a key in a unit's file.
func words(unit, key string) []string {
	var l []string
	for line := range strings.Lines(unit) {
		if v, ok := strings.CutPrefix(line, key+"="); ok {
			l = append(l, strings.Fields(v)...)
		}
	}
	return l
}
