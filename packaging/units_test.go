package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

var units = []string{"sluiced.service", "sluiced-files.service", "sluiced.socket", "sluice-map.service", "sluice-attach@.service"}

// systemd itself finds nothing to say about the units: no unknown key, no missing program, no unit that is not there.
func TestUnitsVerify(t *testing.T) {
	analyze := need.Tool(t, "systemd-analyze", "systemd")
	root := t.TempDir()
	for _, dir := range []string{"usr/bin", "bin", "etc/systemd/system", "usr/lib/systemd"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, prog := range []string{"usr/bin/sluiced", "usr/bin/sluice", "bin/kill"} {
		if err := os.WriteFile(filepath.Join(root, prog), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The targets that units name are systemd's own.
	if err := os.CopyFS(filepath.Join(root, "usr/lib/systemd/system"), os.DirFS("/lib/systemd/system")); err != nil {
		t.Fatal(err)
	}
	for _, u := range units {
		b, err := os.ReadFile(filepath.Join("../configs/systemd", u))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "etc/systemd/system", u), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	verify := func() (string, error) {
		out, err := output(root, nil, "sh", append([]string{"-c", `exec "$0" "$@" 2>&1`, analyze, "verify", "--man=no", "--root=" + root}, units...)...)
		return string(out), err
	}
	if out, err := verify(); err != nil || out != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// It can fail.
	b, err := os.ReadFile("../configs/systemd/sluiced.service")
	if err != nil {
		t.Fatal(err)
	}
	wrong := strings.Replace(string(b), "ProtectHome=", "ProtectHoem=", 1)
	if err := os.WriteFile(filepath.Join(root, "etc/systemd/system/sluiced.service"), []byte(wrong), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := verify(); err == nil && !strings.Contains(out, "ProtectHoem") {
		t.Errorf("a wrong key is not noticed: %q", out)
	}
}

// The exposure that systemd computes for a unit does not grow beyond what configs/systemd/exposure.txt records.
func TestUnitsStayAsTight(t *testing.T) {
	analyze := need.Tool(t, "systemd-analyze", "systemd")
	b, err := os.ReadFile("../configs/systemd/exposure.txt")
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]float64{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if recorded[f[0]], err = strconv.ParseFloat(f[1], 64); err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range []string{"sluiced.service", "sluiced-files.service"} {
		want, ok := recorded[u]
		if !ok {
			t.Errorf("no score of %s is recorded", u)
			continue
		}
		unit, err := filepath.Abs(filepath.Join("../configs/systemd", u))
		if err != nil {
			t.Fatal(err)
		}
		out, err := output(".", nil, analyze, "security", "--offline=true", "--no-pager", fmt.Sprintf("--threshold=%.0f", want*10), unit)
		if err != nil {
			t.Errorf("%s is more exposed than the recorded %.1f:\n%s%v", u, want, out, err)
			continue
		}
		_, score, ok := strings.Cut(string(out), "exposure level for "+u+": ")
		if !ok {
			t.Fatalf("no score in %s", out)
		}
		if got, err := strconv.ParseFloat(strings.Fields(score)[0], 64); err != nil || got < want {
			t.Errorf("%s scores %s now: record it instead of %.1f (%v)", u, strings.Fields(score)[0], want, err)
		}
	}
}

// A unit that hides /proc/sys from the daemon tells it which boot it is: without, each start of it would be a loss of power to hosts.
func TestUnitsThatHideTheBootTellIt(t *testing.T) {
	for _, u := range units {
		b, err := os.ReadFile(filepath.Join("../configs/systemd", u))
		if err != nil {
			t.Fatal(err)
		}
		hides, serves := strings.Contains(string(b), "\nProcSubset=pid\n"), strings.Contains(string(b), "\nExecStart=/usr/bin/sluiced ")
		if hides && serves && !strings.Contains(string(b), "\nEnvironment=SLUICE_BOOT_ID=%b\n") {
			t.Errorf("%s has ProcSubset=pid, and no Environment=SLUICE_BOOT_ID=%%b", u)
		}
	}
}

// The block service holds no capability, and the file service exactly what acting as its callers takes.
func TestUnitsHoldWhatTheyNeed(t *testing.T) {
	for u, want := range map[string]struct{ user, state, held string }{
		"sluiced.service": {"sluice", "StateDirectory=sluice\n", ""},
		// To act as the calling user (SETUID, SETGID), to open by handle (DAC_READ_SEARCH), what a squashed-to-nobody root may
		// still do where the export says no_root_squash (DAC_OVERRIDE, CHOWN, FOWNER, FSETID, MKNOD), ports 111 and 2049.
		// Only a switch away from uid 0 takes the rights over files from a thread, so it is root by number.
		"sluiced-files.service": {"root", "ReadWritePaths=/var/lib/sluice-files\n", "CAP_SETUID CAP_SETGID CAP_DAC_READ_SEARCH CAP_DAC_OVERRIDE CAP_CHOWN CAP_FOWNER CAP_FSETID CAP_MKNOD CAP_NET_BIND_SERVICE"},
	} {
		b, err := os.ReadFile(filepath.Join("../configs/systemd", u))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "\nCapabilityBoundingSet="+want.held+"\n") {
			t.Errorf("%s is not bounded by %q", u, want.held)
		}
		if strings.Contains(string(b), "\nAmbientCapabilities=CAP") {
			t.Errorf("%s has ambient capabilities, which a root does not need and another user must not have", u)
		}
		for _, line := range []string{"Type=notify", "User=" + want.user + "\n", "Group=sluice\n", "ProtectSystem=strict", "NoNewPrivileges=yes", "SystemCallFilter=@system-service", "LimitMEMLOCK=", want.state,
			// RDMA adapters: the kernel's nodes, and the netlink socket by which rdma-core finds them.
			"DeviceAllow=char-infiniband_verbs rw\n", "DeviceAllow=/dev/infiniband/rdma_cm rw\n", "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK\n", "WatchdogSec="} {
			if !strings.Contains(string(b), "\n"+line) {
				t.Errorf("%s has no %s", u, line)
			}
		}
	}
}

// The socket unit's addresses are portals of the file that the package installs: otherwise nobody takes them.
func TestSocketIsAPortal(t *testing.T) {
	sock, err := os.ReadFile("../configs/systemd/sluiced.socket")
	if err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile("../configs/sluiced.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(sock)) {
		if addr, ok := strings.CutPrefix(strings.TrimSpace(line), "ListenStream="); ok {
			n++
			if !strings.Contains(string(conf), "- address: "+addr+"\n") && !strings.Contains(string(conf), "- address: \""+addr+"\"\n") {
				t.Errorf("%s is no portal of configs/sluiced.yaml", addr)
			}
		}
	}
	if n == 0 {
		t.Error("the socket unit has no address")
	}
}
