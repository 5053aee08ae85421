package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/admin"
)

func TestMain(m *testing.M) {
	mediaLimit = time.Minute // a machine that does much else is slow to flush
	goleak.VerifyTestMain(m)
}

const fileConfig = `
state_dir: state
timeouts: {drain: 1s}
portals: [{address: "127.0.0.1:0"}]
volumes:
  - {name: disk, size: 8MiB}
  - {name: ram, engine: mem, size: 1MiB}
targets:
  - name: iqn.2026-11.io.sluice:test
    luns: [{lun: 0, volume: disk}, {lun: 1, volume: ram}]
`

// running starts a daemon on a file in a directory of its own and waits until it serves.
func running(t *testing.T, conf string) (*Daemon, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	t.Cleanup(stop)
	return d, file
}

func serve(t *testing.T, file string) (*Daemon, func()) {
	t.Helper()
	return serveLogged(t, file, zap.NewNop())
}

func serveLogged(t *testing.T, file string, log *zap.Logger) (*Daemon, func()) {
	t.Helper()
	cfg, err := LoadServing(file, "", "")
	if err != nil {
		t.Fatal(err)
	}
	makeFiles(t, cfg)
	d, err := New(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	waitReady(t, d)
	once := false
	return d, func() {
		if once {
			return
		}
		once = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run ended with %v", err)
			}
		case <-time.After(60 * time.Second):
			t.Error("Run does not end")
		}
	}
}

// makeFiles makes the volumes' files before a first start: the daemon makes none by itself.
func makeFiles(t *testing.T, cfg *Config) {
	t.Helper()
	if _, err := os.Stat(cfg.StateDir); err == nil {
		return
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, v := range cfg.Volumes {
		if v.Engine != "file" || v.Size == 0 {
			continue
		}
		if err := errors.Join(os.WriteFile(v.Path, nil, 0o600), os.Truncate(v.Path, int64(v.Size))); err != nil {
			t.Fatal(err)
		}
	}
}

func waitReady(t *testing.T, d *Daemon) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); d.Ready() != nil; {
		if time.Now().After(deadline) {
			t.Fatal("the daemon does not become ready")
		}
		time.Sleep(time.Millisecond) // polls a state that has no event
	}
}

func names(vs []admin.Volume) string {
	var s []string
	for _, v := range vs {
		at := "-"
		if v.LUN != nil {
			at = fmt.Sprint(*v.LUN)
		}
		s = append(s, fmt.Sprintf("%s:%d@%s", v.Name, v.Size, at))
	}
	return strings.Join(s, " ")
}

func TestAChangeByTheAPISurvivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte(fileConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	ctx := t.Context()
	for _, step := range []func() (admin.Done, error){
		func() (admin.Done, error) {
			return d.CreateVolume(ctx, admin.VolumeSpec{Name: "extra", Size: 1 << 20})
		},
		func() (admin.Done, error) {
			return d.CreateTarget(ctx, admin.TargetSpec{Name: "iqn.2026-11.io.sluice:more"})
		},
		func() (admin.Done, error) {
			return d.MapLUN(ctx, "iqn.2026-11.io.sluice:more", admin.LUN{LUN: 7, Volume: "extra"}, false)
		},
		func() (admin.Done, error) {
			return d.ResizeVolume(ctx, "disk", admin.ResizeSpec{Size: 16 << 20})
		},
	} {
		if _, err := step(); err != nil {
			t.Fatal(err)
		}
	}
	want := "disk:16777216@0 extra:1048576@7 ram:1048576@1"
	if got := names(d.Volumes()); got != want {
		t.Errorf("volumes %s, want %s", got, want)
	}
	stop()
	d, stop = serve(t, file)
	defer stop()
	if got := names(d.Volumes()); got != want {
		t.Errorf("after a restart volumes %s, want %s", got, want)
	}
	if _, err := d.DeleteVolume(ctx, "extra", true, false); err == nil || !strings.Contains(err.Error(), "unmap it first") {
		t.Errorf("deleting a mapped volume: %v", err)
	}
	if _, err := d.UnmapLUN(ctx, "iqn.2026-11.io.sluice:more", 7, false); err != nil {
		t.Fatal(err)
	}
	if _, err := d.DeleteVolume(ctx, "extra", true, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(defaultPath(d.stateDir, "extra")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the deleted volume's file: %v", err)
	}
}

func TestADryRunChangesNothing(t *testing.T) {
	d, _ := running(t, fileConfig)
	before := names(d.Volumes())
	done, err := d.CreateVolume(t.Context(), admin.VolumeSpec{Name: "x", Size: 1 << 20, DryRun: true})
	if err != nil || !done.DryRun {
		t.Fatalf("%+v, %v", done, err)
	}
	if after := names(d.Volumes()); after != before {
		t.Errorf("volumes %s, before %s", after, before)
	}
	if _, err := os.Stat(defaultPath(d.stateDir, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
}

func TestRefusalsOfTheAPI(t *testing.T) {
	d, _ := running(t, fileConfig)
	ctx := t.Context()
	for name, f := range map[string]func() (admin.Done, error){
		"is defined in": func() (admin.Done, error) { return d.DeleteVolume(ctx, "disk", false, false) },
		"no volume nope": func() (admin.Done, error) {
			return d.ResizeVolume(ctx, "nope", admin.ResizeSpec{Size: 1})
		},
		"only grow": func() (admin.Done, error) {
			return d.ResizeVolume(ctx, "disk", admin.ResizeSpec{Size: 4096})
		},
		"there is a volume": func() (admin.Done, error) {
			return d.CreateVolume(ctx, admin.VolumeSpec{Name: "disk", Size: 4096})
		},
		"LUN 0 of": func() (admin.Done, error) {
			return d.MapLUN(ctx, "iqn.2026-11.io.sluice:test", admin.LUN{LUN: 0, Volume: "ram"}, false)
		},
		"is mapped by": func() (admin.Done, error) {
			return d.MapLUN(ctx, "iqn.2026-11.io.sluice:test", admin.LUN{LUN: 5, Volume: "ram"}, false)
		},
		"no iSCSI name|not an iSCSI name": func() (admin.Done, error) {
			return d.CreateTarget(ctx, admin.TargetSpec{Name: "my target"})
		},
		"no session 99": func() (admin.Done, error) { return d.CloseSession(ctx, "99") },
	} {
		_, err := f()
		var e *admin.Error
		ok := false
		for _, part := range strings.Split(name, "|") {
			ok = ok || err != nil && strings.Contains(err.Error(), part)
		}
		if !errors.As(err, &e) || !ok {
			t.Errorf("want a refusal with %q, got %v", name, err)
		}
	}
	if m, err := readManaged(d.stateDir); err != nil || len(m.Volumes)+len(m.Targets)+len(m.Maps)+len(m.Sizes) != 0 {
		t.Errorf("refused changes left %+v, %v", m, err)
	}
}

// A reload that cannot be made as a whole leaves everything as it was.
func TestAReloadThatFailsHalfWayChangesNothing(t *testing.T) {
	d, file := running(t, fileConfig)
	before := names(d.Volumes())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	conf := strings.Replace(fileConfig, `portals: [`, `portals: [{address: "`+taken.Addr().String()+`"}, `, 1)
	conf = strings.Replace(conf, "volumes:\n", "volumes:\n  - {name: fresh, size: 1MiB}\n", 1)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReloadConfig(t.Context(), false); err == nil || !strings.Contains(err.Error(), "not changed") {
		t.Fatalf("a portal that is taken: %v", err)
	}
	if after := names(d.Volumes()); after != before || len(d.Portals()) != 1 {
		t.Errorf("volumes %s, portals %v; before %s", after, d.Portals(), before)
	}
}

func TestReloadAddsAndRemoves(t *testing.T) {
	d, file := running(t, fileConfig)
	conf := strings.Replace(fileConfig, "{name: ram, engine: mem, size: 1MiB}", "{name: other, engine: mem, size: 2MiB}", 1)
	conf = strings.Replace(conf, "volume: ram", "volume: other", 1)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	done, err := d.ReloadConfig(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(d.Volumes()), "disk:8388608@0 other:2097152@1"; got != want {
		t.Errorf("volumes %s, want %s (%v)", got, want, done.Changes)
	}
	if again, err := d.ReloadConfig(t.Context(), false); err != nil || again.Changes[0] != "nothing has changed" {
		t.Errorf("the same file again: %+v, %v", again, err)
	}
}

// The service manager hears READY, RELOADING with a time and READY again, and STOPPING (sd_notify(3)).
func TestTheServiceManagerIsTold(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: sock, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", sock)
	next := func() string {
		b := make([]byte, 4096)
		if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte(fileConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	if s := next(); s != "READY=1" {
		t.Errorf("first %q", s)
	}
	if _, err := d.ReloadConfig(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if s := next(); !strings.HasPrefix(s, "RELOADING=1\nMONOTONIC_USEC=") {
		t.Errorf("reload begins with %q", s)
	}
	if s := next(); s != "READY=1" {
		t.Errorf("reload ends with %q", s)
	}
	// A file that is wrong: whoever waits for the reload hears that it is over.
	if err := os.WriteFile(file, []byte("volumes: [{name: odd, size: 1}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.ReloadFile(); err == nil || !strings.Contains(err.Error(), "configuration not changed") {
		t.Errorf("a wrong file is answered with %v", err)
	}
	if s := next(); !strings.HasPrefix(s, "RELOADING=1\nMONOTONIC_USEC=") {
		t.Errorf("a failing reload begins with %q", s)
	}
	if s := next(); s != "READY=1" {
		t.Errorf("a failing reload ends with %q", s)
	}
	stop()
	if s := next(); s != "STOPPING=1" {
		t.Errorf("the end begins with %q", s)
	}
}

func TestTwoDaemonsCannotShareAVolume(t *testing.T) {
	d, _ := running(t, fileConfig)
	conf := "state_dir: " + t.TempDir() + "\nvolumes: [{name: disk, path: " + defaultPath(d.stateDir, "disk") + "}]\n"
	cfg, err := ParseConfig("/x/second.yaml", []byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	second, err := New(cfg, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if vs := second.Volumes(); len(vs) != 1 || !strings.Contains(vs[0].Problem, "locked by another process") {
		t.Errorf("a second daemon opened the volume: %+v", vs)
	}
	if err := second.closeAll(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestOpenAPINamesWhatTheBackendHas(t *testing.T) {
	d, _ := running(t, fileConfig)
	if d.Info().State != "serving" || len(d.Portals()) != 1 || len(d.Targets()) != 1 || d.Targets()[0].Sessions != 0 {
		t.Errorf("info %+v, portals %v, targets %v", d.Info(), d.Portals(), d.Targets())
	}
	if err := d.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}
