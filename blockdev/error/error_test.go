package error_test

import (
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	errordev "github.com/sluice-storage/sluice/blockdev/error"
	"github.com/sluice-storage/sluice/blockdev/mem"
	sluicemem "github.com/sluice-storage/sluice/mem"
)

func open(t testing.TB, f errordev.Fault) *errordev.Device {
	below, err := mem.Open(mem.Options{Size: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	d, err := errordev.Open(below, f)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformanceWithoutAFault(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Options{Open: func(t testing.TB) blockdev.Device { return open(t, nil) }, Cheap: true})
}

func TestNthRequestFails(t *testing.T) {
	d := open(t, errordev.Nth(3, blockdev.ErrMedium))
	defer blockdevtest.Close(t, d)
	for i := 1; i <= 12; i++ {
		err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush})
		if errors.Is(err, blockdev.ErrMedium) != (i%3 == 0) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if d.Requests() != 12 {
		t.Errorf("%d requests counted", d.Requests())
	}
}

func TestAFailedWriteDoesNotReachTheMedium(t *testing.T) {
	d := open(t, errordev.On(blockdev.Write, 8192, 512, blockdev.ErrNoSpace))
	defer blockdevtest.Close(t, d)
	m := blockdevtest.NewMemory(t, 64<<10)
	s := m.All().Cut(0, 4096)
	s.Bytes()[512] = 1
	for _, c := range []struct {
		off int64
		err error
	}{{4096, nil}, {8192 - 512, blockdev.ErrNoSpace}, {8192, blockdev.ErrNoSpace}, {8192 + 512, nil}} {
		r := &blockdev.Request{Op: blockdev.Write, Offset: c.off, Length: 4096, Data: []sluicemem.Span{s}}
		if err := blockdevtest.Do(t, d, r); !errors.Is(err, c.err) {
			t.Errorf("write at %d: %v, want %v", c.off, err, c.err)
		}
	}
	if b := blockdevtest.Read(t, d, m, 8192, 512); b[0] != 0 {
		t.Error("a failed write was written")
	}
	d.Set(nil)
	blockdevtest.Write(t, d, m, 8192, make([]byte, 512), true)
}
