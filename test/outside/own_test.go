package outside_test

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"sluice.example/outside/local"
	"sluice.example/outside/sparse"
)

// fabrics are two devices that reach one another: of this module's provider, and of the software RNIC that Sluice brings.
func fabrics(t *testing.T) map[string][2]transport.Device {
	t.Helper()
	f := local.New()
	l := map[string][2]transport.Device{"local": {f.Device(), f.Device()}, "iwarp": {iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{})}}
	t.Cleanup(func() {
		for _, p := range l {
			must(t, p[0].Close())
			must(t, p[1].Close())
		}
	})
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An engine and a provider that Sluice has never heard of carry a volume.
func TestAnEngineOfOnesOwnIsServedOverAProviderOfOnesOwn(t *testing.T) {
	for name, dev := range fabrics(t) {
		t.Run(name, func(t *testing.T) {
			disk := sparse.New(16 << 20)
			d, err := serveBlocks(disk, nil, slog.DiscardHandler)
			must(t, err)
			addr, err := d.listenOn(dev[0])
			must(t, err)
			i, err := block.New(block.Options{Device: dev[1]})
			must(t, err)
			v, err := i.Open(t.Context(), "iser://"+addr+"/"+target+"/0")
			must(t, err)
			want, got := bytes.Repeat([]byte("Sluice! "), 1<<17), make([]byte, 1<<20)
			_, err = v.WriteAt(want, 4096)
			must(t, err)
			must(t, v.Flush(context.Background()))
			_, err = v.ReadAt(got, 4096)
			must(t, err)
			if !bytes.Equal(got, want) || disk.Used() != 1<<20 {
				t.Errorf("other bytes came back, or the engine holds %d of them", disk.Used())
			}
			must(t, v.Close())
			must(t, i.Close())
			must(t, d.close())
			must(t, disk.Close())
		})
	}
}

// NFS over RDMA needs no more of a provider than iSER does.
func TestFilesOverAProviderOfOnesOwn(t *testing.T) {
	for name, dev := range fabrics(t) {
		t.Run(name, func(t *testing.T) {
			f, err := serveFiles(t.TempDir(), slog.DiscardHandler)
			must(t, err)
			url, err := f.listenOn(dev[0])
			must(t, err)
			v, _, err := nfs.Mount(t.Context(), url, nfs.Options{Device: dev[1]})
			must(t, err)
			w, err := v.Create(t.Context(), "file", 0o644)
			must(t, err)
			want := bytes.Repeat([]byte("Sluice! "), 1<<17)
			_, err = w.Write(want)
			must(t, err)
			must(t, w.Close())
			got, err := fs.ReadFile(v, "file")
			must(t, err)
			if !bytes.Equal(got, want) {
				t.Error("other bytes came back")
			}
			must(t, v.Close())
			must(t, f.close())
		})
	}
}
