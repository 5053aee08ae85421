package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/scsi"
)

// cutShort is a first start with the volumes a and b that was killed before b had an identity, and without the records of more. It
// returns the configuration of b.
func cutShort(t *testing.T, file, state string, more ...string) (d *Daemon, cfg VolumeConfig) {
	t.Helper()
	conf := "state_dir: \"" + state + "\"\nportals: [{address: \"127.0.0.1:0\"}]\nvolumes: [{name: a, size: 1MiB}, {name: b, size: 1MiB}]\n"
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	cfg = d.volumes["b"].cfg
	stop()
	// What is written after a.
	err := errors.Join(os.Remove(d.allIdentified()), os.Remove(d.recordPath("b")), os.Remove(beside(cfg.Path)))
	for _, name := range more {
		err = errors.Join(err, os.Remove(d.recordPath(name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return d, cfg
}

// A first start that was killed between two volumes is no earlier version: what had no identity yet gets one by chance, and not of its
// name, which is that of many. So it is where the record of the first one could not be written, and its identity lies beside its file alone.
func TestAFirstStartThatWasCutShortIsNoUpgrade(t *testing.T) {
	for what, c := range map[string]struct {
		state string
		more  []string
	}{"after the first": {"state", nil}, "in a directory like a pattern": {"state[1]", nil}, "without a record of the first": {"state", []string{"a"}}} {
		t.Run(what, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "sluiced.yaml")
			_, cfg := cutShort(t, file, c.state, c.more...)
			_, stop := serve(t, file)
			stop()
			id, err := readIdentity(beside(cfg.Path))
			if err != nil || id == nil || id.NAA == earlierIdentity(cfg).NAA {
				t.Errorf("b is %+v, %v", id, err)
			}
		})
	}
}

// A volume that an earlier version served after a first start that failed keeps the identity that it had there.
func TestAVolumeServedEarlierAfterAStartThatFailedKeepsItsIdentity(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	d, cfg := cutShort(t, file, "state")
	if err := os.WriteFile(filepath.Join(d.scsiState(), scsi.StateFile(earlierIdentity(cfg).Key)), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stop := serve(t, file)
	stop()
	if id, err := readIdentity(beside(cfg.Path)); err != nil || id == nil || id.NAA != earlierIdentity(cfg).NAA {
		t.Errorf("b is %+v, %v", id, err)
	}
}

// Where it cannot be read whether an earlier version has served a volume, that is not served before it can be: not as another disk.
func TestAVolumeOfWhichItCannotBeReadWhetherItWasServedEarlierWaits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	d, cfg := cutShort(t, file, "state")
	state := filepath.Join(d.scsiState(), scsi.StateFile(earlierIdentity(cfg).Key))
	if err := os.Symlink(state, state); err != nil { // whether it is there cannot be told: ELOOP
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	defer stop()
	if v := d.volumes["b"]; v.why == nil || v.key != "" {
		t.Errorf("it is served: %v", v.why)
	}
	if err := errors.Join(os.Remove(state), os.WriteFile(state, []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := d.ReloadFile(); err != nil {
		t.Fatal(err)
	}
	if v := d.volumes["b"]; v.why != nil || v.key != earlierIdentity(cfg).Key {
		t.Errorf("it is not the disk that it was: %v", v.why)
	}
}

// A block device that was away at the upgrade is no other disk because the identity of another device cannot be read.
func TestADeviceThatWasAwayKeepsItsIdentityWhereAnotherOnesCannotBeRead(t *testing.T) {
	d, cfg := &Daemon{stateDir: t.TempDir(), log: zap.NewNop()}, VolumeConfig{Name: "a", Engine: "file", Path: "/dev/a"}
	was := earlierIdentity(cfg)
	other := filepath.Join(d.identityDir(), "device-other")
	err := errors.Join(os.Mkdir(d.identityDir(), 0o700), writeJSON(d.recordPath("a"), identityRecord{"file", "/dev/a", *was}), os.Mkdir(other, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	b := bearer{device: "a", medium: true}
	if id, err := d.identify(cfg, b); id != nil || err == nil {
		t.Errorf("it is %+v", id)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if id, err := d.identify(cfg, b); err != nil || *id != *was {
		t.Errorf("it is %+v, %v", id, err)
	}
}

// Where it cannot be read whether an earlier version has served, no volume gets an identity.
func TestAStartThatCannotReadWhetherItIsAnUpgradeIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	d, cfg := cutShort(t, file, "state")
	if err := errors.Join(os.Remove(d.begunHere()), os.Mkdir(d.begunHere(), 0o700)); err != nil { // reading a directory fails
		t.Fatal(err)
	}
	conf, err := LoadServing(file, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(conf, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "state directory") {
		t.Errorf("it starts: %v", err)
	}
	if id, err := readIdentity(beside(cfg.Path)); id != nil || err != nil {
		t.Errorf("b is %+v, %v", id, err)
	}
}
