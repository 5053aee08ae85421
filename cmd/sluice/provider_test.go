package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// dialling are command lines of everything that goes over a fabric, which the words in %s choose: flags of the command, arguments of the
// URL, or options of a table.
func dialling(t *testing.T) (byFlags, byURL, byTable [][]string) {
	t.Helper()
	for _, k := range []string{"HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "SLUICE_RUNTIME_DIR"} {
		t.Setenv(k, t.TempDir())
	}
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "file"), filepath.Join(dir, "s")
	if err := os.WriteFile(file, make([]byte, 512), 0o600); err != nil {
		t.Fatal(err)
	}
	const volume, files = "iser://127.0.0.1:1/" + testTarget + "/0", "nfs+rdma://127.0.0.1:1/data"
	flagged := func(args ...string) []string { return append(args[:1:1], append([]string{"%flags"}, args[1:]...)...) }
	byFlags = [][]string{
		{"rping", "client", "%flags", "--address", "127.0.0.1:1", "--count", "1"}, {"rping", "server", "%flags", "--address", "127.0.0.1:0"},
		flagged("discover", "iser://127.0.0.1:1"), flagged("inquiry", volume), flagged("read", volume), flagged("write", volume, file),
		flagged("cp", "--quiet", file, volume), flagged("cp", "--quiet", files+"/x", filepath.Join(dir, "to")), flagged("bench", "--runtime", "1ms", volume),
		flagged("gateway", "--listen", "127.0.0.1:99999", files), flagged("attach", "--foreground", "--face", "socket", "--socket", socket, volume),
	}
	byURL = [][]string{
		{"discover", "iser://127.0.0.1:1?%s"}, {"inquiry", volume + "?%s"}, {"read", volume + "?%s"}, {"write", volume + "?%s", file}, {"cp", "--quiet", volume + "?%s", "-"},
		{"bench", "--runtime", "1ms", volume + "?%s"}, {"gateway", "--listen", "127.0.0.1:99999", files + "?%s"}, {"ls", files + "?%s"}, {"cat", files + "?%s"}, {"tree", files + "?%s"},
		{"mkdir", files + "/d?%s"}, {"rm", files + "/d?%s"}, {"cp", "--quiet", file, files + "/x?%s"}, {"attach", "--foreground", "--face", "socket", "--socket", socket, volume + "?%s"},
	}
	table := filepath.Join(dir, "sluicetab")
	byTable = [][]string{{"map", "--foreground", "--table", table, "v"}}
	return byFlags, byURL, byTable
}

func table(t *testing.T, path, options string) {
	t.Helper()
	line := fmt.Sprintf("v iser://127.0.0.1:1/%s/0 - as=socket,%s\n", testTarget, options)
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
}

// filled puts words in: as flags, as arguments of a URL, as options of a table.
func filled(args []string, words ...string) []string {
	var flags []string
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		flags = append(flags, "--"+k, v)
	}
	var out []string
	for _, a := range args {
		if a == "%flags" {
			out = append(out, flags...)
		} else {
			out = append(out, strings.ReplaceAll(a, "%s", strings.Join(words, "&")))
		}
	}
	return out
}

// What --provider and --exposure, the URL, a table say is what the connection is made with, in every command that makes one.
func TestEveryCommandDialsThroughTheProviderThatIsNamed(t *testing.T) {
	var mu sync.Mutex
	var asked []fabric.Options
	t.Cleanup(fabric.Replace(fabric.Verbs, func(o fabric.Options) (transport.Device, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, o)
		return nil, errors.New("the adapters were asked for")
	}))
	byFlags, byURL, byTable := dialling(t)
	try := func(args []string, exposure string) {
		t.Helper()
		asked = nil
		_, _, err := sluice(t, nil, args...)
		mu.Lock()
		defer mu.Unlock()
		if err == nil || !strings.Contains(err.Error(), "the adapters were asked for") || len(asked) == 0 || asked[0].Exposure != exposure {
			t.Errorf("sluice %s: asked for %+v: %v", strings.Join(args, " "), asked, err)
		}
	}
	for _, args := range slices.Concat(byFlags, byURL) {
		try(filled(args, "provider=verbs"), byDefault(args))
		try(filled(args, "provider=verbs", "exposure=whole-slab"), "whole-slab")
	}
	for _, args := range byTable {
		table(t, args[3], "provider=verbs,exposure=whole-slab")
		try(args, "whole-slab")
	}
}

