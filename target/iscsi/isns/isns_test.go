package isns

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/test/lib/need"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	entity = "storage1.example.com"
	disk   = "iqn.2026-11.dev.sluice:disk"
	tape   = "iqn.2026-11.dev.sluice:tape"
)

var portals = []Portal{{netip.MustParseAddrPort("127.0.0.1:3260"), 1}, {netip.MustParseAddrPort("[::1]:3260"), 2}}

// isnsd starts Debian's open-isns server on a port of its own.
func isnsd(t *testing.T) string {
	t.Helper()
	prog := need.Tool(t, "isnsd", "open-isns-server")
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	conf := filepath.Join(dir, "isnsd.conf")
	text := fmt.Sprintf("SourceName = iqn.2026-11.dev.sluice:isns\nDatabase = %s/db\nPIDFile = %s/pid\nControlSocket = %s/ctl\nBindAddress = %s\nDefaultDiscoveryDomain = 1\nSecurity = 0\nSLPRegister = 0\nRegistrationPeriod = 10m\n", dir, dir, dir, addr)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(prog, "--config", conf, "--foreground")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("isnsd: %s", out.String())
		}
	})
	for end := time.Now().Add(time.Minute); ; {
		nc, err := net.Dial("tcp", addr)
		if err == nil {
			nc.Close()
			return addr
		}
		select {
		case err := <-exited:
			exited <- err
			t.Fatalf("isnsd ended: %v\n%s", err, out.String())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("isnsd does not listen: %v", err)
		}
	}
}

// until asks the server again and again for what it shows.
func until(t *testing.T, c *Client, ok func(map[string]bool, error) bool) {
	t.Helper()
	var got map[string]bool
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if got, err = c.Targets(t.Context(), disk); ok(got, err) {
			return
		}
	}
	t.Fatalf("the server shows %v, %v", got, err)
}

func TestRegistrationWithOpenISNS(t *testing.T) {
	addr := isnsd(t)
	c := New(Options{Server: addr, Entity: entity})
	look := New(Options{Server: addr, Entity: entity})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	c.Update(Registration{Targets: []Target{{disk, "a disk"}, {tape, ""}}, Portals: portals})
	until(t, look, func(m map[string]bool, err error) bool { return m[disk] && m[tape] })
	// A target that goes leaves the server too.
	c.Update(Registration{Targets: []Target{{disk, "a disk"}}, Portals: portals[:1]})
	until(t, look, func(m map[string]bool, err error) bool { return m[disk] && !m[tape] && err == nil })
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("Run: %v", err)
	}
	if m, err := look.Targets(t.Context(), disk); m[disk] {
		t.Fatalf("after the end: %v, %v", m, err)
	}
}

func TestManyTargets(t *testing.T) {
	addr := isnsd(t)
	c := New(Options{Server: addr, Entity: entity})
	var r Registration
	r.Portals = portals
	for i := range 100 {
		r.Targets = append(r.Targets, Target{Name: fmt.Sprintf("%s.%03d", disk, i)})
	}
	if err := c.Register(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	m, err := c.Targets(t.Context(), r.Targets[0].Name)
	if err != nil || len(m) != 100 {
		t.Fatalf("%d targets, %v", len(m), err)
	}
	if err := c.Deregister(t.Context(), r.Targets[0].Name); err != nil {
		t.Fatal(err)
	}
}

func TestServerThatIsAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c := New(Options{Server: addr, Entity: entity})
	if err := c.Register(t.Context(), Registration{Targets: []Target{{disk, ""}}, Portals: portals}); err == nil {
		t.Fatal("registered with nobody")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// The layout of section 5.1 and 5.3, byte by byte.
func TestMessageLayout(t *testing.T) {
	m := registerMessages("e", Registration{Targets: []Target{{"iqn.x", ""}}, Portals: portals[:1]}, 600)
	want := "00000020" + "00000008" + "69716e2e78000000" + "00000001" + "00000004" + "65000000" + "0000000000000000" +
		"00000001" + "00000004" + "65000000" + "000000020000000400000002" + "000000060000000400000258" +
		"0000001000000010" + "00000000000000000000ffff7f000001" + "000000110000000400000cbc" +
		"000000200000000869716e2e78000000" + "000000210000000400000001" + "000000330000000400000001" +
		"0000003100000010" + "00000000000000000000ffff7f000001" + "000000320000000400000cbc"
	if got := fmt.Sprintf("%x", m[0]); len(m) != 1 || got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	p := appendPDU(nil, fnRegister, flagClient, 7, []byte{1, 2, 3, 4})
	if got := fmt.Sprintf("%x", p); got != "000100010004800000070000"+"01020304" {
		t.Fatal(got)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0})
	f.Add(append([]byte{0, 0, 0, 0}, appendText(nil, tagName, disk)...))
	f.Add(append([]byte{0, 0, 0, 9}, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfc))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, attrs, err := parseAnswer(b)
		n := 4
		for _, a := range attrs {
			n += 8 + len(a.value)
			_ = a.text()
		}
		if err == nil && n != len(b) {
			t.Fatalf("%d of %d bytes accounted for", n, len(b))
		}
	})
}
