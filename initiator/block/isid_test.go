package block

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

func ported(t *testing.T, dir, name string) *Initiator {
	t.Helper()
	i, err := New(Options{Name: name, StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}

// A volume has the ISID that it had before, unless a live session of this host has it; another host, initiator name, target
// or unit has another one.
func TestAnISIDComesBackAndIsNotShared(t *testing.T) {
	const name = "iqn.2026-01.org.example:host"
	dir := t.TempDir()
	i := ported(t, dir, name)
	u := &URL{Host: "h", Port: "3260", Target: "iqn.2026-01.org.example:disk"}
	first := i.port(u)
	second := i.port(u)
	if first.lock == nil || second.lock == nil || first.isid == second.isid {
		t.Fatalf("%v and %v are in use at a time", first.isid, second.isid)
	}
	if first.isid[0] != 0x80 {
		t.Errorf("%v is not of the random format", first.isid)
	}
	second.close()
	first.close()
	if again := i.port(u); again.isid != first.isid {
		t.Errorf("%v does not come back: %v", first.isid, again.isid)
	} else {
		again.close()
	}
	lun, target := *u, *u
	lun.LUN, target.Target = 1, u.Target+"2"
	seen := map[iscsi.ISID]string{first.isid: "the first"}
	for what, p := range map[string]port{"another unit": i.port(&lun), "another target": i.port(&target), "another name": ported(t, dir, name+"2").port(u),
		"another host": ported(t, t.TempDir(), name).port(u)} {
		if old, ok := seen[p.isid]; ok {
			t.Errorf("%s has the ISID of %s", what, old)
		}
		seen[p.isid] = what
		p.close()
	}
}

// Processes that start at once make one seed.
func TestASeedIsMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	u := &URL{Host: "h", Port: "3260", Target: "iqn.2026-01.org.example:disk"}
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[iscsi.ISID]bool{}
	var ports []port
	for range 16 {
		i := ported(t, dir, "iqn.2026-01.org.example:host")
		wg.Go(func() {
			p := i.port(u)
			mu.Lock()
			defer mu.Unlock()
			seen[p.isid] = true
			ports = append(ports, p)
		})
	}
	wg.Wait()
	for k := range ports {
		ports[k].close()
	}
	if len(seen) != 16 {
		t.Errorf("16 live sessions have %d ISIDs", len(seen))
	}
	i := ported(t, dir, "iqn.2026-01.org.example:host")
	p := i.port(u)
	defer p.close()
	if !seen[p.isid] {
		t.Error("one of them had another seed")
	}
	if l, err := filepath.Glob(filepath.Join(dir, ".seed*")); err != nil || len(l) > 0 {
		t.Errorf("left behind: %v, %v", l, err)
	}
}

// A host without a place for a seed opens volumes all the same.
func TestAHostWithoutAPlaceForASeed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	u := &URL{Host: "h", Port: "3260", Target: "iqn.2026-01.org.example:disk"}
	i := ported(t, filepath.Join(file, "dir"), "")
	a, b := i.port(u), i.port(u)
	if a.isid == b.isid || a.lock != nil {
		t.Error("two sessions have one ISID")
	}
}

// A volume that is closed, or was never opened, gives its ISIDs back.
func TestAVolumeGivesItsISIDBack(t *testing.T) {
	dir := t.TempDir()
	var last iscsi.ISID
	for k := range 3 {
		f := newFake(t)
		v := f.mustOpen(Options{Name: "iqn.2026-01.org.example:host", StateDir: dir}, "")
		if isid := v.paths[0].isid; k > 0 && isid != last {
			t.Errorf("opened again: %v and not %v", isid, last)
		} else {
			last = isid
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		f.set(func() { f.away = "fake" })
		if _, err := f.open(Options{Name: "iqn.2026-01.org.example:host", StateDir: dir}, ""); err == nil {
			t.Error("it opens")
		}
	}
}
