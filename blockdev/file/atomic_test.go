package file_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/blockdev/internal/redo"
	"github.com/sluice-storage/sluice/mem"
)

// durably is a log's file as the engine sees it.
type durably struct{ *os.File }

func (d durably) WriteDurably(b []byte, off int64) error {
	_, err := d.WriteAt(b, off)
	return err
}

// interrupted makes a volume of zeroes whose log says that a write of data at off was under way.
func interrupted(t *testing.T, dir string, off int64, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, "v")
	d := open(t, path, file.Options{Size: 2 << 20, Workers: 2, Atomic: true})
	id := file.Identity(d)
	blockdevtest.Close(t, d)
	f, err := os.OpenFile(path+".redo", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := blockdevtest.NewMemory(t, len(data))
	copy(m.All().Bytes(), data)
	if err := redo.New(durably{f}, id).Begin(1, make([]byte, redo.SlotSize), off, []mem.Span{m.All()}, len(data)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// What the log has of a crash is in place when the device has opened, also without Atomic and with O_DIRECT, and only
// once.
func TestAnInterruptedAtomicWriteIsFinished(t *testing.T) {
	data := make([]byte, 24<<10)
	blockdevtest.Fill(data, 3)
	for name, o := range map[string]file.Options{"atomic": {Atomic: true}, "not wanted any more": {}, "direct": {Direct: true, Logical: 4096}} {
		t.Run(name, func(t *testing.T) {
			path := interrupted(t, directDir(t), 64<<10, data)
			if _, err := file.Open(path, file.Options{ReadOnly: true}); err == nil || !strings.Contains(err.Error(), "writable once") {
				t.Errorf("read-only: %v", err)
			}
			m := blockdevtest.NewMemory(t, 64<<10)
			d := open(t, path, o)
			if !bytes.Equal(blockdevtest.Read(t, d, m, 64<<10, len(data)), data) {
				t.Error("the write is not in place")
			}
			blockdevtest.Write(t, d, m, 64<<10, make([]byte, 4096), true)
			blockdevtest.Close(t, d)
			d = open(t, path, o)
			if !bytes.Equal(blockdevtest.Read(t, d, m, 64<<10, 4096), make([]byte, 4096)) {
				t.Error("the write was done again over a newer one")
			}
			blockdevtest.Close(t, d)
		})
	}
}

func TestALogOfAnotherDeviceIsRefused(t *testing.T) {
	path := interrupted(t, t.TempDir(), 2<<20-512, make([]byte, 1024))
	if _, err := file.Open(path, file.Options{}); !errors.Is(err, blockdev.ErrRange) {
		t.Errorf("beyond the end: %v", err)
	}
	path = interrupted(t, t.TempDir(), 0, bytes.Repeat([]byte{1}, 1024))
	other := filepath.Join(t.TempDir(), "other")
	blockdevtest.Close(t, open(t, other, file.Options{Size: 2 << 20}))
	if err := os.Rename(path+".redo", other+".redo"); err != nil {
		t.Fatal(err)
	}
	for _, o := range []file.Options{{}, {Atomic: true}, {ReadOnly: true}} {
		if _, err := file.Open(other, o); !errors.Is(err, redo.ErrForeign) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if b, err := os.ReadFile(other); err != nil || !bytes.Equal(b, make([]byte, 2<<20)) {
		t.Errorf("another device's write was done here: %v", err)
	}
}

// What was written is in the blocks alone once the log is scrubbed or the device closed: an erased volume is erased.
func TestNoCopyOfDataOutlivesIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v")
	secret := bytes.Repeat([]byte("secret! "), 512)
	m := blockdevtest.NewMemory(t, 2<<20)
	write := func(d *file.Device, b []byte) {
		t.Helper()
		copy(m.All().Bytes(), b)
		r := &blockdev.Request{Op: blockdev.Write, Atomic: true, Length: int64(len(b)), Data: []mem.Span{m.All().Cut(0, len(b))}}
		if err := blockdevtest.Do(t, d, r); err != nil {
			t.Fatal(err)
		}
	}
	left := func() bool {
		t.Helper()
		b, err := os.ReadFile(path + ".redo")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(b, secret[:512])
	}
	d := open(t, path, file.Options{Size: 1 << 20, Atomic: true})
	write(d, secret)
	if !left() {
		t.Error("the log is not where this test looks")
	}
	if err := blockdev.Scrub(d); err != nil || left() {
		t.Errorf("after a scrub: %v, left %v", err, left())
	}
	write(d, secret)
	blockdevtest.Close(t, d)
	if left() {
		t.Error("data is left in the log of a closed volume")
	}
	// Nor after a crash, where atomic writes are not wanted any more.
	d = open(t, path, file.Options{Atomic: true})
	write(d, secret)
	crashed, err := os.ReadFile(path + ".redo")
	if err != nil {
		t.Fatal(err)
	}
	blockdevtest.Close(t, d)
	if err := os.WriteFile(path+".redo", crashed, 0o600); err != nil || !left() {
		t.Fatal(err)
	}
	d = open(t, path, file.Options{})
	defer blockdevtest.Close(t, d)
	if left() {
		t.Error("data is left in the log of a volume without atomic writes")
	}
}

// A log that outlived its volume is nothing to the next one of that name.
func TestALogOfADeletedVolumeIsForgotten(t *testing.T) {
	path := interrupted(t, t.TempDir(), 0, bytes.Repeat([]byte{1}, 4096))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	d := open(t, path, file.Options{Size: 1 << 20, Atomic: true})
	defer blockdevtest.Close(t, d)
	if got := blockdevtest.Read(t, d, blockdevtest.NewMemory(t, 4096), 0, 4096); !bytes.Equal(got, make([]byte, 4096)) {
		t.Error("a new volume has the old one's data")
	}
}

func TestAtomicWritesAreOfferedWhereTheyAreConfigured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v")
	d := open(t, path, file.Options{Size: 1 << 20})
	if g := d.Geometry(); g.AtomicMax != 0 || g.AtomicUnit != 0 {
		t.Errorf("%+v", g)
	}
	blockdevtest.Close(t, d)
	d = open(t, path, file.Options{Atomic: true, Log: path + "-log"})
	if g := d.Geometry(); g.AtomicMax != redo.Max || g.AtomicUnit != 512 || !strings.Contains(d.Path(), "redo log") {
		t.Errorf("%+v, %s", g, d.Path())
	}
	blockdevtest.Close(t, d)
	if _, err := os.Stat(path + "-log"); err != nil {
		t.Error(err)
	}
	d = open(t, path, file.Options{Atomic: true, ReadOnly: true})
	if g := d.Geometry(); g.AtomicMax != 0 {
		t.Errorf("%+v", g)
	}
	blockdevtest.Close(t, d)
	if _, err := file.Open(path, file.Options{Atomic: true, Log: path + "/none"}); err == nil {
		t.Error("a log that cannot be made was taken")
	}
}
