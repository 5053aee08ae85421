package rdmacmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/transport/fabric"
)

func run(t *testing.T, list func(fabric.Options) ([]fabric.Adapter, error), usable func() (bool, error), args ...string) (out, errs string, err error) {
	t.Helper()
	root := &cobra.Command{Use: "sluice", SilenceUsage: true, SilenceErrors: true}
	ui.AddOutputFlag(root)
	root.AddCommand(command(list, usable, func() []fabric.Socket {
		return []fabric.Socket{{Path: "/run/sluice/3260.sock", Port: "3260"}, {Path: "/run/sluice/3261.sock", Port: "3261", Problem: "this user may not connect"}}
	}))
	var o, e bytes.Buffer
	root.SetOut(&o)
	root.SetErr(&e)
	root.SetArgs(append([]string{"rdma"}, args...))
	err = root.Execute()
	return o.String(), e.String(), err
}

// A machine without adapters, or without rdma-core, is no fault: an empty list, a sentence with what to do, exit code 0.
func TestAMachineWithoutAdaptersGetsASentenceAndAnEmptyList(t *testing.T) {
	why := errors.New("there is no rdma-core; install it")
	list := func(fabric.Options) ([]fabric.Adapter, error) { return nil, why }
	out, errs, err := run(t, list, func() (bool, error) { return true, why }, "--output", "json")
	var r Report
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || r.Adapters == nil || len(r.Adapters) != 0 || !strings.Contains(r.Why, "install it") {
		t.Fatalf("%v\n%s%s", err, out, errs)
	}
	if _, errs, err = run(t, list, func() (bool, error) { return true, why }); err != nil || !strings.Contains(errs, "install it") {
		t.Fatalf("%v\n%s", err, errs)
	}
}

// One that has adapters and cannot look at them is at fault.
func TestAdaptersThatCannotBeListedAreAnError(t *testing.T) {
	why := errors.New("permission denied")
	_, _, err := run(t, func(fabric.Options) ([]fabric.Adapter, error) { return nil, why }, func() (bool, error) { return false, why })
	if !errors.Is(err, why) {
		t.Fatal(err)
	}
}

// An adapter that is there and of no use is shown with the reason, and nothing is said of what it would do.
func TestAnAdapterThatCannotBeUsedIsShownWithTheReason(t *testing.T) {
	list := func(fabric.Options) ([]fabric.Adapter, error) {
		return []fabric.Adapter{{Name: "mlx5_0", Fabric: "RoCE", Target: "nothing", Initiator: "a window", Problem: "rdma_ucm is not loaded: modprobe rdma_ucm"}}, nil
	}
	out, _, err := run(t, list, func() (bool, error) { return false, nil })
	if err != nil || !strings.Contains(out, "cannot be used") || !strings.Contains(out, "modprobe rdma_ucm") || strings.Contains(out, "as a target") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAdaptersAreShownWithWhatIsDoneWithThem(t *testing.T) {
	list := func(fabric.Options) ([]fabric.Adapter, error) {
		return []fabric.Adapter{{Name: "mlx5_0", Driver: "mlx5_core", Fabric: "RoCE", Windows: true, Target: "nothing", Initiator: "a window for each I/O", AsTarget: true, AsInit: true, MaxSGE: 30, MaxReads: 16,
			Ports: []fabric.Port{{Number: 1, State: "active", Link: "Ethernet", MTU: 4096, GIDs: []fabric.GID{{Index: 3, GID: "::ffff:192.0.2.7", Kind: "RoCE v2", Interface: "eth0"}}}}}}, nil
	}
	out, _, err := run(t, list, func() (bool, error) { return false, nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mlx5_0", "mlx5_core", "port 1", "active", "192.0.2.7 RoCE v2 eth0", "a window for each I/O", "nothing", "16 RDMA Reads"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Of an adapter that is not used the list says why, and what to write where it is wanted all the same.
func TestAnAdapterThatIsNotUsedComesWithWhatToWrite(t *testing.T) {
	list := func(o fabric.Options) ([]fabric.Adapter, error) {
		a := fabric.Adapter{Name: "cxgb4_0", Driver: "iw_cxgb4", Fabric: "iWARP", Target: "not used: because", Initiator: "refused: because",
			TargetToUse: "fabric: [{provider: verbs, devices: [cxgb4_0], exposure: whole-slab}]", InitiatorToUse: "--exposure whole-slab"}
		if o.Exposure == "whole-slab" {
			a.AsTarget, a.AsInit, a.Target, a.TargetToUse, a.InitiatorToUse = true, true, "all registered memory", "", ""
		}
		return []fabric.Adapter{a}, nil
	}
	usable := func() (bool, error) { return false, nil }
	out, _, err := run(t, list, usable)
	for _, want := range []string{"not used: because", "refused: because", "-> where", "devices: [cxgb4_0], exposure: whole-slab", "--exposure whole-slab"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, no %q in\n%s", err, want, out)
		}
	}
	if out, _, err = run(t, list, usable, "--exposure", "whole-slab"); err != nil || !strings.Contains(out, "may reach of the daemon's memory: all registered memory") || strings.Contains(out, "->") {
		t.Errorf("with whole slabs: %v\n%s", err, out)
	}
	if _, _, err = run(t, list, usable, "--exposure", "some"); err == nil || !strings.Contains(err.Error(), "whole-slab") {
		t.Errorf("a word that is none: %v", err)
	}
}

// Names choose adapters, and one that is not there is refused with those that are.
func TestAdaptersCanBeNamed(t *testing.T) {
	list := func(fabric.Options) ([]fabric.Adapter, error) {
		return []fabric.Adapter{{Name: "mlx5_0"}, {Name: "mlx5_1"}}, nil
	}
	usable := func() (bool, error) { return false, nil }
	if out, _, err := run(t, list, usable, "mlx5_1"); err != nil || strings.Contains(out, "mlx5_0") || !strings.Contains(out, "mlx5_1") {
		t.Errorf("%v\n%s", err, out)
	}
	var code ui.ExitError
	if _, _, err := run(t, list, usable, "mlx5_2"); !errors.As(err, &code) || code.Code != ui.CodeRefused || !strings.Contains(err.Error(), "mlx5_0, mlx5_1") {
		t.Errorf("one that is not there: %v", err)
	}
}

// Daemons of this host that offer shared memory are listed, and not where adapters were named.
func TestSocketsOfSharedMemoryAreListed(t *testing.T) {
	list := func(fabric.Options) ([]fabric.Adapter, error) { return []fabric.Adapter{{Name: "mlx5_0"}}, nil }
	ok := func() (bool, error) { return false, nil }
	out, _, err := run(t, list, ok)
	if err != nil || !strings.Contains(out, "this user may connect: /run/sluice/3260.sock") || !strings.Contains(out, "this user may not connect: /run/sluice/3261.sock") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = run(t, list, ok, "mlx5_0"); err != nil || strings.Contains(out, "3260.sock") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = run(t, list, ok, "--output", "json"); err != nil || !strings.Contains(out, `"port": "3261"`) {
		t.Errorf("%v\n%s", err, out)
	}
}
