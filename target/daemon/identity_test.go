package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A first start that was killed between two volumes is no earlier version: what had no identity yet gets one by chance, and not of its
// name, which is that of many.
func TestAFirstStartThatWasCutShortIsNoUpgrade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	const conf = "state_dir: state\nportals: [{address: \"127.0.0.1:0\"}]\nvolumes: [{name: a, size: 1MiB}, {name: b, size: 1MiB}]\n"
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	all, record := d.allIdentified(), d.recordPath("b")
	cfg := d.volumes["b"].cfg
	stop()
	// What is written after a.
	if err := errors.Join(os.Remove(all), os.Remove(record), os.Remove(beside(cfg.Path))); err != nil {
		t.Fatal(err)
	}
	_, stop = serve(t, file)
	stop()
	id, err := readIdentity(beside(cfg.Path))
	if err != nil || id == nil || id.NAA == earlierIdentity(cfg).NAA {
		t.Errorf("b is %+v, %v", id, err)
	}
}
