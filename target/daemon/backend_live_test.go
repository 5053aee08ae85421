package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/target/admin"
)

// Names, secrets, portals and exports that the interface makes are written back and survive a restart; what would open a target
// to everybody, or to nobody, is refused.
func TestWhoMayComeSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sluiced.yaml")
	conf := fileConfig + "files: {tcp: \"127.0.0.1:0\", rdma: none}\nexports: [{name: /first, path: " + t.TempDir() + "}]\n"
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	ctx, tn := t.Context(), "iqn.2026-11.io.sluice:more"
	must := func(_ admin.Done, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(want string, f func() (admin.Done, error)) {
		t.Helper()
		if _, err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a refusal with %q, got %v", want, err)
		}
	}
	must(d.CreateTarget(ctx, admin.TargetSpec{Name: tn}))
	must(d.AllowInitiator(ctx, tn, admin.InitiatorSpec{Name: "iqn.2026-11.org.example:a", LUNs: []uint16{0}}))
	must(d.AllowInitiator(ctx, tn, admin.InitiatorSpec{Name: "iqn.2026-11.org.example:b"}))
	must(d.DenyInitiator(ctx, tn, "iqn.2026-11.org.example:b", false))
	refused("lets everybody in", func() (admin.Done, error) { return d.DenyInitiator(ctx, tn, "iqn.2026-11.org.example:a", false) })
	refused("not on the list", func() (admin.Done, error) { return d.DenyInitiator(ctx, tn, "iqn.2026-11.org.example:c", false) })
	refused("12 characters", func() (admin.Done, error) { return d.SetSecret(ctx, tn, admin.SecretSpec{User: "a", Secret: "short"}) })
	must(d.SetSecret(ctx, tn, admin.SecretSpec{User: "alice", Secret: "correct-horse-battery"}))
	must(d.SetSecret(ctx, tn, admin.SecretSpec{User: "us", Secret: "we-are-the-target", Mutual: true}))
	refused("is the last", func() (admin.Done, error) { return d.RemoveSecret(ctx, tn, "alice", false) })
	refused("is defined in", func() (admin.Done, error) {
		return d.SetSecret(ctx, "iqn.2026-11.io.sluice:test", admin.SecretSpec{User: "alice", Secret: "correct-horse-battery"})
	})
	must(d.AddPortal(ctx, admin.Portal{Address: "[::1]:0"}, false))
	refused("already", func() (admin.Done, error) { return d.AddPortal(ctx, admin.Portal{Address: "[::1]:0"}, false) })
	must(d.CreateExport(ctx, admin.ExportSpec{Name: "/second", Path: dir, Clients: []admin.ExportClient{{Match: "127.0.0.0/8"}}}))
	refused("no directory", func() (admin.Done, error) {
		return d.CreateExport(ctx, admin.ExportSpec{Name: "/third", Path: file})
	})
	refused("changed there", func() (admin.Done, error) { return d.DeleteExport(ctx, "/first", false) })
	if shown, err := d.ShowConfig(); err != nil || strings.Contains(string(shown), "correct-horse") {
		t.Errorf("the configuration shows a secret: %v", err)
	}
	stop()
	d, stop = serve(t, file)
	defer stop()
	i := d.Targets()[1]
	if i.Name != tn || !i.CHAP || len(i.Initiators) != 1 || len(d.Portals()) != 2 || len(d.Exports()) != 2 {
		t.Errorf("after a restart target %+v, portals %v, exports %v", i, d.Portals(), d.Exports())
	}
	if fi, err := os.Stat(d.secretsOf(tn)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the secrets file: %v, %v", fi, err)
	}
	must(d.RemoveSecret(ctx, tn, "us", false))
	must(d.RemovePortal(ctx, "[::1]:0", false))
	must(d.DeleteExport(ctx, "/second", false))
	if n := len(d.Portals()) + len(d.Exports()); n != 2 {
		t.Errorf("portals %v, exports %v", d.Portals(), d.Exports())
	}
	if s := d.Stats(); len(s.Volumes) != 2 || len(s.Exports) != 1 || s.Memory.Limit == 0 || len(s.Volumes[0].ReadTimes.Counts) != len(s.Volumes[0].ReadTimes.Bounds)+1 {
		t.Errorf("stats %+v", s)
	}
}

// A volume that cannot be opened takes a reload back as a whole, the volume that was opened before it included.
func TestAReloadWithAVolumeThatCannotBeOpenedChangesNothing(t *testing.T) {
	d, file := running(t, fileConfig)
	before := names(d.Volumes())
	dir := t.TempDir()
	fresh := filepath.Join(dir, "fresh.img")
	if err := errors.Join(os.WriteFile(fresh, nil, 0o600), os.Truncate(fresh, 1<<20)); err != nil {
		t.Fatal(err)
	}
	conf := strings.Replace(fileConfig, "volumes:\n", "volumes:\n  - {name: fresh, path: "+fresh+"}\n  - {name: odd, path: "+dir+"}\n", 1)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := d.ReloadConfig(t.Context(), false)
	if err == nil || !strings.Contains(err.Error(), "odd") || !strings.Contains(err.Error(), "not changed") {
		t.Fatalf("a directory as a volume: %v", err)
	}
	if after := names(d.Volumes()); after != before {
		t.Errorf("volumes %s, before %s", after, before)
	}
	// Nothing holds the volume that was opened on the way.
	if err := os.WriteFile(file, []byte(strings.Replace(conf, "  - {name: odd, path: "+dir+"}\n", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReloadConfig(t.Context(), false); err != nil || d.volumes["fresh"].why != nil {
		t.Errorf("without it: %v", err)
	}
}

// A change of the interface that meets a taken port is taken back, on the disk too.
func TestAChangeThatFailsIsTakenBack(t *testing.T) {
	d, _ := running(t, fileConfig)
	taken := d.Portals()[0].Address
	if _, err := d.AddPortal(context.Background(), admin.Portal{Address: taken}, false); err == nil || !strings.Contains(err.Error(), "not changed") {
		t.Fatalf("a taken port: %v", err)
	}
	if m, err := readManaged(d.stateDir); err != nil || len(m.Portals) != 0 || len(d.Portals()) != 1 {
		t.Errorf("left behind: %+v, %v", m, err)
	}
}

func TestSecretsOfTheServiceManager(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "chap"), []byte("alice correct-horse-battery\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	s, err := readSecrets("credential:chap")
	if err != nil || s.users["alice"] == "" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := readSecrets("credential:../chap"); err == nil || !strings.Contains(err.Error(), "plain name") {
		t.Error(err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	if _, err := readSecrets("credential:chap"); err == nil || !strings.Contains(err.Error(), "LoadCredential=chap") {
		t.Error(err)
	}
	c, err := ParseConfig("/etc/sluice/sluiced.yaml", []byte("discovery_auth: {secrets_file: \"credential:chap\"}\n"))
	if err != nil || c.DiscoveryAuth.SecretsFile != "credential:chap" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestTheAuditLogIsAFileOfItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, done, err := auditLogger(LogConfig{Audit: path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("session began")
	if err := done(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	fi, serr := os.Stat(path)
	if err != nil || serr != nil || !strings.Contains(string(b), `"logger":"audit"`) || fi.Mode().Perm() != 0o600 {
		t.Errorf("%s, %v, %v", b, err, serr)
	}
}
