package admincmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/test/lib/need"
)

var rewrite = flag.Bool("rewrite", false, "write the golden screens again")

const runEnv = "SLUICE_TEST_ARGS"

// TestMain runs the commands instead of the tests in the process that tmux starts.
func TestMain(m *testing.M) {
	if args := os.Getenv(runEnv); args != "" {
		if err := command(strings.Fields(args)...).Execute(); err != nil {
			fmt.Fprintln(os.Stderr, "sluice:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func command(args ...string) *cobra.Command {
	c := &cobra.Command{Use: "sluice", SilenceErrors: true, SilenceUsage: true}
	ui.AddOutputFlag(c)
	c.AddCommand(Commands()...)
	c.SetArgs(args)
	return c
}

// steady is a daemon whose counters grow by the same amount with each reading, a second apart: the rates are the same in
// every interval, however slow the machine.
type steady struct {
	admin.Backend
	n atomic.Int64
}

func (b *steady) Stats() admin.Stats {
	n := b.n.Add(1)
	began := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	times := func(fast, slow int64) admin.Latency {
		return admin.Latency{Bounds: []int64{100e3, 1e6, 10e6}, Counts: []int64{0, fast * n, slow * n, 0}}
	}
	return admin.Stats{At: began.Add(time.Duration(n) * time.Second), Memory: admin.MemoryStats{Used: 12 << 20, Limit: 256 << 20},
		Volumes: []admin.VolumeStats{
			{Name: "archive", Writes: 8 * n, WrittenBytes: 8 << 20 * n, WriteTimes: times(4, 4), Errors: 3},
			{Name: "data", Reads: 25000 * n, ReadBytes: 25000 * 4096 * n, InProgress: 17, ReadTimes: times(24990, 10)},
		},
		Exports: []admin.ExportStats{{Name: "/srv", ReadBytes: 3 << 20 * n, WrittenBytes: 4096 * n, ReadTimes: times(100, 0), OtherTimes: times(50, 50)}},
		Sessions: []admin.Session{
			{ID: "1", Initiator: "iqn.1993-08.org.debian:01:backup", Target: "iqn.2026-11.io.sluice:t", Transport: "iSCSI", Since: began, Commands: uint64(8 * n), Written: uint64(8 << 20 * n)},
			{ID: "2", Initiator: "iqn.1993-08.org.debian:01:web", Target: "iqn.2026-11.io.sluice:t", Transport: "iSER", Since: began, Commands: uint64(25000 * n), Inflight: 17, Read: uint64(25000 * 4096 * n)},
		}}
}

func serve(t *testing.T, b admin.Backend) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := admin.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := admin.New(b, http.NotFoundHandler(), zap.NewNop(), zap.NewNop())
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := errors.Join(s.Close(ctx), <-done); err != nil {
			t.Error(err)
		}
	})
	return path
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is\n%s\nwant\n%s", name, got, want)
	}
}

// What a person sees in a terminal of 110 by 24, by load and, after a key, by name and paused; then q ends it.
func TestTopInATerminal(t *testing.T) {
	tmux := need.Tool(t, "tmux", "tmux")
	sock, me := serve(t, &steady{}), must(os.Executable())
	server := filepath.Join(t.TempDir(), "tmux")
	run := func(args ...string) (string, error) {
		c := exec.CommandContext(t.Context(), tmux, append([]string{"-S", server, "-f", "/dev/null"}, args...)...)
		c.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "TERM=xterm-256color", "SHELL=/bin/sh")
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := run("new-session", "-d", "-s", "top", "-x", "110", "-y", "24", runEnv+"='top --interval 100ms --socket "+sock+"' "+me); err != nil {
		t.Fatalf("tmux: %v\n%s", err, out)
	}
	t.Cleanup(func() { _, _ = run("kill-server") }) // it is gone when the test was good
	// screen waits until the terminal shows what the golden file has: a frame may be caught half drawn.
	screen := func(name string, marks ...string) {
		t.Helper()
		want, _ := os.ReadFile(filepath.Join("testdata", name))                                 // without it nothing matches
		for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) { // a screen has no event
			out, err := run("capture-pane", "-p", "-t", "top")
			out = strings.TrimRight(out, "\n") + "\n"
			ok := err == nil && (*rewrite || out == string(want))
			for _, m := range marks {
				ok = ok && strings.Contains(out, m)
			}
			if ok && *rewrite {
				golden(t, name, out)
			}
			if ok {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v, the screen is\n%s\nwant\n%s", err, out, want)
			}
		}
	}
	screen("top-load.golden", "by load", "25000", "q quit")
	for _, key := range []string{"s", "s", "p"} {
		if out, err := run("send-keys", "-t", "top", key); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	screen("top-name.golden", "by name, paused", "q quit")
	if out, err := run("send-keys", "-t", "top", "q"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) { // the session ends with its program
		if _, err := run("has-session", "-t", "top"); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("q does not end it")
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// In a pipe --once prints one interval, as text and as JSON, and without it says what to do.
func TestTopInAPipe(t *testing.T) {
	sock := serve(t, &steady{})
	out := func(args ...string) (string, error) {
		var b bytes.Buffer
		c := command(append(args, "--interval", "100ms", "--socket", sock)...)
		c.SetOut(&b)
		err := c.ExecuteContext(t.Context())
		return b.String(), err
	}
	text, err := out("top", "--once")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "top-once.golden", text)
	text, err = out("top", "--once", "--output", "json")
	if err != nil {
		t.Fatal(err)
	}
	var r rates
	if err := json.Unmarshal([]byte(text), &r); err != nil || len(r.Volumes) != 2 || r.Volumes[0].Name != "data" || r.Volumes[0].Reads != 25000 || r.Sessions[0].InProgress != 17 {
		t.Errorf("%v in\n%s", err, text)
	}
}

func TestQuantilesLieInTheirBuckets(t *testing.T) {
	bounds := []int64{10, 100, 1000}
	for _, c := range []struct {
		counts   []int64
		p50, p99 time.Duration
	}{
		{[]int64{0, 0, 0, 0}, 0, 0},
		{[]int64{100, 0, 0, 0}, 5, 9},
		{[]int64{50, 0, 50, 0}, 10, 982},
		{[]int64{0, 0, 0, 10}, 1000, 1000}, // beyond the last bound nothing more is known
	} {
		if q := latency(admin.Latency{}, admin.Latency{Bounds: bounds, Counts: c.counts}); q.P50 != c.p50 || q.P99 != c.p99 {
			t.Errorf("%v: %v and %v, want %v and %v", c.counts, q.P50, q.P99, c.p50, c.p99)
		}
	}
}
