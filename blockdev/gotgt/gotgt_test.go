package gotgt_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gostor/gotgt/pkg/api"
	"github.com/gostor/gotgt/pkg/scsi"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/gotgt"
	"github.com/sluice-storage/sluice/blockdev/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ours(size int64) func(string) (blockdev.Device, error) {
	return func(string) (blockdev.Device, error) { return mem.Open(mem.Options{Size: size}) }
}

// TestConformanceOfGotgtsFileStore runs our rules on their store, through the bridge.
func TestConformanceOfGotgtsFileStore(t *testing.T) {
	dir := t.TempDir()
	names := map[blockdev.Device]string{}
	open := func(t testing.TB, path string, o gotgt.Options) blockdev.Device {
		d, err := gotgt.Open("file:"+path, o)
		if err != nil {
			t.Fatal(err)
		}
		names[d] = path
		return d
	}
	fresh := func(t testing.TB) string {
		f, err := os.CreateTemp(dir, "disk")
		if err == nil {
			err = errors.Join(f.Truncate(4<<20), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return f.Name()
	}
	blockdevtest.Run(t, blockdevtest.Options{
		Open: func(t testing.TB) blockdev.Device { return open(t, fresh(t), gotgt.Options{}) },
		Reopen: func(t testing.TB, d blockdev.Device) blockdev.Device {
			blockdevtest.Close(t, d)
			return open(t, names[d], gotgt.Options{})
		},
		ReadOnly: func(t testing.TB) blockdev.Device { return open(t, fresh(t), gotgt.Options{ReadOnly: true}) },
	})
}

// TestConformanceThereAndBack stands our bridge on gotgt's registry on our bridge on our memory device.
func TestConformanceThereAndBack(t *testing.T) {
	gotgt.Register("sluice-test", ours(4<<20))
	blockdevtest.Run(t, blockdevtest.Options{Open: func(t testing.TB) blockdev.Device {
		d, err := gotgt.Open("sluice-test:any", gotgt.Options{Logical: 4096})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}})
}

func TestOpenRefusesNonsense(t *testing.T) {
	for path, o := range map[string]gotgt.Options{
		"nothing": {}, "no-such-store:x": {}, "null:x": {}, ":x": {},
		"file:" + filepath.Join(t.TempDir(), "missing"): {},
		"null:y": {Logical: 1000},
	} {
		if d, err := gotgt.Open(path, o); err == nil {
			t.Errorf("%q was taken", path)
			blockdevtest.Close(t, d)
		}
	}
}

func TestAStoreThatLiesOrPanicsCostsOneRequest(t *testing.T) {
	d, err := gotgt.Open("null:x", gotgt.Options{Size: 1 << 20}) // reads give nothing
	if err != nil {
		t.Fatal(err)
	}
	m := blockdevtest.NewMemory(t, 8192)
	r := &blockdev.Request{Op: blockdev.Read, Length: 4096}
	r.Data = append(r.Data, m.Span(4096))
	if err := blockdevtest.Do(t, d, r); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("a store that gives nothing: %v", err)
	}
	blockdevtest.Close(t, d)

	d, err = gotgt.Wrap(panicking{}, "x", gotgt.Options{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // more than there are workers
		if err := blockdevtest.Do(t, d, r); !errors.Is(err, blockdev.ErrMedium) {
			t.Errorf("a store that panics: %v", err)
		}
	}
	blockdevtest.Close(t, d)
}

type panicking struct{ api.BackingStore }

func (panicking) Open(*api.SCSILu, string) error    { return nil }
func (panicking) Close(*api.SCSILu) error           { return nil }
func (panicking) Read(int64, int64) ([]byte, error) { panic("boom") }

func TestOurStoreInTheirHands(t *testing.T) {
	gotgt.Register("sluice-hands", ours(8<<20))
	bs, err := scsi.NewBackingStore("sluice-hands")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bs.Read(0, 512); !errors.Is(err, blockdev.ErrClosed) {
		t.Errorf("read before open: %v", err)
	}
	if err := bs.Open(nil, "x"); err != nil {
		t.Fatal(err)
	}
	if n := bs.Size(nil); n != 8<<20 {
		t.Errorf("size %d", n)
	}
	want := make([]byte, 3<<20+512) // several pieces
	blockdevtest.Fill(want, 1)
	if err := bs.Write(want, 1<<20); err != nil {
		t.Fatal(err)
	}
	if got, err := bs.Read(1<<20, int64(len(want))); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read back: %v", err)
	}
	if err := bs.DataSync(0, 0); err != nil {
		t.Error(err)
	}
	if err := bs.DataAdvise(0, 512, 0); err != nil {
		t.Error(err)
	}
	if err := bs.Unmap([]api.UnmapBlockDescriptor{{Offset: 1 << 20, TL: 1 << 20}}); err != nil {
		t.Fatal(err)
	}
	if got, err := bs.Read(1<<20, 2<<20); err != nil || !bytes.Equal(got[:1<<20], make([]byte, 1<<20)) || !bytes.Equal(got[1<<20:], want[1<<20:2<<20]) {
		t.Errorf("after unmap: %v", err)
	}
	for _, err := range []error{
		bs.Write(want[:1024], 8<<20-512), bs.Write(want[:512], -512), bs.Unmap([]api.UnmapBlockDescriptor{{Offset: 8 << 20, TL: 512}}),
		second(bs.Read(8<<20, 512)), second(bs.Read(0, 1<<60)), second(bs.Read(0, -1)),
	} {
		if !errors.Is(err, blockdev.ErrRange) {
			t.Errorf("beyond the end: %v, want ErrRange", err)
		}
	}
	if err := errors.Join(bs.Init(nil, ""), bs.Exit(nil), bs.Close(nil), bs.Close(nil)); err != nil {
		t.Error(err)
	}
	if bs.Size(nil) != 0 {
		t.Error("a closed store has a size")
	}
}

func second(_ []byte, err error) error { return err }

func TestLogsGoToZap(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	gotgt.RouteLogs(zap.New(core))
	logrus.WithField("lun", 7).Warn("something")
	logrus.Debug("not this")
	logrus.Error("worse")
	got := logs.AllUntimed()
	if len(got) != 2 || got[0].Level != zap.WarnLevel || got[0].Message != "something" ||
		got[0].ContextMap()["from"] != "gotgt" || got[1].Level != zap.ErrorLevel {
		t.Errorf("got %v", got)
	}
}
