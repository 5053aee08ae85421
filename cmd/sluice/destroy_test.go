package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// A command that destroys says what before it asks, does nothing without a yes, and does not ask about what cannot be done.
func TestWhatDestroysSaysSoAndAsks(t *testing.T) {
	_, _, dir := served(t)
	socket := "--socket=" + filepath.Join(dir, "admin.sock")
	const made, who = "iqn.2026-11.io.sluice:made", "iqn.2026-11.org.example:"
	must(t, nil, "volume", "create", "gone", "1MiB", socket)
	must(t, nil, "target", "create", made, "--initiator", who+"a", socket)
	must(t, nil, "target", "allow", made, who+"b", socket)
	must(t, nil, "volume", "create", "lun", "1MiB", socket)
	must(t, nil, "target", "map", made, "7", "lun", socket)
	must(t, []byte("a-secret-of-alice\n"), "target", "secret", made, "alice", "--initiator", who+"a", socket)
	must(t, []byte("a-secret-of-bob-\n"), "target", "secret", made, "bob", "--initiator", who+"b", socket)
	must(t, nil, "portals", "add", "127.0.0.2:0", socket)
	if err := os.Mkdir(filepath.Join(dir, "files"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "gone.img")
	all := func() string {
		return must(t, nil, "volume", "list", socket) + must(t, nil, "target", "list", socket) + must(t, nil, "portals", socket)
	}
	before := all()
	for _, tc := range []struct {
		args []string
		says []string
	}{
		{[]string{"volume", "delete", "gone", "--data"}, []string{"All data of volume gone", file}},
		{[]string{"target", "delete", made}, []string{"Sessions of " + made, "secrets"}},
		{[]string{"target", "unmap", made, "7"}, []string{"Hosts that use LUN 7 of " + made}},
		{[]string{"target", "secret", made, "bob", "--remove"}, []string{"as bob is kept out"}},
		{[]string{"portals", "remove", "127.0.0.2:0"}, []string{"127.0.0.2:0 alone cannot log in"}},
		{[]string{"session", "close", "1"}, []string{"Session 1 ends"}},
		{[]string{"drain"}, []string{"The daemon ends"}},
		{[]string{"target", "deny", made, who + "a"}, []string{"Sessions of " + who + "a with " + made}},
	} {
		for _, answer := range []string{"", "no\n", "y\n"} {
			_, errs, err := sluice(t, []byte(answer), append(tc.args, socket)...)
			var ee ui.ExitError
			if !errors.As(err, &ee) || ee.Code != ui.CodeRefused || !strings.Contains(err.Error(), "nothing was done") {
				t.Errorf("sluice %v answered with %q: %v", tc.args, answer, err)
			}
			for _, want := range tc.says {
				if !strings.Contains(errs, want) {
					t.Errorf("sluice %v asks %q, without %q", tc.args, errs, want)
				}
			}
			if now := all(); now != before {
				t.Errorf("after %v, answered with %q:\n%s", tc.args, answer, now)
			}
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"volume", "delete", "a", "--data"}, {"volume", "delete", "none", "--data"}, {"target", "delete", testTarget}, {"target", "unmap", made, "8"}, {"exports", "remove", "/none"}} {
		if _, errs, err := sluice(t, []byte("yes\n"), append(args, socket)...); err == nil || strings.Contains(errs, "Type yes") {
			t.Errorf("sluice %v asks %q about what cannot be done (%v)", args, errs, err)
		}
	}
	must(t, []byte("yes\n"), "target", "unmap", made, "7", socket)
	must(t, []byte("yes\n"), "volume", "delete", "gone", "--data", socket)
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a deleted volume: %v", err)
	}
}
