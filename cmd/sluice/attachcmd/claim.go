package attachcmd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// claim notes whose volume this is, and refuses one whose file system is mounted already, or about to be, by another attachment of
// this machine: two mounts of one file system destroy it, and the kernel, which sees two devices, does not know. Both may read.
func (r *Record) claim(unit string, readOnly bool) error {
	if unit == "" {
		unit = r.URL
	}
	return locked(func() error {
		rs, err := list()
		if err != nil {
			return err
		}
		for _, o := range rs {
			if o.Broken || o.Name == r.Name || r.For == "" || o.Unit == "" { // of two that claim at one time the first has it
				continue
			}
			if o.For == r.For || o.Mount == r.For {
				return refused("%s is to be the place of %s already", r.For, o.Name)
			}
			switch {
			case o.Unit != unit && o.URL != r.URL || readOnly && o.readOnly():
			case o.For != "":
				return refused("%s is mounted on %s already, as %s; two mounts would destroy its file system: sluice umount %s", o.URL, o.For, o.Name, o.For)
			case (o.Face == faceUblk || o.Face == faceDevice) && inUse(o.Path):
				return refused("%s is attached as %s, which is in use; two mounts would destroy its file system", o.URL, o.Path)
			case o.Face == faceFile && underLoop(o.Path):
				return refused("%s is attached as %s, on which a loop device stands; two mounts would destroy its file system", o.URL, o.Path)
			}
		}
		r.Unit = unit
		return r.save()
	})
}

func (r *Record) readOnly() bool { return slices.Contains(r.Options, "ro") }

// underLoop reports whether a loop device stands on a file.
func underLoop(path string) bool {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return false
	}
	return slices.ContainsFunc(files, func(f string) bool {
		b, err := os.ReadFile(f)
		return err == nil && strings.TrimSpace(string(b)) == path
	})
}
