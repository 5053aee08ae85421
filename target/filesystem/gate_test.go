package filesystem

import (
	"os"
	"testing"
	"testing/synctest"
)

// The gate is the medium's: exports of one file system share it, under any of their rules, and one whose directory is of
// another file system now begins again.
func TestAGateIsOfAFileSystem(t *testing.T) {
	dir := t.TempDir()
	other, err := os.MkdirTemp("/dev/shm", "sluice-gate")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(other) }()
	a, b := Export{Path: "/a", Dir: dir}, Export{Path: "/b", Dir: dir, ID: 7}
	s, err := New(Options{}, a, b)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	gateOf := func(path string) *gate {
		return &s.ExportOf(append(make([]byte, 2), idBytes(s.table.Load().byPath[path].ID)...)).medium.gate
	}
	hung := gateOf("/a")
	for range maxInExport { // calls that do not come back
		if !hung.try(maxInExport) {
			t.Fatal("the gate is full too soon")
		}
	}
	defer func() {
		for range maxInExport {
			hung.leave()
		}
	}()
	if gateOf("/b").try(maxInExport) {
		t.Error("two exports of one file system have twice as many calls under way")
	}
	a.ReadOnly = true
	if err := s.SetExports(a, b, Export{Path: "/c", Dir: dir, ID: 9}); err != nil {
		t.Fatal(err)
	}
	if gateOf("/a").try(maxInExport) || gateOf("/c").try(maxInExport) {
		t.Error("other rules, or another export, make room on a file system that hangs")
	}
	a.Dir = other // where a replica is mounted
	if err := s.SetExports(a); err != nil {
		t.Fatal(err)
	}
	if g := gateOf("/a"); !g.try(maxInExport) {
		t.Error("calls to the replacement of a file system that hangs are kept out")
	} else {
		g.leave()
	}
}

func idBytes(id uint32) []byte {
	return append(make([]byte, 0, handleHead), byte(id>>24), byte(id>>16), byte(id>>8), byte(id), 0, 0, 0, 0, 0, 0, 0, 0)
}

// A place that is free goes to one that may take it, though another with a smaller bound has waited longer.
func TestAGatePassesOverWhoMayNotEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		for range 4 {
			g.enter(4)
		}
		small, large := make(chan bool, 1), make(chan bool, 1)
		go func() { small <- g.enter(2) }()
		synctest.Wait()
		go func() { large <- g.enter(4) }()
		synctest.Wait()
		g.leave()
		synctest.Wait()
		select {
		case in := <-large:
			if !in {
				t.Error("it was not let in")
			}
		default:
			t.Error("it waits, and there is a place")
		}
		g.leave()
		g.leave()
		g.leave()
		if !<-small {
			t.Error("the one with the smaller bound is not let in when it may")
		}
	})
}

// Two media whose calls are slow leave the others of their host, which may be all machines behind one address, more than one call at a
// time; however many media hang, the host keeps room for requests.
func TestMediaThatAreSlowStarveNoOtherOfTheirHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var host caller
		sum := 0
		for i := range 12 {
			m := &medium{}
			n := 0
			for n < maxInExport && host.sitOfHost(m) != nil { // none of them leaves
				n++
			}
			if i < 5 && n < 8 {
				t.Errorf("medium %d has %d calls at a time", i, n)
			}
			if n < 1 {
				t.Errorf("medium %d has no call", i)
			}
			sum += n
		}
		if sum >= 256 { // MiB, half of the room for requests (target/rpcserver)
			t.Errorf("calls that hang have %d MiB of the host's 256", sum)
		}
	})
}
