package verbs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// tree makes files and, for values that begin with "->", links below a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "->"); ok {
			err = os.Symlink(to, p)
		} else {
			err = os.WriteFile(p, []byte(text+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestGIDsOfSysfs(t *testing.T) {
	const p = "sys/class/infiniband/mlx5_0/ports/1/"
	root := tree(t, map[string]string{
		p + "gids/0": "fe80:0000:0000:0000:0a00:27ff:fe00:0001", p + "gid_attrs/types/0": "IB/RoCE v1", p + "gid_attrs/ndevs/0": "eth1",
		p + "gids/1": "fe80:0000:0000:0000:0a00:27ff:fe00:0001", p + "gid_attrs/types/1": "RoCE v2", p + "gid_attrs/ndevs/1": "eth1",
		p + "gids/2":  "0000:0000:0000:0000:0000:0000:0000:0000",
		p + "gids/10": "0000:0000:0000:0000:0000:ffff:0a00:0001", p + "gid_attrs/types/10": "RoCE v2", p + "gid_attrs/ndevs/10": "eth1",
	})
	got, err := readGIDs(root, "mlx5_0", 1)
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	for i, want := range []gidEntry{
		{Index: 0, Kind: gidRoCEv1, Netdev: "eth1", GID: [16]byte{0: 0xfe, 1: 0x80, 8: 0x0a, 10: 0x27, 11: 0xff, 12: 0xfe, 15: 1}},
		{Index: 1, Kind: gidRoCEv2, Netdev: "eth1", GID: [16]byte{0: 0xfe, 1: 0x80, 8: 0x0a, 10: 0x27, 11: 0xff, 12: 0xfe, 15: 1}},
		{Index: 10, Kind: gidRoCEv2, Netdev: "eth1", GID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}},
	} {
		if got[i] != want {
			t.Errorf("%+v, want %+v", got[i], want)
		}
	}
	if _, err := readGIDs(root, "mlx5_1", 1); err == nil || !strings.Contains(err.Error(), "mlx5_1") {
		t.Errorf("an adapter that is not there: %v", err)
	}
}

func TestDriverOfAnAdapter(t *testing.T) {
	root := tree(t, map[string]string{"sys/class/infiniband/mlx5_0/device/driver": "->../../bus/pci/drivers/mlx5_core"})
	for _, c := range []struct {
		device string
		vendor uint32
		want   string
	}{{"mlx5_0", 0x2c9, "mlx5_core"}, {"rxe0", 0xffffff, "rdma_rxe"}, {"siw0", 0x626d74, "siw"}, {"other", 1, ""}} {
		if got := driverOf(root, c.device, c.vendor); got != c.want {
			t.Errorf("%s: %q, want %q", c.device, got, c.want)
		}
	}
}

// Each step between the kernel and the library that can be missing has its own sentence.
func TestNoAdapterSaysWhatToDo(t *testing.T) {
	files := map[string]string{}
	for _, step := range []struct{ add, want string }{
		{"", "no RDMA adapter"},
		{"sys/class/infiniband/mlx5_0/node_desc", "modprobe -a ib_uverbs rdma_ucm"},
		{"sys/class/infiniband_verbs/uverbs0/abi_version", "PrivateDevices=yes wants BindPaths="},
		{"dev/infiniband/uverbs0", "ibverbs-providers"},
	} {
		if step.add != "" {
			files[step.add] = ""
		}
		if got := whyNone(tree(t, files), tryNode); !strings.Contains(got, step.want) {
			t.Errorf("with %s: %q does not say %q", step.add, got, step.want)
		}
	}
}

func TestErrorsOfCalls(t *testing.T) {
	if err := failed(libVerbs, "ibv_reg_mr", 0); err != nil {
		t.Error(err)
	}
	err := failed(libVerbs, "ibv_reg_mr", -int(syscall.ENOMEM))
	var c *CallError
	if !errors.As(err, &c) || !errors.Is(err, syscall.ENOMEM) || errors.Is(err, errNotSupported) {
		t.Errorf("%#v", err)
	}
	for _, want := range []string{"ibv_reg_mr", "libibverbs", "LimitMEMLOCK"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %s", err, want)
		}
	}
	if err := failed(libVerbs, "ibv_alloc_mw", -int(syscall.EINVAL)); !errors.Is(err, errNotSupported) {
		t.Errorf("a window of an unknown type: %v", err)
	}
	if err := failed(libVerbs, "ibv_create_cq", -int(syscall.EINVAL)); errors.Is(err, errNotSupported) {
		t.Errorf("a wrong argument: %v", err)
	}
	if err := failed(libVerbs, "ibv_alloc_mw", -int(syscall.EOPNOTSUPP)); !errors.Is(err, errNotSupported) {
		t.Errorf("no windows: %v", err)
	}
}

// A binary of either kind gives a table or says why not, with what to do, and says the same again.
func TestOpenTableOrSaysWhy(t *testing.T) {
	lib, err := openTable()
	_, again := openTable()
	if again != err { //nolint:errorlint // the same value is meant
		t.Errorf("first %v, then %v", err, again)
	}
	var missing *LibraryError
	switch {
	case err == nil:
		if !Built || !strings.Contains(lib.Version(), "libibverbs 1.") || !strings.Contains(lib.Version(), "librdmacm 1.") {
			t.Errorf("built %v, version %q", Built, lib.Version())
		}
	case !Built && errors.Is(err, ErrNotBuilt) && strings.Contains(err.Error(), "make build"):
	case Built && errors.As(err, &missing) && strings.Contains(err.Error(), missing.Package):
	default:
		t.Errorf("built %v: %v", Built, err)
	}
}

func TestAsyncKinds(t *testing.T) {
	for code, want := range map[int]asyncKind{0: asyncCQError, 1: asyncQPFatal, 3: asyncQPFatal, 4: asyncOther, 8: asyncDeviceFatal, 9: asyncPortActive, 10: asyncPortError, 16: asyncOther, 18: asyncGIDChange, 99: asyncOther} {
		if got := asyncKindOf(code); got != want {
			t.Errorf("%d: %d, want %d", code, got, want)
		}
	}
}
