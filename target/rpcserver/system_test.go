package rpcserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/rpcbind"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// systemBind runs Debian's rpcbind in a network and with a /run of its own, and returns its socket and what its rpcinfo
// prints.
func systemBind(t *testing.T) (socket string, info func(args ...string) string) {
	t.Helper()
	need.Root(t)
	need.Mount(t)
	tool := need.Tool(t, "rpcbind", "rpcbind")
	rpcinfo := need.Tool(t, "rpcinfo", "rpcbind")
	unshare, nsenter := need.Tool(t, "unshare", "util-linux"), need.Tool(t, "nsenter", "util-linux")
	ip := need.Tool(t, "ip", "iproute2")
	dir := t.TempDir()
	cmd := exec.Command(unshare, "--net", "--mount", "sh", "-c", `"$0" link set lo up && mount --bind "$1" /run && exec "$2" -f`, ip, dir, tool)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
	})
	socket = filepath.Join(dir, "rpcbind.sock")
	for deadline := time.Now().Add(patience); ; {
		nc, err := net.Dial("unix", socket)
		if err == nil {
			_ = nc.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // another program's start has no event
	}
	return socket, func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, nsenter, append([]string{"-t", strconv.Itoa(cmd.Process.Pid), "--net", "--mount", rpcinfo}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("rpcinfo: %v\n%s", err, out)
		}
		return string(out)
	}
}

// What is registered with the system's rpcbind is seen by its own client, under all netids; it goes with Close; what a
// killed daemon left is replaced, and what belongs to somebody who answers is not.
func TestRegistrationWithTheSystemsRpcbind(t *testing.T) {
	socket, info := systemBind(t)
	p := &program{}
	b := NewBinder()
	// A port that was ours, and where nobody answers any more.
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := gone.Addr().(*net.TCPAddr).AddrPort().Port()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	var want []string
	for netid, addr := range map[string]netip.Addr{"tcp": netip.IPv4Unspecified(), "tcp6": netip.IPv6Unspecified(), "udp": netip.IPv4Unspecified(),
		"rdma": netip.IPv4Unspecified(), "rdma6": netip.IPv6Unspecified()} {
		at := netip.AddrPortFrom(addr, port)
		b.Set(p, netid, at)
		want = append(want, netid+" "+rpcbind.Uaddr(at)+" superuser")
	}
	slices.Sort(want)
	r, err := b.Register(socket)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for l := range strings.Lines(info("-T", "tcp", "127.0.0.1")) {
		if f := strings.Fields(l); len(f) > 4 && f[0] == "400000" && f[1] == "2" {
			got = append(got, f[2]+" "+f[3]+" "+f[len(f)-1])
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("rpcinfo shows %q, want %q", got, want)
	}
	// The daemon is killed and comes back at another port, where a listener of the test's stands for it.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	next := NewBinder()
	next.Set(p, "tcp", netip.MustParseAddrPort(l.Addr().String()))
	if _, err := next.Register(socket); err != nil {
		t.Fatalf("a leftover is in the way: %v", err)
	}
	third := NewBinder()
	third.Set(p, "tcp", netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	if _, err := third.Register(socket); !errors.Is(err, ErrRegistered) {
		t.Errorf("the entry of a service that answers was taken: %v", err)
	}
	if out := info("-T", "tcp", "127.0.0.1"); !strings.Contains(out, rpcbind.Uaddr(netip.MustParseAddrPort(l.Addr().String()))) {
		t.Errorf("the new port is not there:\n%s", out)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if out := info("-T", "tcp", "127.0.0.1"); strings.Contains(out, "400000") {
		t.Errorf("after Close:\n%s", out)
	}
	if _, err := b.Register(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("registered with no rpcbind")
	}
}
