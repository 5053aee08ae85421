package nfs_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"
)

// Data that a server forgot are sent again in their order also while others write: the last write of a block is what the
// block holds, whatever was lost in between.
func TestWhatIsSentAgainNeverOvertakes(t *testing.T) {
	l := newLives(t)
	v := l.mount()
	f, err := v.Create(t.Context(), "f", 0o600)
	must(t, err)
	const writers, rounds, size = 4, 400, 4096
	var g errgroup.Group
	for w := range writers {
		g.Go(func() error { // each has a block of its own, and writes higher and higher numbers
			for i := range rounds {
				b := bytes.Repeat(binary.BigEndian.AppendUint32(nil, uint32(i)), size/4)
				if _, err := f.WriteAt(b, int64(w*size)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 3 { // and the server loses its memory under them
		l.powerCut()
		must(t, f.Sync())
	}
	must(t, g.Wait())
	must(t, f.Sync())
	got, err := os.ReadFile(filepath.Join(l.dir, "f"))
	must(t, err)
	want := binary.BigEndian.AppendUint32(nil, rounds-1)
	for w := range writers {
		if b := got[w*size : (w+1)*size]; !bytes.Equal(b, bytes.Repeat(want, size/4)) {
			t.Errorf("block %d holds %s", w, fmt.Sprint(b[:4]))
		}
	}
}
