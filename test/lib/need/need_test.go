package need

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// fake records how a test ended.
type fake struct {
	testing.TB
	skipped, failed string
}

func (f *fake) Helper()                   {}
func (f *fake) Skip(a ...any)             { f.skipped = fmt.Sprint(a...); runtime.Goexit() }
func (f *fake) Skipf(s string, a ...any)  { f.Skip(fmt.Sprintf(s, a...)) }
func (f *fake) Fatal(a ...any)            { f.failed = fmt.Sprint(a...); runtime.Goexit() }
func (f *fake) Fatalf(s string, a ...any) { f.Fatal(fmt.Sprintf(s, a...)) }

func try(fn func(testing.TB)) *fake {
	f, done := &fake{}, make(chan struct{})
	go func() {
		defer close(done)
		fn(f)
	}()
	<-done
	return f
}

func TestToolThatIsThere(t *testing.T) {
	var path string
	f := try(func(t testing.TB) { path = Tool(t, "sh", "dash") })
	if f.skipped+f.failed != "" || !filepath.IsAbs(path) {
		t.Fatalf("sh was not found: path %q, %+v", path, f)
	}
}

func TestToolThatIsMissingSkipsAndFailsUnderCI(t *testing.T) {
	t.Setenv("CI", "")
	f := try(func(t testing.TB) { Tool(t, "no-such-tool-here", "no-such-package") })
	if !strings.Contains(f.skipped, "no-such-package") || f.failed != "" {
		t.Fatalf("outside CI a missing tool must skip with its package's name: %+v", f)
	}
	t.Setenv("CI", "true")
	f = try(func(t testing.TB) { Tool(t, "no-such-tool-here", "no-such-package") })
	if !strings.Contains(f.failed, "no-such-package") || f.skipped != "" {
		t.Fatalf("under CI=true a missing tool must fail: %+v", f)
	}
}

func TestDeviceProvesItsSkip(t *testing.T) {
	if f := try(func(t testing.TB) { Device(t, "/dev/null") }); f.skipped+f.failed != "" {
		t.Fatalf("/dev/null: %+v", f)
	}
	if f := try(func(t testing.TB) { Device(t, "/dev/no-such-node") }); !strings.Contains(f.skipped, "no such file") {
		t.Fatalf("a missing node must skip and say what stat said: %+v", f)
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := try(func(t testing.TB) { Device(t, plain) }); !strings.Contains(f.skipped, "no device node") {
		t.Fatalf("a plain file is no device: %+v", f)
	}
}

func TestRootAndNotRootExcludeEachOther(t *testing.T) {
	a, b := try(Root), try(NotRoot)
	if (a.skipped == "") == (b.skipped == "") {
		t.Fatalf("exactly one of Root and NotRoot must let the test run: %+v %+v", a, b)
	}
}

func TestCapabilitiesProveTheirSkip(t *testing.T) {
	if f := try(func(t testing.TB) { Capabilities(t) }); f.skipped != "" || f.failed != "" {
		t.Errorf("none wanted: %+v", f)
	}
	const none = 63 // Linux has no such
	if f := try(func(t testing.TB) { Capabilities(t, none) }); !strings.Contains(f.skipped, "capability 63") {
		t.Errorf("one that no process has: %+v", f)
	}
}

func TestMountAndFUSEEndWithAProofOrNothing(t *testing.T) {
	for _, fn := range []func(testing.TB){Mount, FUSE, IPv6} {
		if f := try(fn); f.skipped != "" && !strings.Contains(f.skipped, "needs ") {
			t.Fatalf("a skip without a reason: %+v", f)
		}
	}
}
