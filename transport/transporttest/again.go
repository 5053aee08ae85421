package transporttest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// twinEnv makes all twins of a process like adapters: "windows" or "slab".
const twinEnv = "TRANSPORTTEST_TWIN"

// likeEnv is what a device is like that was asked for without a word of it.
func likeEnv() *Adapter {
	switch os.Getenv(twinEnv) {
	case "windows":
		return &Adapter{}
	case "slab":
		return &Adapter{WholeSlab: true}
	}
	return nil
}

// failures is what a test binary says, without the tests that pass.
func failures(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		l := strings.TrimSpace(line)
		if !strings.HasPrefix(l, "=== ") && !strings.HasPrefix(l, "--- PASS") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// OverAdapters runs tests of the calling package again, in processes in which every twin is like an adapter: with memory windows,
// and where slab says so without them too. pattern is that of -run, skip that of -skip, for what is about rules that adapters do not keep. What an upper protocol asks of a fabric that adapters do
// not have fails here.
func OverAdapters(t *testing.T, pattern, skip string, slab bool) {
	t.Helper()
	if os.Getenv(twinEnv) != "" {
		return // this is such a process
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	kinds := []string{"windows"}
	if slab {
		kinds = append(kinds, "slab")
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, exe, "-test.run", pattern, "-test.skip", skip, "-test.v")
			cmd.Env = append(os.Environ(), twinEnv+"="+kind)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS") {
				t.Fatalf("%v\n%s", err, failures(string(out)))
			}
		})
	}
}
