package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/target/admin"
)

// What commands made once and the operator's file defines by now is in no command's way: a list that an earlier version left out of
// managed.yaml is the same as the empty one of today.
func TestACommandPassesOverWhatTheFileHasTakenOver(t *testing.T) {
	const conf = `
state_dir: state
portals: [{address: "127.0.0.1:0"}]
volumes: [{name: ram, engine: mem, size: 1MiB}]
targets: [{name: "iqn.2026-11.io.sluice:test", luns: [{lun: 0, volume: ram}]}]
`
	dir := t.TempDir()
	file := filepath.Join(dir, "sluiced.yaml")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(managedPath(filepath.Join(dir, "state")), []byte("targets: [{name: \"iqn.2026-11.io.sluice:test\", alias: ours}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	defer stop()
	if _, err := d.CreateTarget(t.Context(), admin.TargetSpec{Name: "iqn.2026-11.io.sluice:more"}); err != nil {
		t.Errorf("a target beside it: %v", err)
	}
	if _, err := d.AllowInitiator(t.Context(), "iqn.2026-11.io.sluice:test", admin.InitiatorSpec{Name: "iqn.2026-11.io.sluice:host"}); err == nil || !strings.Contains(err.Error(), "is defined in") {
		t.Errorf("a change of it: %v", err)
	}
}

// An empty list is one that was left out, for targets and whatever else has some. What an initiator sees is none with an empty list, and all
// without one.
func TestAnEmptyListIsOneThatWasLeftOut(t *testing.T) {
	group := func(p []uint16) TargetConfig { return TargetConfig{PortGroups: []PortGroupConfig{{Portals: p}}} }
	sees := func(l []uint16) TargetConfig { return TargetConfig{Initiators: []InitiatorConfig{{LUNs: l}}} }
	for _, c := range []struct {
		what string
		a, b any
		same bool
	}{
		{"LUNs of a target", TargetConfig{}, TargetConfig{LUNs: []LUNConfig{}}, true},
		{"other LUNs of a target", TargetConfig{}, TargetConfig{LUNs: []LUNConfig{{}}}, false},
		{"portals of a group", group(nil), group([]uint16{}), true},
		{"other portals of a group", group([]uint16{1}), group([]uint16{2}), false},
		{"LUNs of an initiator", sees(nil), sees([]uint16{}), false},
		{"the same LUNs of an initiator", sees([]uint16{}), sees([]uint16{}), true},
		{"secrets", TargetConfig{}, TargetConfig{Auth: &AuthConfig{}}, false},
		{"other secrets", TargetConfig{Auth: &AuthConfig{SecretsFile: "a"}}, TargetConfig{Auth: &AuthConfig{SecretsFile: "b"}}, false},
		{"the same secrets", TargetConfig{Auth: &AuthConfig{SecretsFile: "a"}}, TargetConfig{Auth: &AuthConfig{SecretsFile: "a"}}, true},
		{"what is implied", FabricConfig{{Provider: "verbs", implied: true}}, FabricConfig{{Provider: "verbs"}}, true},
		{"settings", Config{}, Config{Memory: 1}, false},
	} {
		if same(c.a, c.b) != c.same || same(c.b, c.a) != c.same {
			t.Errorf("%s: same is %v", c.what, !c.same)
		}
	}
}
