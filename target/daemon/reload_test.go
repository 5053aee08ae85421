package daemon

import (
	"context"
	"os"
	"path/filepath"
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
	load := func() (*Config, error) {
		cfg, err := LoadServing(file, "", "")
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
		return cfg, err
	}
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if d, err = New(cfg, load, zap.NewNop()); err != nil {
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
