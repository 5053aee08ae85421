package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/cmd/sluice/admincmd"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// sick is a machine on which every look finds something.
func sick(t *testing.T) machine {
	t.Helper()
	dir := t.TempDir()
	eth := filepath.Join(dir, "class/net/eth0")
	if err := os.MkdirAll(eth, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]string{"mtu": "1500\n", "operstate": "up\n"} {
		if err := os.WriteFile(filepath.Join(eth, name), []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	port := filepath.Join(dir, "class/infiniband/mlx5_0/ports/1")
	if err := os.MkdirAll(port, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(port, "state"), []byte("1: DOWN\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return machine{
		sys: dir, proc: dir, dev: dir, stateDir: "/proc/nowhere", adapters: func() (bool, error) { return true, errors.New("there is no rdma-core; install it") },
		list: func(fabric.Options) ([]fabric.Adapter, error) {
			return []fabric.Adapter{{Name: "mlx5_0", AsTarget: true, AsInit: true}, {Name: "bnxt_re0", AsTarget: true, InitiatorToUse: "--exposure whole-slab"},
				{Name: "cxgb4_0", TargetToUse: "fabric: [{provider: verbs}]", InitiatorToUse: "--exposure whole-slab"}}, nil
		},
		sockets: func() []fabric.Socket {
			return []fabric.Socket{{Path: "/run/sluice/3260.sock", Port: "3260", Problem: "this user may not connect", Mode: "0600"}, {Path: "/run/sluice/3261.sock", Port: "3261"}}
		},
		canShare: func() error { return nil },
		ring:     func() error { return errors.New("io_uring is not to be had: it is forbidden") },
		listen:   func(string) error { return unix.EADDRINUSE },
		rlimit:   func(int) (uint64, error) { return 256, nil },
		release:  func() string { return "4.19.0-21-amd64" },
		served: func() (admincmd.Served, error) {
			return admincmd.Served{
				Volumes: []admin.Volume{{Name: "v", Problem: "/v.img is missing; mount its file system"}, {Name: "w", Problem: "/w.img is locked"}, {Name: "x", Problem: "SANITIZE runs"}, {Name: "y"},
					{Name: "z", Slow: "io_uring is not to be had: the daemon's unit forbids it"}},
				Targets: []admin.Target{{Name: "iqn.2026-11.org.example:t", Problem: "its secrets file is away"},
					{Name: "a", NotSRP: "it has auth, and SRP has no authentication"}, {Name: "p", NotSRP: "no RDMA provider; add one"}, {Name: "q"}},
				Exports: []admin.Export{{Name: "/e", Problem: "directory /srv/e: no such file or directory"}, {Name: "/f"}},
				Unbound: []admin.Unbound{{Provider: "verbs", Address: "10.0.0.1:3260", Problem: "address already in use"}, {Provider: "verbs", Address: "10.0.0.2:3260", Problem: "TCP has it; give it iser_port", Default: true}}}, nil
		},
	}
}

func TestASickMachineGetsAdviceForEverything(t *testing.T) {
	found := map[string]Finding{}
	for _, f := range sick(t).look() {
		found[f.What] = f
	}
	for what, state := range map[string]string{
		"kernel": bad, "open files": note, "io_uring": note, "volume z": note, "MTU of eth0": note, "kernel modules": note, "/dev/fuse": note,
		"port 1 of mlx5_0": note, "kernel module ib_uverbs": note, "kernel module rdma_ucm": note, "rdma-core": note, "locked memory": note,
		"adapter bnxt_re0": note, "adapter cxgb4_0": note, "socket /run/sluice/3260.sock": note,
		"state directory": bad, "port 127.0.0.1:3260": note, "volume v": bad, "volume w": bad, "volume x": note, "target iqn.2026-11.org.example:t": bad, "export /e": bad,
		"SRP of target a": note, "SRP of target p": note, "RDMA adapters at 10.0.0.1:3260": bad, "RDMA adapters at 10.0.0.2:3260": note,
	} {
		if f := found[what]; f.State != state || f.Advice == "" {
			t.Errorf("%s: %+v, want state %s and advice", what, f, state)
		}
	}
	if f := found["socket /run/sluice/3261.sock"]; f.State != good || f.Advice != "" {
		t.Errorf("a socket that may be used: %+v", f)
	}
	if f := found["rdma-core"]; !strings.Contains(f.Saw, "there is no rdma-core; install it") || strings.Contains(f.Advice, "install") {
		t.Errorf("what keeps the adapters from use, and what to do, is the provider's to say: %+v", f)
	}
	if f := found["volume v"]; f.Saw != "not served: /v.img is missing" || f.Advice != "mount its file system" {
		t.Errorf("%+v", f)
	}
	if f := found["SRP of target p"]; f.Saw != "not served: no RDMA provider" || f.Advice != "add one" {
		t.Errorf("%+v", f)
	}
	if f := found["RDMA adapters at 10.0.0.2:3260"]; f.Saw != "not served by provider verbs: TCP has it" || f.Advice != "give it iser_port" {
		t.Errorf("%+v", f)
	}
	if _, there := found["SRP of target q"]; there {
		t.Error("a target that is served over SRP is a finding")
	}
	if _, there := found["adapter mlx5_0"]; there {
		t.Error("an adapter that is used is a finding")
	}
	if _, there := found["volume y"]; there {
		t.Error("a volume that is served is a finding")
	}
	m := sick(t)
	m.served = func() (admincmd.Served, error) { return admincmd.Served{}, errors.New("no daemon listens") }
	if f := m.daemon(); len(f) != 1 || f[0].State != note || f[0].Advice == "" {
		t.Errorf("without a daemon: %+v", f)
	}
}

func TestThisMachineCanBeLookedAt(t *testing.T) {
	m := here(t.TempDir())
	m.listen = func(string) error { return nil }
	for _, f := range m.look() {
		if f.What == "" || f.Saw == "" || (f.State != good) != (f.Advice != "") {
			t.Errorf("a finding without sense: %+v", f)
		}
		if f.What == "state directory" && f.State != good {
			t.Errorf("a fresh directory is %s: %s", f.State, f.Saw)
		}
	}
}

func TestVersionOf(t *testing.T) {
	for rel, want := range map[string][2]int{"6.1.0-18-amd64": {6, 1}, "5.6-rc1": {5, 6}, "5": {0, 0}, "": {0, 0}} {
		if a, b := versionOf(rel); [2]int{a, b} != want {
			t.Errorf("%q is %d.%d", rel, a, b)
		}
	}
}

func TestErrnoIsWhatAPersonReads(t *testing.T) {
	if s := errno(&os.PathError{Op: "open", Path: "/x", Err: unix.ENOENT}); s != "no such file or directory" {
		t.Error(s)
	}
	if s := errno(errors.New("other")); !strings.Contains(s, "other") {
		t.Error(s)
	}
}
