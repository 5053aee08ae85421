package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// every calls f for each command that does something.
func every(c *cobra.Command, f func(*cobra.Command)) {
	if c.Runnable() && !ui.IsGroup(c) && c.Name() != "help" && c.Name() != "completion" && !strings.Contains(c.CommandPath(), " completion ") {
		f(c)
	}
	for _, sub := range c.Commands() {
		every(sub, f)
	}
}

// untouched makes every place that a command could reach without being told one a fresh directory, and tells what is there.
func untouched(t *testing.T) (left func() []string) {
	t.Helper()
	dir := t.TempDir()
	for _, k := range []string{"HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "SLUICE_RUNTIME_DIR", "TMPDIR"} {
		t.Setenv(k, dir)
	}
	t.Chdir(dir)
	return func() []string {
		l, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
}

// refusal runs a line that must end with code 2, say where to go on, print nothing and leave nothing.
func refusal(t *testing.T, left func() []string, args ...string) string {
	t.Helper()
	out, _, err := sluice(t, nil, args...)
	var ee ui.ExitError
	if !errors.As(err, &ee) || ee.Code != ui.CodeUsage {
		t.Errorf("sluice %s: %v, want exit code 2", strings.Join(args, " "), err)
		return ""
	}
	if out != "" {
		t.Errorf("sluice %s prints %q", strings.Join(args, " "), out)
	}
	if l := left(); len(l) != 0 {
		t.Errorf("sluice %s left %v", strings.Join(args, " "), l)
	}
	return err.Error()
}

// The answer to too few and too many arguments and to flags that are not there names what is missing and shows one line that
// works; the exit code is 2 and nothing is done.
func TestWrongUseOfEveryCommandIsExplainedAndDoesNothing(t *testing.T) {
	left := untouched(t)
	seen := 0
	every(root(), func(c *cobra.Command) {
		seen++
		path := strings.Fields(c.CommandPath())[1:]
		shown := func(what, msg string) {
			if msg != "" && (!strings.Contains(msg, "example: ") || !strings.Contains(msg[strings.Index(msg, "example: "):], "sluice ")) {
				t.Errorf("sluice %s %s shows no example: %s", strings.Join(path, " "), what, msg)
			}
		}
		shown("with a flag that is not there", refusal(t, left, append(slices.Clone(path), "--no-such-flag")...))
		_, rest, _ := strings.Cut(c.Use, " ")
		must := strings.Fields(rest)
		if i := slices.IndexFunc(must, func(s string) bool { return strings.HasPrefix(s, "[") }); i >= 0 {
			must = must[:i]
		}
		for n := range must {
			given := []string{"one", "two", "three"}[:n]
			msg := refusal(t, left, append(slices.Clone(path), given...)...)
			want, _, _ := strings.Cut(must[n], "[")
			if !strings.Contains(msg, want) || !strings.Contains(msg, "missing") {
				t.Errorf("sluice %s with %d arguments does not name %s: %s", strings.Join(path, " "), n, want, msg)
			}
			shown(fmt.Sprintf("with %d arguments", n), msg)
		}
		if !strings.Contains(c.Use, "...") {
			shown("with too many", refusal(t, left, append(slices.Clone(path), "1", "2", "3", "4", "5")...))
		}
		// The examples are lines that the program takes.
		for line := range strings.Lines(c.Example) {
			words := strings.Fields(line)
			if i := slices.Index(words, "|"); i >= 0 && words[0] != "sluice" {
				words = words[i+1:]
			}
			if len(words) == 0 || words[0] != "sluice" {
				continue
			}
			if i := slices.IndexFunc(words, func(s string) bool { return s == "|" || s == "<" || s == ">" || s == "#" }); i >= 0 {
				words = words[:i]
			}
			f, args, err := root().Find(words[1:])
			if err == nil {
				err = f.ParseFlags(args)
			}
			if err == nil {
				err = f.ValidateArgs(f.Flags().Args())
			}
			if err != nil || !f.Runnable() || ui.IsGroup(f) {
				t.Errorf("the example %q of %s: %v", strings.TrimSpace(line), c.CommandPath(), err)
			}
		}
	})
	if seen < 40 {
		t.Errorf("only %d commands were found", seen)
	}
	for _, args := range [][]string{{"volume"}, {"volume", "shrink"}, {"volum"}, {"target", "mpa"}, {"portals", "zap"}, {"rping", "both"}} {
		refusal(t, left, args...)
	}
	if out := must(t, nil); !strings.Contains(out, "discover") {
		t.Errorf("sluice alone prints %s", out)
	}
}

// --output is looked at before a command does anything.
func TestAWrongOutputIsRefusedFirst(t *testing.T) {
	addr, _, dir := served(t)
	socket := "--socket=" + filepath.Join(dir, "admin.sock")
	file := filepath.Join(dir, "fresh.img")
	must(t, nil, "volume", "create", "fresh", "1MiB", socket)
	url := "iscsi://" + addr + "/" + testTarget + "/0"
	disk := noise(t, 8<<20)
	must(t, disk, "write", url)
	for _, args := range [][]string{
		{"volume", "delete", "fresh", "--data", "--yes", socket}, {"volume", "create", "more", "1MiB", socket}, {"drain", socket},
		{"write", url}, {"target", "unmap", testTarget, "0", socket}, {"bench", url, "--rw", "write", "--destroy", "--runtime", "10ms"},
	} {
		_, _, err := sluice(t, []byte("zap"), append(args, "-o", "xml")...)
		var ee ui.ExitError
		if !errors.As(err, &ee) || ee.Code != ui.CodeUsage || !strings.Contains(err.Error(), "neither table nor json") {
			t.Errorf("sluice %v -o xml: %v", args, err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if out := must(t, nil, "volume", "list", socket); !strings.Contains(out, "fresh") || strings.Contains(out, "more") {
		t.Errorf("the volumes are\n%s", out)
	}
	same(t, "the volume", []byte(must(t, nil, "read", url)), disk)
}

// Values that are wrong are refused with 2, by the command or by the daemon that it asks, and change nothing.
func TestWrongValuesAreRefusedBeforeAnythingIsDone(t *testing.T) {
	addr, _, dir := served(t)
	socket := "--socket=" + filepath.Join(dir, "admin.sock")
	url := "iscsi://" + addr + "/" + testTarget + "/0"
	before := must(t, nil, "target", "list", socket) + must(t, nil, "volume", "list", socket) + must(t, nil, "exports", socket)
	left := untouched(t)
	for _, args := range [][]string{
		{"target", "create", "not-a-name", socket}, {"target", "map", testTarget, "9", "nowhere", socket}, {"volume", "create", "x", "1", socket},
		{"volume", "create", "x", "1MiB", "--block", "500", socket}, {"volume", "create", "a/b", "1MiB", socket}, {"exports", "add", "data", "/srv", socket},
		{"volume", "create", "x", "1MiB", "--path", "relative", socket}, {"volume", "resize", "a", "much", socket},
		{"target", "map", testTarget, "20000", "a", socket}, {"target", "unmap", testTarget, "x", socket}, {"session", "close", "first", socket},
		{"exports", "add", "/data", "/srv", "--any-port", socket}, {"portals", "add", "nonsense", socket}, {"target", "set-group", testTarget, "1", "offline", socket},
		{"read", url, "--length", "-1"}, {"read", url, "--offset", "x"}, {"cp", url, "f", "--crc", "auto"}, {"cp", "-r", url, "f"},
		{"cp", "nfs://127.0.0.1/x", url}, {"cp", "--sparse", "nfs://127.0.0.1/x", "f"}, {"rm", "nfs://127.0.0.1/x", "f"}, {"bench", url, "--rw", "sideways"},
		{"attach", url, "--face", "nose"}, {"attach", "file"}, {"discover", "x"}, {"inquiry", "iscsi://" + addr}, {"top", "--interval", "-1s", socket},
	} {
		if msg := refusal(t, left, args...); msg != "" && !strings.Contains(msg, "sluice ") {
			t.Errorf("sluice %v shows no line that works: %s", args, msg)
		}
	}
	if after := must(t, nil, "target", "list", socket) + must(t, nil, "volume", "list", socket) + must(t, nil, "exports", socket); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// --crc takes the daemon's words in every command that has it.
func TestTheChecksumFlagMeansOneThingInAllCommands(t *testing.T) {
	seen := 0
	var usage string
	every(root(), func(c *cobra.Command) {
		f := c.Flags().Lookup("crc")
		if f == nil {
			return
		}
		seen++
		if usage == "" {
			usage = f.Usage + f.DefValue
		}
		if f.Usage+f.DefValue != usage {
			t.Errorf("%s: --crc %s (%s)", c.CommandPath(), f.Usage, f.DefValue)
		}
	})
	if seen < 6 {
		t.Errorf("%d commands have --crc", seen)
	}
	// Over loopback "on" does without a checksum and is answered by a peer that has none; "always" is not.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, word := range []string{"on", "always", "peer", "off"} {
		got := make(chan byte, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			b := make([]byte, 20) // MPA Request: 16 bytes of key, then the flags (RFC 5044 section 7.1.1)
			if _, err := c.Read(b); err == nil {
				got <- b[16]
			}
		}()
		var seen [2]byte
		for k, args := range [][]string{{"inquiry", "iser://" + l.Addr().String() + "/" + testTarget + "/0"}, {"rping", "client", "--address", l.Addr().String(), "--count", "1"}} {
			if k == 1 {
				go func() {
					c, err := l.Accept()
					if err != nil {
						return
					}
					defer c.Close()
					b := make([]byte, 20)
					if _, err := c.Read(b); err == nil {
						got <- b[16]
					}
				}()
			}
			if _, _, err := sluice(t, nil, append(args, "--crc", word)...); err == nil {
				t.Errorf("%v succeeds with a peer that hangs up", args)
			}
			seen[k] = <-got & 0x40
		}
		if seen[0] != seen[1] || (seen[0] != 0) != (word == "always") {
			t.Errorf("--crc %s: inquiry asks for %#x, rping for %#x", word, seen[0], seen[1])
		}
	}
}

func TestInquiryPrintsItsDocumentedNames(t *testing.T) {
	addr, _, _ := served(t)
	var v map[string]any
	if err := json.Unmarshal([]byte(must(t, nil, "inquiry", "iser://"+addr+"/"+testTarget+"/1", "-o", "json")), &v); err != nil {
		t.Fatal(err)
	}
	c, _, err := root().Find([]string{"inquiry"})
	if err != nil {
		t.Fatal(err)
	}
	for name := range v {
		if !strings.Contains(c.Long, name) {
			t.Errorf("the help does not name %s", name)
		}
	}
	if v["size"] != 8.0*(1<<20) || v["logical_block"] != 4096.0 || v["write_protected"] != false || v["product"] == "" || len(v) < 20 {
		t.Errorf("%v", v)
	}
}
