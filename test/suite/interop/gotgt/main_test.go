package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/port"
)

// asTarget makes the test binary be the command: gotgt's globals and its habit to exit stay out of the test process.
const asTarget = "SLUICE_TEST_GOTGT"

func TestMain(m *testing.M) {
	if os.Getenv(asTarget) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const patience = time.Minute

type target struct {
	cmd    *exec.Cmd
	port   int
	exited chan struct{}
	errors lockedBuffer // what it wrote to its standard error
}

// lockedBuffer is a buffer that a process writes to while it is read.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// frame is a line of a stack that names a function.
var frame = regexp.MustCompile(`^[a-z][\w./-]*[\w*().\[\]]*\(`)

// itsOwnDeath reports that gotgt's own code ended its process: it shares maps between connections without a lock, and the
// runtime ends it now and then, before it has asked the volume for anything. A panic in ours is never excused.
func itsOwnDeath(stderr string) bool {
	_, stack, ok := strings.Cut(stderr, "\ngoroutine ")
	if !ok {
		return false
	}
	for l := range strings.Lines(stack) {
		switch {
		case strings.HasPrefix(l, "runtime."), strings.HasPrefix(l, "internal/"), strings.HasPrefix(l, "panic("), !frame.MatchString(l):
		default:
			return strings.HasPrefix(l, "github.com/gostor/gotgt/")
		}
	}
	return false
}

func TestOnlyTheDeathOfGotgtItselfIsExcused(t *testing.T) {
	const head = "fatal error: concurrent map read and map write\n\ngoroutine 41 [running]:\ninternal/runtime/maps.fatal({0x1, 0x2})\n\t/go/panic.go:1 +0x1\n"
	for stack, want := range map[string]bool{
		"github.com/gostor/gotgt/pkg/port/iscsit.(*iscsiConnection).x(0xc0)\n\t/x.go:1\n":                                        true,
		"github.com/sluice-storage/sluice/blockdev/gotgt.(*store).Read(0xc0)\n\t/x.go:1\ngithub.com/gostor/gotgt/pkg/scsi.x()\n": false,
		"": false,
	} {
		if got := itsOwnDeath(head + stack); got != want {
			t.Errorf("%q: %v", stack, got)
		}
	}
	if itsOwnDeath("killed") {
		t.Error("an end without a stack is excused")
	}
}

// start runs a target and waits until it listens.
func start(t *testing.T) *target {
	t.Helper()
	n, err := port.Free() // gotgt takes a number, not a listener
	if err != nil {
		t.Fatal(err)
	}
	g := &target{port: n, exited: make(chan struct{})}
	g.cmd = exec.Command(os.Args[0], "-quiet", "-port", strconv.Itoa(g.port), "-size", "104857600",
		"-file", filepath.Join(t.TempDir(), "volume"))
	g.cmd.Env = append(os.Environ(), asTarget+"=1", "HOME="+t.TempDir())
	g.cmd.Stderr = io.MultiWriter(os.Stderr, &g.errors)
	out, err := g.cmd.StdoutPipe()
	if err == nil {
		err = g.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(out).ReadString('\n')
	go func() {
		_ = g.cmd.Wait() // killed at the end, so an error is what it should give
		close(g.exited)
	}()
	if readErr != nil || !strings.HasPrefix(line, "ready") {
		g.stop()
		t.Fatalf("the target said %q: %v", line, readErr)
	}
	return g
}

func (g *target) stop() {
	_ = g.cmd.Process.Kill() // it may have ended by itself
	<-g.exited
}

func (g *target) died() bool {
	select {
	case <-g.exited:
		return true
	default:
		return false
	}
}

// families of libiscsi's test program, as design and status tables name them. "." ends a family's name.
var families = regexp.MustCompile(`^ALL\.(Read6|Read10|Read12|Read16|Write10|Write12|Write16|WriteVerify10|WriteVerify12|WriteVerify16|ReadCapacity10|ReadCapacity16)\.`)

// skipped are the tests that libiscsi skips by itself, with the reason.
var skipped = regexp.MustCompile(`\.(DpoFua|Dpo)$`) // gotgt's MODE SENSE does not claim DPO and FUA

var summary = regexp.MustCompile(`(?m)^\s*tests\s+1\s+1\s+1\s+0\s`)

// TestLibiscsiThroughGotgtOnOurDevice lets a stock client test a stock target whose blocks are a blockdev.Device.
func TestLibiscsiThroughGotgtOnOurDevice(t *testing.T) {
	tool := need.Tool(t, "iscsi-test-cu", "libiscsi-bin")
	list, err := exec.Command(tool, "-l").Output()
	if err != nil && len(list) == 0 {
		t.Fatalf("iscsi-test-cu -l: %v", err)
	}
	ran := 0
	for name := range strings.FieldsSeq(string(list)) {
		if !families.MatchString(name) {
			continue
		}
		ran++
		t.Run(strings.TrimPrefix(name, "ALL."), func(t *testing.T) { one(t, tool, name) })
	}
	if ran < 40 {
		t.Errorf("the program lists %d tests of these families; 46 were there in libiscsi 1.19", ran)
	}
}

// one runs one test in a process of its own against a target of its own.
func one(t *testing.T, tool, name string) {
	for try := 1; ; try++ {
		g := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		url := fmt.Sprintf("iscsi://127.0.0.1:%d/iqn.2026-01.io.sluice:gotgt/0", g.port)
		out, err := exec.CommandContext(ctx, tool, "-d", "-n", "-t", name, url).CombinedOutput()
		cancel()
		died := g.died()
		g.stop()
		if died && try < 3 && itsOwnDeath(g.errors.String()) {
			t.Logf("the target died; again, on a new one")
			continue
		}
		if err != nil || !summary.Match(out) {
			t.Fatalf("%v\n%s", err, out)
		}
		if skip := strings.Contains(string(out), "[SKIPPED]"); skip != skipped.MatchString(name) {
			t.Errorf("skipped: %v\n%s", skip, out)
		}
		return
	}
}