// What --ack-timeout, a table or a line of fstab says is what adapters are opened with; a URL has no word for it, and it means nothing
// to software iWARP.
func TestEveryCommandTimesAcknowledgementsAsItIsTold(t *testing.T) {
	var mu sync.Mutex
	var asked []fabric.Options
	t.Cleanup(fabric.Replace(fabric.Verbs, func(o fabric.Options) (transport.Device, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, o)
		return nil, errors.New("the adapters were asked for")
	}))
	byFlags, _, byTable := dialling(t)
	try := func(want time.Duration, args []string) {
		t.Helper()
		mu.Lock()
		asked = nil
		mu.Unlock()
		_, _, err := sluice(t, nil, args...)
		mu.Lock()
		defer mu.Unlock()
		if err == nil || len(asked) == 0 || asked[0].AckTimeout != want {
			t.Errorf("sluice %s: asked for %+v: %v", strings.Join(args, " "), asked, err)
		}
	}
	wrong := func(code int, args []string) {
		t.Helper()
		_, _, err := sluice(t, nil, args...)
		var e ui.ExitError
		if !errors.As(err, &e) || e.Code != code || !strings.Contains(err.Error(), "ack") || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("sluice %s: %v", strings.Join(args, " "), err)
		}
	}
	for _, args := range byFlags {
		try(0, filled(args, "provider=verbs"))
		try(60*time.Millisecond, filled(args, "provider=verbs", "ack-timeout=60ms"))
		wrong(ui.CodeUsage, filled(args, "provider=verbs", "ack-timeout=-1s"))
		wrong(ui.CodeUsage, filled(args, "provider=verbs", "ack-timeout=3h"))
	}
	wrong(ui.CodeUsage, []string{"rping", "client", "--ack-timeout", "60ms", "--address", "127.0.0.1:1"})
	for _, args := range byTable {
		table(t, args[3], "provider=verbs,ack_timeout=60ms")
		try(60*time.Millisecond, args)
		for _, bad := range []string{"3h", "0s", "60"} {
			table(t, args[3], "provider=verbs,ack_timeout="+bad)
			wrong(ui.CodeRefused, args)
		}
	}
}

// byDefault is the exposure of a line that names none: the flag's default where the command has one.
func byDefault(args []string) string {
	c, _, err := root().Find(filled(args))
	if err == nil && c.Flags().Lookup("exposure") != nil {
		return "windows"
	}
	return ""
}

// A word that means nothing is wrong use, told with the words that there are, in every command and wherever it stands.
func TestAProviderThatDoesNotExistIsRefusedByEveryCommand(t *testing.T) {
	byFlags, byURL, byTable := dialling(t)
	try := func(args []string, word string, code int) {
		t.Helper()
		_, _, err := sluice(t, nil, args...)
		var e ui.ExitError
		if !errors.As(err, &e) || e.Code != code || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), map[string]string{"infinifab": "verbs", "some": "whole-slab"}[word]) {
			t.Errorf("sluice %s: %v", strings.Join(args, " "), err)
		}
	}
	for _, args := range slices.Concat(byFlags, byURL) {
		try(filled(args, "provider=infinifab"), "infinifab", ui.CodeUsage)
		try(filled(args, "provider=verbs", "exposure=some"), "some", ui.CodeUsage)
	}
	for _, args := range byTable {
		table(t, args[3], "provider=infinifab")
		try(args, "infinifab", ui.CodeRefused)
		table(t, args[3], "provider=verbs,exposure=some")
		try(args, "some", ui.CodeRefused)
	}
}

// Where the peer may reach all memory of the process, one line says so; where it may not, nothing does.
func TestWholeSlabsAreAlwaysToldOf(t *testing.T) {
	net := transporttest.NewNetwork()
	t.Cleanup(fabric.Replace(fabric.Verbs, func(o fabric.Options) (transport.Device, error) {
		return net.Adapter(transporttest.Adapter{Provider: fabric.Verbs, WholeSlab: o.Exposure == fabric.WholeSlab}), nil
	}))
	byFlags, byURL, _ := dialling(t)
	for _, args := range slices.Concat(byFlags, byURL) {
		if args[0] == "rping" && args[1] == "server" {
			args = append(args, "--timeout", "1ms")
		}
		if args[0] == "attach" {
			args = append(args, "--name", "told") // its helper's log has the line: this is the helper
		}
		for words, want := range map[string]int{"provider=verbs": 0, "provider=verbs exposure=whole-slab": 1} {
			_, errs, _ := sluice(t, nil, filled(args, strings.Fields(words)...)...) // nothing listens
			if n := strings.Count(errs, "may read and write all registered memory"); n != want {
				t.Errorf("sluice %v, %s: said %d times:\n%s", args, words, n, errs)
			}
		}
	}
}

// The words are offered to a shell wherever a command takes them.
func TestTheWordsOfFabricsAreCompleted(t *testing.T) {
	seen := 0
	every(root(), func(c *cobra.Command) {
		for flag, want := range map[string][]string{"provider": fabric.Providers, "exposure": fabric.Exposures, "crc": fabric.CRCs} {
			if c.Flags().Lookup(flag) == nil {
				continue
			}
			seen++
			out := must(t, nil, append(append([]string{"__complete"}, strings.Fields(c.CommandPath())[1:]...), "--"+flag, "")...)
			for _, w := range want {
				if !slices.Contains(strings.Split(out, "\n"), w) {
					t.Errorf("%s --%s: %q is not offered:\n%s", c.CommandPath(), flag, w, out)
				}
			}
		}
	})
	if seen < 20 {
		t.Errorf("only %d flags were found", seen)
	}
}
