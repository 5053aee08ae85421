package file

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
)

// What one run of settling has noted as lost because the medium hung is taken back when that takes it, but not where another run
// has met a loss meanwhile: the kernel tells the open file of that once.
func TestALossThatIsTakenBackLeavesAnother(t *testing.T) {
	for name, another := range map[string]bool{"it was the only one": false, "there was another": true} {
		t.Run(name, func(t *testing.T) {
			note := filepath.Join(t.TempDir(), "loss")
			l := &loss{note: note, id: "this"}
			left := blockdev.ErrMedium
			_ = l.found(left)
			if another {
				_ = l.found(wrap("flush", unix.EIO))
			}
			l.mended(left)
			_, err := os.Stat(note)
			if (l.now() != nil) != another || (err == nil) != another {
				t.Errorf("the loss is %v, the note %v", l.now(), err)
			}
		})
	}
}
