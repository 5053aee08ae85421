package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/target/scsi"
)

// unfinished finds the beginning of a file's new content: the part of a name before the digits that os.CreateTemp adds.
type unfinished struct {
	dir    string
	prefix func(string) bool
}

// sweep removes the beginnings of files that a daemon that was killed did not finish; among them are copies of secrets. It is
// called when the volumes and portals are open, so that no other daemon writes here, and takes nothing that is younger than
// this process.
func (d *Daemon) sweep() {
	// ofAny finds those of all files whose name ends so, as internal/savefile calls them and as earlier versions did.
	ofAny := func(end string) func(string) bool {
		return func(p string) bool {
			return strings.HasPrefix(p, ".") && strings.HasSuffix(p, end+"-") && len(p) > len(end)+2 || strings.HasSuffix(p, end+".new-") && len(p) > len(end+".new-")
		}
	}
	exactly := func(names ...string) func(string) bool {
		return func(p string) bool { return slices.Contains(names, p) }
	}
	places := []unfinished{
		{d.stateDir, exactly(".managed.yaml-", "managed.yaml.new-")},
		{d.stateDir, ofAny(".img.identity")}, // also of volumes whose creation was cut short
		{filepath.Join(d.stateDir, "secrets"), ofAny("")},
		{d.identityDir(), ofAny("")},
		{d.deletions(), ofAny("")},
		{d.scsiState(), ofAny(".json")},
		{d.scsiState(), exactly(".state-")}, // of earlier versions
		{filepath.Join(d.stateDir, "nfs"), exactly(".nfs-handle.key-", ".nlm-state.json-")},
	}
	for _, v := range d.volumes {
		if v.cfg.engine().file && !strings.HasPrefix(v.cfg.Path, "/dev/") {
			base := filepath.Base(v.cfg.Path)
			places = append(places, unfinished{filepath.Dir(v.cfg.Path), exactly("."+base+".identity-", base+".identity.new-", "."+base+".new-")})
		}
	}
	for _, p := range places {
		if err := p.sweep(d.started); err != nil {
			d.log.Warn("what a daemon that was killed has left could not be removed", zap.String("directory", p.dir), zap.Error(err))
		}
	}
	d.tidyMedia()
	d.tidyUnits()
	var targets []string
	for _, t := range d.cfg.Targets {
		targets = append(targets, t.Name)
	}
	if err := scsi.Tidy(d.scsiState(), targets); err != nil {
		d.log.Warn("what is kept of targets that have gone could not be removed", zap.Error(err))
	}
}

// tidyMedia removes logs of block devices that are not served any more; none where it is not known which are.
func (d *Daemon) tidyMedia() {
	served := map[string]bool{}
	for _, v := range d.volumes {
		id, err := blockdev.Identity(v.dev)
		if err != nil {
			d.log.Warn("which logs of block devices are in use cannot be told; none is removed", zap.String("volume", v.cfg.Name), zap.Error(err))
			return
		}
		served[id] = true
	}
	unfinished, err := file.Tidy(mediaDir(d.stateDir), func(id string) bool { return served[id] })
	if err != nil {
		d.log.Warn("logs of block devices that are not served any more could not be removed", zap.Error(err))
	}
	for _, name := range unfinished {
		d.log.Warn("a crash interrupted an atomic write to a block device that is not served now; it is made when the device is served again: remove the log if the device is used otherwise", zap.String("log", name))
	}
}

// tidyUnits removes states of units whose volumes are long gone; none where it is not known of which volumes there are identities.
func (d *Daemon) tidyUnits() {
	entries, err := os.ReadDir(d.identityDir())
	known := map[string]bool{}
	for _, e := range entries {
		var id identity // of a record, and of a device
		if !strings.HasSuffix(e.Name(), ".json") && !strings.HasPrefix(e.Name(), "device-") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		_, rerr := readJSON(filepath.Join(d.identityDir(), e.Name()), &id)
		err = errors.Join(err, rerr)
		known[id.Key] = true
	}
	for _, v := range d.volumes {
		known[v.key] = true
	}
	if err == nil {
		err = scsi.TidyUnits(d.scsiState(), func(key string) bool { return known[key] })
	}
	if err != nil {
		d.log.Warn("what is kept of volumes that have gone could not be removed", zap.Error(err))
	}
}

func (u unfinished) sweep(before time.Time) error {
	l, err := os.ReadDir(u.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range l {
		prefix := strings.TrimRight(e.Name(), "0123456789")
		if prefix == e.Name() || !e.Type().IsRegular() || !u.prefix(prefix) {
			continue
		}
		if fi, err := e.Info(); err != nil || !fi.ModTime().Before(before) {
			continue // gone, or being written
		}
		errs = append(errs, os.Remove(filepath.Join(u.dir, e.Name())))
	}
	return errors.Join(errs...)
}
