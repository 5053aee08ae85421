package daemon

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/target/admin"
)

func (d *Daemon) filesOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files != nil
}

// The file service comes with the first export and goes with the last, while blocks are served; what else a change touches is
// not opened again; and a change with an export that cannot be opened is not made at all.
func TestFileServiceComesAndGoesWithItsExports(t *testing.T) {
	d, file := running(t, fileConfig)
	one, two := t.TempDir(), t.TempDir()
	write := func(more string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(fileConfig+more), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const files = "files: {tcp: \"127.0.0.1:0\", rdma: \"127.0.0.1:0\"}\n"
	reload := func(want ...string) {
		t.Helper()
		done, err := d.ReloadConfig(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(done.Changes, ", "); got != strings.Join(want, ", ") {
			t.Errorf("%s, want %v", got, want)
		}
	}
	if d.filesOpen() {
		t.Fatal("a daemon without exports serves files")
	}
	write(files + "exports: [{name: /one, path: " + one + "}]\n")
	reload("export /one added", "setting files added")
	if !d.filesOpen() {
		t.Fatal("the file service did not open")
	}
	d.mu.Lock()
	c, err := net.Dial("tcp", d.files.tcp.Addr().String())
	d.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(files + "exports: [{name: /one, path: " + one + "}, {name: /two, path: " + two + "}]\n")
	reload("export /two added")
	if s := d.Stats(); len(s.Exports) != 2 {
		t.Errorf("%+v", s.Exports)
	}
	// Half-way: the volume could be opened, the export not.
	more := strings.Replace(fileConfig, "volumes:\n", "volumes:\n  - {name: new, size: 1MiB}\n", 1)
	if err := os.WriteFile(file, []byte(more+files+"exports: [{name: /one, path: "+filepath.Join(one, "gone")+"}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReloadConfig(t.Context(), false); err == nil || !strings.Contains(err.Error(), "configuration not changed") {
		t.Errorf("an export of nothing: %v", err)
	}
	if len(d.Volumes()) != 2 || len(d.Exports()) != 2 {
		t.Errorf("%v, %v after a change that was not made", d.Volumes(), d.Exports())
	}
	write("")
	reload("export /one removed", "export /two removed", "setting files removed")
	if _, err := c.Read(make([]byte, 1)); err == nil || d.filesOpen() {
		t.Errorf("the file service stays open: %v", err)
	}
	write(files + "exports: [{name: /one, path: " + one + "}]\n")
	reload("export /one added", "setting files added")
}

// An export that the interface adds where none is opens the file service's own ports; when somebody else has them, nothing is
// changed or written down.
func TestFirstExportNeedsItsPorts(t *testing.T) {
	d, _ := running(t, fileConfig)
	dir := t.TempDir()
	if done, err := d.CreateExport(t.Context(), admin.ExportSpec{Name: "/x", Path: dir, DryRun: true}); err != nil || len(done.Changes) != 2 || d.filesOpen() {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := os.Stat(managedPath(d.stateDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dry run wrote something down: %v", err)
	}
	for held := false; !held; {
		l, lerr := net.Listen("tcp", "0.0.0.0:2049")
		if lerr == nil {
			defer l.Close()
		} // or else somebody has it already
		_, err := d.CreateExport(t.Context(), admin.ExportSpec{Name: "/x", Path: dir})
		if held = lerr == nil || err != nil; !held { // who had it has ended in between
			if _, err := d.DeleteExport(t.Context(), "/x", false); err != nil {
				t.Fatal(err)
			}
		} else if err == nil || !strings.Contains(err.Error(), "files.tcp 0.0.0.0:2049") {
			t.Errorf("%v", err)
		}
	}
	if m, err := readManaged(d.stateDir); err != nil || len(m.Exports) != 0 || len(d.Exports()) != 0 || d.filesOpen() {
		t.Errorf("%+v, %v", m, err)
	}
}

// An export whose directory is not there keeps neither volumes nor other exports from being served. A reload finds it when it is back, and
// takes changes of others meanwhile, but no other export that cannot be opened.
func TestAnExportThatCannotBeOpenedIsItsOwnProblem(t *testing.T) {
	here, away := t.TempDir(), filepath.Join(t.TempDir(), "away")
	conf := func(more string) string {
		return fileConfig + "files: {tcp: \"127.0.0.1:0\", rdma: none}\nexports: [{name: /here, path: " + here + "}, {name: /away/, path: " + away + "}" + more + "]\n"
	}
	d, file := running(t, conf(""))
	look := func(want string, served int) {
		t.Helper()
		var l []string
		for _, e := range d.Exports() {
			l = append(l, strings.TrimSpace(e.Name+" "+e.Problem))
		}
		if got := strings.Join(l, ", "); got != want || len(d.Stats().Exports) != served {
			t.Errorf("exports %q, %d of them served; want %q, %d", got, len(d.Stats().Exports), want, served)
		}
	}
	missing := "nfs: export /away: directory " + away + ": no such file or directory"
	look("/here, /away/ "+missing, 1)
	if got, want := names(d.Volumes()), "disk:8388608@0 ram:1048576@1"; got != want {
		t.Errorf("volumes %s, want %s", got, want)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reload := func() error {
		t.Helper()
		_, err := d.ReloadConfig(t.Context(), false)
		return err
	}
	if err := reload(); err != nil {
		t.Errorf("a reload of the same file: %v", err)
	}
	write(conf(", {name: /more, path: " + here + "}"))
	if err := reload(); err != nil {
		t.Errorf("a reload with one more export: %v", err)
	}
	look("/here, /away/ "+missing+", /more", 2)
	write(conf(", {name: /more, path: " + here + "}, {name: /gone, path: " + away + "/gone}"))
	if err := reload(); err == nil || !strings.Contains(err.Error(), "export /gone") {
		t.Errorf("a reload with another one that cannot be opened: %v", err)
	}
	look("/here, /away/ "+missing+", /more", 2)
	if err := os.Mkdir(away, 0o700); err != nil {
		t.Fatal(err)
	}
	write(conf(""))
	if err := reload(); err != nil {
		t.Fatal(err)
	}
	look("/here, /away/", 2)
	// It was served: a change that cannot be made as a whole is refused again.
	if err := os.Remove(away); err != nil {
		t.Fatal(err)
	}
	write(conf(", {name: /more, path: " + here + "}"))
	if err := reload(); err == nil || !strings.Contains(err.Error(), "configuration not changed") {
		t.Errorf("a reload that would take away an export: %v", err)
	}
}
