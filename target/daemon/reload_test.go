package daemon

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/admin"
)

// What a reload read from the files is served before another change is made, or it would take that change back.
func TestAReloadTakesNoChangeBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte(fileConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	var d *Daemon
	var armed atomic.Bool
	changed := make(chan error, 1)
	cfg, err := LoadServing(file, "", "")
	if err != nil {
		t.Fatal(err)
	}
	read := cfg.with
	cfg.with = func(now *Config, m *managed) (*Config, error) {
		next, err := read(now, m)
		if armed.CompareAndSwap(true, false) {
			// The files are read; an operator's command comes before they are served.
			go func() {
				_, err := d.CreateTarget(context.Background(), admin.TargetSpec{Name: "iqn.2026-11.io.sluice:late"})
				changed <- err
			}()
			select {
			case err := <-changed: // it did not wait for the reload
				changed <- err
			case <-time.After(100 * time.Millisecond): // it does, as far as can be seen; less time finds less and fails nothing
			}
		}
		return next, err
	}
	if d, err = New(cfg, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	waitReady(t, d)
	armed.Store(true)
	if err := d.ReloadFile(); err != nil {
		t.Fatal(err)
	}
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range d.Targets() {
		names = append(names, g.Name)
	}
	if !strings.Contains(strings.Join(names, " "), ":late") {
		t.Errorf("a target that was made is gone after a reload: %v", names)
	}
}

// Another state_dir in the file counts from the next start on. What commands made lies in the one of this start, and a reload neither looks
// for it elsewhere nor takes it away.
func TestAReloadWithAnotherStateDirectoryKeepsWhatCommandsMade(t *testing.T) {
	conf := strings.Replace(fileConfig, "  - {name: disk, size: 8MiB}\n", "", 1)
	conf = strings.Replace(conf, "{lun: 0, volume: disk}, ", "", 1)
	d, file := running(t, conf)
	const made = "iqn.2026-11.io.sluice:made"
	for _, step := range []func() (admin.Done, error){
		func() (admin.Done, error) {
			return d.CreateVolume(t.Context(), admin.VolumeSpec{Name: "extra", Size: 1 << 20})
		},
		func() (admin.Done, error) {
			return d.CreateVolume(t.Context(), admin.VolumeSpec{Name: "more", Size: 1 << 20})
		},
		func() (admin.Done, error) { return d.CreateTarget(t.Context(), admin.TargetSpec{Name: made}) },
		func() (admin.Done, error) {
			return d.MapLUN(t.Context(), made, admin.LUN{LUN: 0, Volume: "extra"}, false)
		},
		func() (admin.Done, error) {
			return d.MapLUN(t.Context(), "iqn.2026-11.io.sluice:test", admin.LUN{LUN: 7, Volume: "more"}, false)
		},
		func() (admin.Done, error) {
			return d.SetSecret(t.Context(), made, admin.SecretSpec{User: "user", Secret: "correct-horse-battery"})
		},
	} {
		if _, err := step(); err != nil {
			t.Fatal(err)
		}
	}
	kept := map[string][]byte{}
	for _, f := range []string{managedPath(d.stateDir), d.secretsOf(made)} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		kept[f] = b
	}
	if err := os.WriteFile(file, []byte(strings.Replace(conf, "state_dir: state", "state_dir: other", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	before := names(d.Volumes())
	for _, dry := range []bool{true, false, false} {
		done, err := d.ReloadConfig(t.Context(), dry)
		if err != nil {
			t.Fatal(err)
		}
		if len(done.Changes) != 1 || !strings.HasPrefix(done.Changes[0], "setting state_dir changed (takes effect when") {
			t.Errorf("the reload says %q", done.Changes)
		}
	}
	if got := names(d.Volumes()); got != before || len(d.Targets()) != 2 {
		t.Errorf("volumes %s and %d targets, before %s and 2", got, len(d.Targets()), before)
	}
	for f, want := range kept {
		if got, err := os.ReadFile(f); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is now %q, %v; it was %q", f, got, err, want)
		}
	}
}

// What needs a restart stays what it was until then: it is shown so, and every reload says that it waits.
func TestAReloadKeepsAndTellsWhatWaitsForARestart(t *testing.T) {
	conf := fileConfig + "memory: 64MiB\nfiles: {tcp: \"127.0.0.1:0\", rdma: none}\n"
	d, file := running(t, conf)
	started, err := d.ShowConfig()
	if err != nil || !strings.Contains(string(started), "memory: 64MiB") {
		t.Fatalf("%s, %v", started, err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reload := func(dry bool, want ...string) {
		t.Helper()
		done, err := d.ReloadConfig(t.Context(), dry)
		if err != nil || !slices.Equal(done.Changes, want) {
			t.Errorf("the reload says %q, %v; want %q", done.Changes, err, want)
		}
		if shown, err := d.ShowConfig(); err != nil || !bytes.Equal(shown, started) {
			t.Errorf("what is shown is no more what counts: %v\n%s\nat the start\n%s", err, shown, started)
		}
	}
	const restart = " (takes effect when the daemon starts again)"
	write(strings.Replace(strings.Replace(conf, "64MiB", "128MiB", 1), "files: {tcp: \"127.0.0.1:0\"", "limits: {connections: 64}\nfiles: {tcp: \"127.0.0.1:65000\"", 1))
	for _, dry := range []bool{true, false, false, true} {
		reload(dry, "setting memory changed"+restart, "setting limits changed"+restart, "setting files changed"+restart)
	}
	write(conf)
	reload(false, "nothing has changed")
	write(strings.Replace(conf, "64MiB", "1MiB", 1))
	if _, err := d.ReloadConfig(t.Context(), false); err == nil || !strings.Contains(err.Error(), "is too little") {
		t.Errorf("a setting with which the daemon would not start again: %v", err)
	}
}

// A command does not make a setting of the file count, and what waits for a restart still waits behind it.
func TestACommandDoesNotEndTheWaitForARestart(t *testing.T) {
	conf := fileConfig + "memory: 64MiB\n"
	d, file := running(t, conf)
	if err := os.WriteFile(file, []byte(strings.Replace(conf, "64MiB", "128MiB", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.CreateVolume(t.Context(), admin.VolumeSpec{Name: "extra", Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if shown, err := d.ShowConfig(); err != nil || !strings.Contains(string(shown), "memory: 64MiB") {
		t.Errorf("shown is %s, %v", shown, err)
	}
	done, err := d.ReloadConfig(t.Context(), false)
	if err != nil || len(done.Changes) != 1 || !strings.HasPrefix(done.Changes[0], "setting memory changed (takes effect") {
		t.Errorf("the reload says %q, %v", done.Changes, err)
	}
}
