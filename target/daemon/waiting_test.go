package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/target/admin"
)

const managedOnly = "iqn.2026-11.io.sluice:more"

// What an operator took back while it waited for another change is not carried out when that has ended.
func TestACommandWhoseClientIsGoneIsNotCarriedOut(t *testing.T) {
	d, _ := running(t, fileConfig+"files: {tcp: \"127.0.0.1:0\", rdma: none}\nexports: [{name: /first, path: "+t.TempDir()+"}]\n")
	ctx, dir := t.Context(), t.TempDir()
	for _, f := range []func() (admin.Done, error){
		func() (admin.Done, error) { return d.CreateVolume(ctx, admin.VolumeSpec{Name: "v", Size: 1 << 20}) },
		func() (admin.Done, error) { return d.CreateVolume(ctx, admin.VolumeSpec{Name: "w", Size: 1 << 20}) },
		func() (admin.Done, error) { return d.CreateTarget(ctx, admin.TargetSpec{Name: managedOnly}) },
		func() (admin.Done, error) { return d.MapLUN(ctx, managedOnly, admin.LUN{LUN: 1, Volume: "w"}, false) },
		func() (admin.Done, error) {
			return d.AllowInitiator(ctx, managedOnly, admin.InitiatorSpec{Name: "iqn.2026-11.org.example:a"})
		},
		func() (admin.Done, error) {
			return d.AllowInitiator(ctx, managedOnly, admin.InitiatorSpec{Name: "iqn.2026-11.org.example:b"})
		},
		func() (admin.Done, error) {
			return d.SetSecret(ctx, managedOnly, admin.SecretSpec{User: "alice", Secret: "correct-horse-battery"})
		},
		func() (admin.Done, error) {
			return d.SetSecret(ctx, managedOnly, admin.SecretSpec{User: "bob", Secret: "correct-horse-battery-2"})
		},
		func() (admin.Done, error) { return d.AddPortal(ctx, admin.Portal{Address: "[::1]:0"}, false) },
		func() (admin.Done, error) { return d.CreateExport(ctx, admin.ExportSpec{Name: "/second", Path: dir}) },
	} {
		if _, err := f(); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string {
		t.Helper()
		m, err := os.ReadFile(managedPath(d.stateDir))
		s, serr := os.ReadFile(d.secretsOf(managedOnly))
		_, verr := os.Stat(defaultPath(d.stateDir, "v"))
		if err := errors.Join(err, serr, verr); err != nil {
			t.Error(err)
		}
		return string(m) + string(s)
	}
	before := read()
	gone, cancel := context.WithCancel(ctx)
	cancel()
	for name, f := range map[string]func() (admin.Done, error){
		"create a volume": func() (admin.Done, error) { return d.CreateVolume(gone, admin.VolumeSpec{Name: "x", Size: 1 << 20}) },
		"resize":          func() (admin.Done, error) { return d.ResizeVolume(gone, "v", admin.ResizeSpec{Size: 2 << 20}) },
		"delete a volume": func() (admin.Done, error) { return d.DeleteVolume(gone, "v", true, false) },
		"create a target": func() (admin.Done, error) { return d.CreateTarget(gone, admin.TargetSpec{Name: managedOnly + "-x"}) },
		"map":             func() (admin.Done, error) { return d.MapLUN(gone, managedOnly, admin.LUN{LUN: 2, Volume: "v"}, false) },
		"unmap":           func() (admin.Done, error) { return d.UnmapLUN(gone, managedOnly, 1, false) },
		"allow": func() (admin.Done, error) {
			return d.AllowInitiator(gone, managedOnly, admin.InitiatorSpec{Name: "iqn.2026-11.org.example:c"})
		},
		"deny": func() (admin.Done, error) {
			return d.DenyInitiator(gone, managedOnly, "iqn.2026-11.org.example:a", false)
		},
		"set a secret": func() (admin.Done, error) {
			return d.SetSecret(gone, managedOnly, admin.SecretSpec{User: "carol", Secret: "correct-horse-battery-3"})
		},
		"take a secret":   func() (admin.Done, error) { return d.RemoveSecret(gone, managedOnly, "bob", false) },
		"add a portal":    func() (admin.Done, error) { return d.AddPortal(gone, admin.Portal{Address: "127.0.0.1:0"}, false) },
		"take a portal":   func() (admin.Done, error) { return d.RemovePortal(gone, "[::1]:0", false) },
		"add an export":   func() (admin.Done, error) { return d.CreateExport(gone, admin.ExportSpec{Name: "/third", Path: dir}) },
		"take an export":  func() (admin.Done, error) { return d.DeleteExport(gone, "/second", false) },
		"reload":          func() (admin.Done, error) { return d.ReloadConfig(gone, false) },
		"delete a target": func() (admin.Done, error) { return d.DeleteTarget(gone, managedOnly, false) },
	} {
		if _, err := f(); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := read(); after != before {
		t.Errorf("after\n%s\nbefore\n%s", after, before)
	}
}

// Of changes that wait for one another, one has a name or a number and the others hear that it is taken.
func TestOneOfManyHasTheNameOrNumber(t *testing.T) {
	d, _ := running(t, fileConfig)
	ctx := t.Context()
	const n = 4
	for i := range n {
		if _, err := d.CreateVolume(ctx, admin.VolumeSpec{Name: fmt.Sprint("v", i), Size: 1 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	one := func(what string, f func(i int) (admin.Done, error)) {
		t.Helper()
		errs := make([]error, n)
		var begun, ended sync.WaitGroup
		begun.Add(n)
		d.changeMu.Lock() // as below a medium that is slow
		for i := range n {
			ended.Go(func() {
				begun.Done()
				_, errs[i] = f(i)
			})
		}
		begun.Wait()
		d.changeMu.Unlock()
		ended.Wait()
		made := 0
		for _, err := range errs {
			if err == nil {
				made++
			} else if ae := (*admin.Error)(nil); !errors.As(err, &ae) || ae.Kind != admin.Conflict {
				t.Errorf("%s: %v", what, err)
			}
		}
		if made != 1 {
			t.Errorf("%s: %d of %d are told that it is done", what, made, n)
		}
	}
	one("target", func(i int) (admin.Done, error) {
		return d.CreateTarget(ctx, admin.TargetSpec{Name: managedOnly, Initiators: []string{fmt.Sprintf("iqn.2026-11.org.example:%d", i)}})
	})
	one("LUN", func(i int) (admin.Done, error) {
		return d.MapLUN(ctx, managedOnly, admin.LUN{LUN: 0, Volume: fmt.Sprint("v", i)}, false)
	})
	one("portal", func(int) (admin.Done, error) { return d.AddPortal(ctx, admin.Portal{Address: "[::1]:0"}, false) })
	if m, err := readManaged(d.stateDir); err != nil || len(m.Targets) != 1 || len(m.Maps) != 1 || len(m.Portals) != 1 {
		t.Errorf("written down is %+v, %v", m, err)
	}
}

// Secrets that several commands set at one time are all there, in whatever order the commands came.
func TestSecretsThatAreSetAtOnceAreAllThere(t *testing.T) {
	d, _ := running(t, fileConfig)
	ctx := t.Context()
	if _, err := d.CreateTarget(ctx, admin.TargetSpec{Name: managedOnly}); err != nil {
		t.Fatal(err)
	}
	const n = 4
	var begun, ended sync.WaitGroup
	begun.Add(n)
	d.changeMu.Lock()
	for i := range n {
		ended.Go(func() {
			begun.Done()
			if _, err := d.SetSecret(ctx, managedOnly, admin.SecretSpec{User: fmt.Sprint("user", i), Secret: fmt.Sprint("correct-horse-battery-", i)}); err != nil {
				t.Error(err)
			}
		})
	}
	begun.Wait()
	d.changeMu.Unlock()
	ended.Wait()
	sec, err := readSecrets(filepath.Join(d.stateDir, "secrets", managedOnly))
	if err != nil || len(sec.users) != n {
		t.Errorf("%d users, want %d; %v", len(sec.users), n, err)
	}
}
