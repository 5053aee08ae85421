package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTarget = "iqn.2026-11.io.sluice:cli"

// sparseFile makes an empty file of size bytes: the daemon makes no volume's file by itself.
func sparseFile(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// served runs a daemon with one file volume of 8 MiB and one of 4096-byte blocks, on IPv4 and IPv6 loopback.
func served(t *testing.T) (addr4, addr6, stateDir string) {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "sluiced.yaml")
	text := fmt.Sprintf(`
state_dir: %s
timeouts: {drain: 1s}
portals: [{address: "127.0.0.1:0"}, {address: "[::1]:0"}]
volumes: [{name: a, size: 8MiB}, {name: b, size: 8MiB, block: 4096}]
targets: [{name: %q, luns: [{lun: 0, volume: a}, {lun: 1, volume: b}]}]
`, dir, testTarget)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.img", "b.img"} {
		sparseFile(t, filepath.Join(dir, name), 8<<20)
	}
	d := stand.NewDaemon(t, conf, zap.InfoLevel)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // polls a state that has no event
		if c, err := net.Dial("unix", filepath.Join(dir, "admin.sock")); err == nil { // between bind and listen the name is there and refuses
			c.Close()
			if d.Ready() == nil {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the daemon does not become ready")
		}
	}
	for _, p := range d.Portals() {
		if strings.HasPrefix(p.Address, "[") {
			addr6 = p.Address
		} else {
			addr4 = p.Address
		}
	}
	return addr4, addr6, dir
}

// sluice runs one command line.
func sluice(t *testing.T, stdin []byte, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return sluiceUntil(t.Context(), stdin, args...)
}

// sluiceUntil runs one command line, which is interrupted when the context ends.
func sluiceUntil(ctx context.Context, stdin []byte, args ...string) (stdout, stderr string, err error) {
	c := root()
	var out, errs bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SetIn(bytes.NewReader(stdin))
	c.SetArgs(args)
	err = c.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

func must(t *testing.T, stdin []byte, args ...string) string {
	t.Helper()
	out, errs, err := sluice(t, stdin, args...)
	if err != nil {
		t.Fatalf("sluice %s: %v\n%s", strings.Join(args, " "), err, errs)
	}
	return out
}

func noise(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhatIsCopiedComesBack(t *testing.T) {
	addr4, addr6, dir := served(t)
	for _, base := range []string{"iser://" + addr4, "iscsi://" + addr4, "iser://" + addr6, "iscsi://" + addr6} {
		for lun, n := range []int{3<<20 + 777, 5<<20 + 13} { // neither is a whole number of blocks
			url := fmt.Sprintf("%s/%s/%d", base, testTarget, lun)
			want := noise(t, n)
			file := filepath.Join(dir, "in")
			if err := os.WriteFile(file, want, 0o600); err != nil {
				t.Fatal(err)
			}
			must(t, nil, "cp", file, url)
			back := filepath.Join(dir, "out")
			must(t, nil, "read", url, back, "--length", fmt.Sprint(n))
			got, err := os.ReadFile(back)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes came back, and they differ from the %d written", url, len(got), len(want))
			}
		}
	}
}

func TestStandardInputAndOutput(t *testing.T) {
	addr, _, _ := served(t)
	url := "iser://" + addr + "/" + testTarget + "/0"
	want := noise(t, 70001)
	must(t, want, "write", url, "--offset", "1000")
	got := must(t, nil, "read", url, "--offset", "1000", "--length", "70001")
	if got != string(want) {
		t.Errorf("%d bytes came back and differ", len(got))
	}
	if zero := must(t, nil, "read", url, "--length", "1000"); strings.Trim(zero, "\x00") != "" || len(zero) != 1000 {
		t.Error("what lies before the written part has changed")
	}
}

func TestVolumeToVolume(t *testing.T) {
	addr, _, _ := served(t)
	a, b := "iser://"+addr+"/"+testTarget+"/0", "iscsi://"+addr+"/"+testTarget+"/1"
	want := noise(t, 8<<20)
	must(t, want, "write", a)
	must(t, nil, "cp", a, b, "--quiet")
	if got := must(t, nil, "cp", b, "-"); got != string(want) {
		t.Error("the second volume differs from the first")
	}
}

func TestListingsAsJSON(t *testing.T) {
	addr, _, dir := served(t)
	socket := filepath.Join(dir, "admin.sock")
	for _, args := range [][]string{
		{"discover", "iser://" + addr},
		{"discover", "iscsi://" + addr},
		{"inquiry", "iser://" + addr + "/" + testTarget + "/1"},
		{"status", "--socket", socket},
		{"volume", "list", "--socket", socket},
		{"target", "list", "--socket", socket},
		{"session", "list", "--socket", socket},
		{"portals", "--socket", socket},
		{"exports", "--socket", socket},
		{"config", "show"},
		{"config", "schema"},
	} {
		var v any
		out := must(t, nil, append(args, "--output", "json")...)
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Errorf("sluice %s prints %q: %v", strings.Join(args, " "), out, err)
		}
	}
	if out := must(t, nil, "discover", "iser://"+addr); !strings.Contains(out, testTarget) || !strings.Contains(out, "PORTAL") {
		t.Errorf("discover prints\n%s", out)
	}
	if out := must(t, nil, "inquiry", "iser://"+addr+"/"+testTarget+"/1"); !strings.Contains(out, "logical block      4096") {
		t.Errorf("inquiry prints\n%s", out)
	}
}

