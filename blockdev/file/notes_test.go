package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/blockdev/internal/redo"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/disk"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
)

// as are the options of a volume that is called so, of a daemon with this state directory.
func as(t *testing.T, state, name string) file.Options {
	t.Helper()
	notes := filepath.Join(state, "media")
	if err := os.MkdirAll(notes, 0o700); err != nil {
		t.Fatal(err)
	}
	return file.Options{Notes: notes, Earlier: filepath.Join(state, name), Workers: 2}
}

// A loss is the medium's: it is known however the volume is called that it is served as, and of no other medium.
func TestALossIsKnownWhateverTheVolumeIsCalled(t *testing.T) {
	f, state := faultfs.Mount(t), t.TempDir()
	o := as(t, state, "a")
	o.Size = 1 << 20
	path, other := filepath.Join(f.Dir, "v"), filepath.Join(f.Dir, "w")
	blockdevtest.Close(t, open(t, other, o))
	d := open(t, path, o)
	blockdevtest.Write(t, d, blockdevtest.NewMemory(t, 4096), 0, make([]byte, 4096), false)
	f.Fault(func(c faultfs.Call) syscall.Errno {
		if c.Name == "fsync" {
			return syscall.EIO
		}
		return 0
	})
	if err := d.Close(); !errors.Is(err, blockdev.ErrMedium) {
		t.Fatalf("closing ends with %v", err)
	}
	f.Fault(nil)
	for _, c := range []struct {
		name, path string
		lost       bool
	}{{"a", other, false}, {"b", path, true}, {"a", path, true}} {
		d := open(t, c.path, as(t, state, c.name))
		if err := blockdev.Lost(d); (err != nil) != c.lost {
			t.Errorf("%s, as volume %s: %v", filepath.Base(c.path), c.name, err)
		}
		blockdevtest.Close(t, d)
	}
}

// The note of an earlier version, which bears the name of a volume, is of the medium that is said in it.
func TestTheNoteOfAnEarlierVersionIsFoundByItsMedium(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	o := as(t, state, "a")
	o.Size = 1 << 20
	path, other := filepath.Join(dir, "v"), filepath.Join(dir, "w")
	blockdevtest.Close(t, open(t, other, o))
	d := open(t, path, o)
	note := fmt.Sprintf("the disk is broken\n%s\n", file.Identity(d))
	blockdevtest.Close(t, d)
	if err := os.WriteFile(filepath.Join(state, "a.loss"), []byte(note), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path string
		lost       bool
	}{{"a", other, false}, {"b", path, true}, {"c", path, true}} {
		d := open(t, c.path, as(t, state, c.name))
		if err := blockdev.Lost(d); (err != nil) != c.lost {
			t.Errorf("%s, as volume %s: %v", filepath.Base(c.path), c.name, err)
		}
		blockdevtest.Close(t, d)
	}
	d = open(t, path, as(t, state, "d"))
	if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("a flush ends with %v", err)
	}
	blockdevtest.Close(t, d)
	d = open(t, path, as(t, state, "a"))
	if err := blockdev.Lost(d); err != nil {
		t.Errorf("a loss that a flush has told is still known: %v", err)
	}
	blockdevtest.Close(t, d)
	// A note that was not finished does not say whose it is: it counts where the name is.
	if err := os.WriteFile(filepath.Join(state, "a.loss"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "a"} {
		d := open(t, path, as(t, state, name))
		if err := blockdev.Lost(d); (err != nil) != (name == "a") {
			t.Errorf("as volume %s: %v", name, err)
		}
		blockdevtest.Close(t, d)
	}
}

// store is a log's file.
type store struct{ *os.File }

func (s store) WriteDurably(b []byte, off int64) error {
	_, err := s.WriteAt(b, off)
	return err
}

// An atomic write to a block device that a crash has cut short is finished however the volume is called after that, and on no other device.
func TestAnAtomicWriteIsFinishedWhateverTheVolumeIsCalled(t *testing.T) {
	state := t.TempDir()
	dev, _ := disk.Loop(t, 8<<20)
	other, _ := disk.Loop(t, 8<<20)
	m := blockdevtest.NewMemory(t, 128<<10)
	content := bytes.Repeat([]byte("new."), 1024)
	// interrupt leaves in the log of a device what a daemon leaves that is killed in the middle.
	interrupt := func(dev, log string) {
		t.Helper()
		d := open(t, dev, as(t, state, "none"))
		blockdevtest.Write(t, d, m, 8192, bytes.Repeat([]byte("old."), 1024), true)
		id := file.Identity(d)
		blockdevtest.Close(t, d)
		f, err := os.Create(log)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() // written
		span := m.All().Cut(0, len(content))
		copy(span.Bytes(), content)
		if err := errors.Join(f.Truncate(2*redo.SlotSize), redo.New(store{f}, id).Begin(1, make([]byte, redo.SlotSize), 8192, []mem.Span{span}, len(content))); err != nil {
			t.Fatal(err)
		}
	}
	finished := func(dev, name string) bool {
		t.Helper()
		d := open(t, dev, as(t, state, name))
		defer blockdevtest.Close(t, d)
		return bytes.Equal(blockdevtest.Read(t, d, m, 8192, len(content)), content)
	}
	interrupt(dev, filepath.Join(state, "a.redo"))
	interrupt(other, filepath.Join(state, "b.redo"))
	if !finished(dev, "b") || !finished(other, "a") {
		t.Error("half of an atomic write is left, which an earlier version had begun")
	}
	// What this version keeps has the medium's name.
	o := as(t, state, "a")
	o.Atomic = true
	blockdevtest.Close(t, open(t, dev, o))
	logs, err := filepath.Glob(filepath.Join(state, "media", "*.redo"))
	if err != nil || len(logs) != 2 {
		t.Fatalf("logs %v, %v", logs, err)
	}
	for _, log := range logs {
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
	}
	blockdevtest.Close(t, open(t, dev, o))
	if logs, err = filepath.Glob(filepath.Join(state, "media", "*.redo")); err != nil || len(logs) != 1 {
		t.Fatalf("logs %v, %v", logs, err)
	}
	interrupt(dev, logs[0])
	if !finished(dev, "c") {
		t.Error("half of an atomic write is left")
	}
}

// A log under another volume's name may have been left behind when the volume was renamed: the data is newer than what it holds. The one
// that bears the volume's own name comes first.
func TestALogThatWasLeftUnderAnotherNameIsNotReplayed(t *testing.T) {
	state := t.TempDir()
	dev, _ := disk.Loop(t, 8<<20)
	m := blockdevtest.NewMemory(t, 128<<10)
	d := open(t, dev, as(t, state, "none"))
	id := file.Identity(d)
	content := bytes.Repeat([]byte("now."), 1024)
	blockdevtest.Write(t, d, m, 8192, content, true)
	blockdevtest.Close(t, d)
	for name, pending := range map[string]bool{"a": true, "b": false} {
		f, err := os.Create(filepath.Join(state, name+".redo"))
		if err != nil {
			t.Fatal(err)
		}
		err = f.Truncate(2 * redo.SlotSize)
		if pending {
			span := m.All().Cut(0, 4096)
			copy(span.Bytes(), bytes.Repeat([]byte("old."), 1024))
			err = errors.Join(err, redo.New(store{f}, id).Begin(1, make([]byte, redo.SlotSize), 8192, []mem.Span{span}, 4096))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	d = open(t, dev, as(t, state, "b"))
	defer blockdevtest.Close(t, d)
	if !bytes.Equal(blockdevtest.Read(t, d, m, 8192, len(content)), content) {
		t.Error("old data is over new data")
	}
}
