package proc

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

var bootOf = regexp.MustCompile(`"boot": "[^"]*"`)

// NextBoot makes the next start of a daemon, which is not running, one after another boot of the machine: what it has noted of
// its units is of a boot that is none.
func NextBoot(state string) error {
	files, err := filepath.Glob(filepath.Join(state, "scsi", "lu-*.json"))
	if err != nil {
		return err
	}
	found := false
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		found = found || bootOf.Match(b)
		if err := os.WriteFile(f, bootOf.ReplaceAll(b, []byte(`"boot": "`+rand.Text()+`"`)), 0o600); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("no unit below %s has noted the boot it was served on", state)
	}
	return nil
}
