package verbs

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// machineOf makes the tests' machine one with these files.
func machineOf(t *testing.T, files map[string]string) {
	t.Helper()
	old := sysRoot
	sysRoot = tree(t, files)
	t.Cleanup(func() { sysRoot = old })
}

// The whole kernel side of a machine with one adapter.
var wholeKernel = map[string]string{
	"sys/class/infiniband/one/node_desc": "", "sys/class/infiniband_verbs/uverbs0/abi_version": "", "dev/infiniband/uverbs0": "",
	"sys/class/misc/rdma_cm/abi_version": "", "dev/infiniband/rdma_cm": "",
}

func without(prefix string) map[string]string {
	files := map[string]string{}
	for name := range wholeKernel {
		if !strings.HasPrefix(name, prefix) {
			files[name] = ""
		}
	}
	return files
}

// What a machine lacks is tried by each of Available, List and Open, and each says it in one line with what to do.
func TestWhatIsMissingIsSaidByAvailableListAndOpen(t *testing.T) {
	for _, c := range []struct {
		name, call string // that fails
		err        error
		machine    map[string]string
		want       []string
		manager    bool
	}{
		{"no connection manager", "CreateEventChannel", failed(libCM, "rdma_create_event_channel", -int(syscall.ENOENT)), without("sys/class/misc"), []string{"modprobe rdma_ucm"}, true},
		{"a connection manager that a unit hides", "CreateEventChannel", failed(libCM, "rdma_create_event_channel", -int(syscall.ENOENT)), without("dev/infiniband/rdma_cm"),
			[]string{"/dev/infiniband/rdma_cm", "DeviceAllow=/dev/infiniband/rdma_cm rw"}, true},
		{"no right to the connection manager", "CreateEventChannel", failed(libCM, "rdma_create_event_channel", -int(syscall.EACCES)), wholeKernel,
			[]string{"may not open /dev/infiniband/rdma_cm", "as root"}, true},
		{"no memory to lock", "RegMR", failed(libVerbs, "ibv_reg_mr", -int(syscall.ENOMEM)), wholeKernel, []string{"one: ", "4 MiB", "LimitMEMLOCK="}, false},
		{"no protection domain", "AllocPD", failed(libVerbs, "ibv_alloc_pd", -int(syscall.EACCES)), wholeKernel, []string{"one: ", "/dev/infiniband"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			machineOf(t, c.machine)
			s := newSim(t)
			s.add("one", "mlx5", "10.0.0.1")
			if err := available(s); err != nil {
				t.Fatalf("a machine that has everything: %v", err)
			}
			if l, err := list(s, Options{}); err != nil || len(l) != 1 || l[0].Problem != "" {
				t.Fatalf("a machine that has everything: %+v, %v", l, err)
			}
			s.fail = func(call string) error {
				if call == c.call {
					return c.err
				}
				return nil
			}
			l, err := list(s, Options{})
			if err != nil || len(l) != 1 {
				t.Fatalf("List: %+v, %v", l, err)
			}
			d, opened := open(s, Options{})
			if opened == nil {
				_ = d.Close()
			}
			for by, err := range map[string]error{"Available": available(s), "Open": opened, "List": errors.New(l[0].Problem)} {
				if err == nil {
					t.Errorf("%s finds nothing wrong", by)
					continue
				}
				text := err.Error()
				for _, w := range c.want {
					if !strings.Contains(text, w) {
						t.Errorf("%s: %q does not say %q", by, text, w)
					}
				}
				var m *ManagerError
				if strings.ContainsAny(text, "\n?") || by != "List" && errors.As(err, &m) != c.manager {
					t.Errorf("%s: %q", by, text)
				}
			}
			if left := s.leaks(); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// One adapter of several that cannot be used is named; the others are.
func TestOneAdapterThatCannotBeUsedKeepsNoOtherAway(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	s.add("two", "mlx5", "10.0.0.2")
	first := func() func(string) error {
		n := 0
		return func(call string) error {
			if call == "RegMR" {
				if n++; n == 1 {
					return failed(libVerbs, "ibv_reg_mr", -int(syscall.ENOMEM))
				}
			}
			return nil
		}
	}
	s.fail = first()
	if err := available(s); err != nil {
		t.Error(err)
	}
	s.fail = first()
	l, err := list(s, Options{})
	if err != nil || len(l) != 2 || !strings.Contains(l[0].Problem, "LimitMEMLOCK=") || l[1].Problem != "" {
		t.Errorf("%+v, %v", l, err)
	}
	s.fail = first()
	d, err := open(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Several adapters that cannot be used are said in one line, each by its name: what makes a log's line makes one.
func TestAdaptersThatCannotBeUsedAreSaidInOneLine(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	s.add("two", "mlx5", "10.0.0.2")
	s.fail = func(call string) error {
		if call == "RegMR" {
			return failed(libVerbs, "ibv_reg_mr", -int(syscall.ENOMEM))
		}
		return nil
	}
	d, opened := open(s, Options{})
	if opened == nil {
		_ = d.Close()
	}
	for by, err := range map[string]error{"Available": available(s), "Open": opened} {
		var call *CallError
		if !errors.As(err, &call) || !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%s: %v", by, err)
			continue
		}
		if text := err.Error(); strings.Contains(text, "\n") || !strings.Contains(text, "one: ") || !strings.Contains(text, "; verbs: two: ") {
			t.Errorf("%s: %q", by, text)
		}
	}
}

// A node that cannot be opened for another reason, of a device that is being removed for one, is no missing library either.
func TestANodeThatDoesNotOpenSaysWhy(t *testing.T) {
	root := tree(t, wholeKernel)
	for _, err := range []error{syscall.ENXIO, syscall.EMFILE} {
		got := whyNone(root, func(path string) error { return &fs.PathError{Op: "open", Path: path, Err: err} })
		if !strings.Contains(got, err.Error()) || !strings.Contains(got, "uverbs0") || strings.Contains(got, "ibverbs-providers") {
			t.Errorf("%q", got)
		}
	}
}

// Nodes that may not be opened are no missing library.
func TestNoAdapterForLackOfRightsSaysSo(t *testing.T) {
	root := tree(t, wholeKernel)
	for _, err := range []error{syscall.EACCES, syscall.EPERM} {
		got := whyNone(root, func(path string) error {
			if path != filepath.Join(root, "dev/infiniband/uverbs0") {
				t.Errorf("%s was tried", path)
			}
			return &fs.PathError{Op: "open", Path: path, Err: err}
		})
		if !strings.Contains(got, "may not open /dev/infiniband/uverbs0") || !strings.Contains(got, "DeviceAllow=char-infiniband_verbs rw") {
			t.Errorf("%q", got)
		}
	}
}
