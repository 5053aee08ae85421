package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/savefile"
)

// deletion is written down before the files of a volume are removed, and is itself removed last. Removing a large file takes long. If the
// daemon is killed meanwhile, the next volume of that name and path must not find the identity and the reservations of this one.
type deletion struct {
	Files []string `json:"files"` // the volume's own first
}

func (d *Daemon) deletions() string { return filepath.Join(d.stateDir, "deleting") }

func (d *Daemon) deletionPath(volume string) string {
	return filepath.Join(d.deletions(), volume+".json")
}

func (d *Daemon) noteDeletion(volume string, files []string) error {
	if err := savefile.MkdirAll(d.deletions()); err != nil {
		return err
	}
	return writeJSON(d.deletionPath(volume), deletion{files})
}

// removeFile is os.Remove; a test looks at what a kill would leave.
var removeFile = os.Remove

// finishDeletions completes the deletions that were interrupted, before a volume is opened. A volume whose file is still there was only
// forgotten: it may be configured again.
func (d *Daemon) finishDeletions() {
	l, err := os.ReadDir(d.deletions())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("which deletions of volumes were interrupted cannot be read", zap.Error(err))
	}
	for _, e := range l {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		var of deletion
		if !ok || strings.HasPrefix(name, ".") {
			continue
		}
		_, err := readJSON(d.deletionPath(name), &of)
		gone := false
		if err == nil && len(of.Files) > 0 {
			_, serr := os.Lstat(of.Files[0])
			if gone = errors.Is(serr, fs.ErrNotExist); !gone {
				err = serr
			}
		}
		if err != nil { // the next start may tell
			d.log.Warn("the deletion of a volume was interrupted and cannot be finished", zap.String("volume", name), zap.Error(err))
			continue
		}
		if gone {
			for _, f := range of.Files[1:] {
				d.forgetFile(name, f)
			}
			d.forgetIdentity(name, false)
		}
		d.forgetFile(name, d.deletionPath(name))
	}
}