func TestExitCodesAndSentences(t *testing.T) {
	addr, _, dir := served(t)
	url := "iser://" + addr + "/" + testTarget + "/0"
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 9<<20); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"discover", "http://x"}, ui.CodeUsage, "unknown scheme"},
		{[]string{"cp", "a", "b"}, ui.CodeUsage, "neither a nor b"},
		{[]string{"read", url, "--offset", "ten"}, ui.CodeUsage, "no size"},
		{[]string{"inquiry", "iser://127.0.0.1:1/" + testTarget + "/0"}, ui.CodeNoPeer, "does a target listen there"},
		{[]string{"inquiry", "iscsi://" + addr + "/iqn.2026-11.io.sluice:nope/0"}, ui.CodeRefused, "no target of that name"},
		{[]string{"cp", big, url}, ui.CodeRefused, "nothing was written"},
		{[]string{"status", "--socket", filepath.Join(dir, "none.sock")}, ui.CodeNoPeer, "is sluiced running"},
		{[]string{"volume", "delete", "a", "--socket", filepath.Join(dir, "admin.sock")}, ui.CodeRefused, "is defined in"},
		{[]string{"discover", "iser://" + addr, "--output", "xml"}, ui.CodeUsage, "neither table nor json"},
		{[]string{"config", "check", filepath.Join(dir, "big")}, ui.CodeRefused, "configuration"},
	} {
		_, _, err := sluice(t, nil, tc.args...)
		var code ui.ExitError
		if !errors.As(err, &code) || code.Code != tc.code {
			t.Errorf("sluice %s: %v, want exit code %d", strings.Join(tc.args, " "), err, tc.code)
			continue
		}
		ok := false
		for _, w := range strings.Split(tc.want, "|") {
			ok = ok || strings.Contains(strings.ToLower(err.Error()), strings.ToLower(w))
		}
		if !ok || strings.Contains(err.Error(), "goroutine ") {
			t.Errorf("sluice %s says %q, want %q in it", strings.Join(tc.args, " "), err, tc.want)
		}
	}
}

// A target that ends is told to the user as what it is, and an administrator's change is seen by the next login.
func TestAdministration(t *testing.T) {
	addr, _, dir := served(t)
	socket := "--socket=" + filepath.Join(dir, "admin.sock")
	must(t, nil, "volume", "create", "fresh", "1MiB", socket)
	must(t, nil, "target", "map", testTarget, "9", "fresh", socket)
	url := "iser://" + addr + "/" + testTarget + "/9"
	if out := must(t, nil, "inquiry", url); !strings.Contains(out, "1 MiB") {
		t.Errorf("inquiry of the new volume prints\n%s", out)
	}
	must(t, nil, "volume", "resize", "fresh", "2MiB", socket)
	if out := must(t, nil, "inquiry", url); !strings.Contains(out, "2 MiB") {
		t.Errorf("after the resize inquiry prints\n%s", out)
	}
	must(t, nil, "target", "unmap", testTarget, "9", "--yes", socket)
	if _, _, err := sluice(t, nil, "inquiry", url); err == nil {
		t.Error("the unmapped LUN still answers")
	}
	must(t, nil, "volume", "delete", "fresh", "--data", "--yes", socket)
}

// The report has fio's shape, and what bench wrote is what it reads back.
func TestBenchReportsAndVerifies(t *testing.T) {
	addr, _, _ := served(t)
	for _, scheme := range []string{"iser", "iscsi"} {
		url := scheme + "://" + addr + "/" + testTarget + "/0"
		out := must(t, nil, "bench", url, "--rw", "randrw", "--bs", "4k", "--iodepth", "8", "--numjobs", "2", "--runtime", "300ms", "--verify", "--destroy", "-o", "json")
		var r struct {
			Jobs []struct {
				Read, Write struct {
					TotalIOs int64 `json:"total_ios"`
					CLat     struct {
						N          int64
						Percentile map[string]int64
					} `json:"clat_ns"`
				}
			}
			Verified int64 `json:"verified_blocks"`
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		j := r.Jobs[0]
		if j.Read.TotalIOs == 0 || j.Write.TotalIOs == 0 || j.Read.CLat.N != j.Read.TotalIOs || j.Write.CLat.Percentile["99.000000"] == 0 || r.Verified == 0 {
			t.Errorf("%s: report %s", scheme, out)
		}
	}
	if _, _, err := sluice(t, nil, "bench", "iser://"+addr+"/"+testTarget+"/0", "--rw", "randwrite"); err == nil || !strings.Contains(err.Error(), "--destroy") {
		t.Errorf("writing without leave: %v", err)
	}
}

// Every command and flag that a person can reach explains itself.
func TestEveryCommandHasHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no short help", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			if sub.Name() != "completion" && sub.Name() != "help" {
				walk(sub)
			}
		}
	}
	walk(root())
}

func TestManualPagesAreWritten(t *testing.T) {
	dir := t.TempDir()
	must(t, nil, "man", dir)
	pages, err := filepath.Glob(filepath.Join(dir, "sluice-*.1"))
	if err != nil || len(pages) < 10 {
		t.Errorf("%d pages, %v", len(pages), err)
	}
}
