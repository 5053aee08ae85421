// Package attachcmd has the commands that make a volume local: attach, detach, attachments, map, unmap, mount
// and umount. Each
// attachment is served by a helper process of its own, and recorded in a file that only its user can read.
package attachcmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/internal/savefile"
)

// Record is one attachment.
type Record struct {
	Name  string `json:"name"`
	URL   string `json:"url"` // without secrets
	Face  string `json:"face"`
	Path  string `json:"path"`            // what programs open: the device, the socket or the file
	Dir   string `json:"dir,omitempty"`   // FUSE: the directory the helper mounted on
	Index int    `json:"index,omitempty"` // nbd: the device's number
	Loop  string `json:"loop,omitempty"`  // the loop device that mount made
	Mount string `json:"mount,omitempty"` // where mount(8) put it
	// For is where sluice mount puts, or is about to put, its file system, and Unit the volume's own name (VPD page 83h).
	For  string `json:"for,omitempty"`
	Unit string `json:"unit,omitempty"`
	PID  int    `json:"pid"` // the helper
	// Options are those that make a difference to who uses it, in the table's words.
	Options []string  `json:"options"`
	Start   uint64    `json:"start"` // its start in clock ticks since boot: a PID alone may be another's by now
	Since   time.Time `json:"since"`
	Log     string    `json:"log"`
	Broken  bool      `json:"broken,omitempty"` // the helper is gone
	// Starting says that the helper does not serve yet.
	Starting bool `json:"starting,omitempty"`
	// Away is why the target cannot be reached at the moment, and AwaySince when that was seen.
	Away      string    `json:"away,omitempty"`
	AwaySince time.Time `json:"away_since,omitzero"`
	// Status is what the helper says; it is not kept.
	Status *Status `json:"status,omitempty"`
}

// dir is where records live: /run/sluice-attach for root, else below $XDG_RUNTIME_DIR or the temporary directory. Not
// /run/sluice, which is the target's on a machine that is both, and goes when the target ends.
func dir() (string, error) {
	d := "/run/sluice-attach"
	if os.Geteuid() != 0 {
		if d = os.Getenv("XDG_RUNTIME_DIR"); d == "" {
			d = filepath.Join(os.TempDir(), fmt.Sprintf("sluice-run-%d", os.Geteuid()))
		} else {
			d = filepath.Join(d, "sluice")
		}
	}
	if x := os.Getenv("SLUICE_RUNTIME_DIR"); x != "" {
		d = x
	}
	if err := os.MkdirAll(d, 0o700); err != nil {
		return "", err
	}
	fi, err := os.Lstat(d)
	if err != nil {
		return "", err
	}
	// The fallback lies in a directory that everyone may write: it must be ours.
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || !fi.IsDir() || int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s does not belong to this user; set XDG_RUNTIME_DIR", d)
	}
	return d, nil
}

// stateDir is where what has to outlive a boot lies, each user's apart; empty where there is no place.
func stateDir() string {
	if x := os.Getenv("SLUICE_STATE_DIR"); x != "" {
		return x
	}
	if os.Geteuid() == 0 {
		return "/var/lib/sluice-attach"
	}
	if x := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(x) {
		return filepath.Join(x, "sluice")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local/state/sluice")
	}
	return ""
}

func recordPath(d, name string) string { return filepath.Join(d, name+".json") }

func (r *Record) save() error {
	d, err := dir()
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return savefile.Replace(recordPath(d, r.Name), b)
}

// locked runs f while no other process of this user changes records.
func locked(f func() error) error {
	d, err := dir()
	if err != nil {
		return err
	}
	l, err := os.OpenFile(filepath.Join(d, ".lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer l.Close() // and with it the lock
	if err := syscall.Flock(int(l.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", l.Name(), err)
	}
	return f()
}

// update changes a record and its file: helper and mount both do, each its own part of it.
func (r *Record) update(change func(*Record)) error {
	change(r)
	return locked(func() error {
		d, err := dir()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(recordPath(d, r.Name))
		if err != nil {
			return err
		}
		now := &Record{}
		if err := json.Unmarshal(b, now); err != nil {
			return fmt.Errorf("record of %s: %w", r.Name, err)
		}
		change(now)
		return now.save()
	})
}

func (r *Record) remove() error {
	d, err := dir()
	if err != nil {
		return err
	}
	err = os.Remove(recordPath(d, r.Name))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return err
}

// alive reports whether the helper still runs.
func (r *Record) alive() bool {
	start, err := startOf(r.PID)
	return err == nil && start == r.Start
}

// dying reports whether the helper was killed and has a thread that cannot end yet: its first one, or another that outlives that.
func (r *Record) dying() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.PID))
	i := bytes.LastIndexByte(b, ')')
	return err == nil && r.alive() && (bytes.HasPrefix(b[i+1:], []byte(" Z")) || fusemount.Dying(uint32(r.PID)))
}

// startOf is field 22 of /proc/PID/stat (proc(5)), after the command's name, which may hold anything.
func startOf(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 || f[0] == "Z" && !threads(pid) {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// threads reports whether a process whose first thread has ended has others: until the last has, its files are open.
func threads(pid int) bool {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err == nil && len(tasks) > 1
}

// list reads all records, oldest first.
func list() ([]*Record, error) {
	d, err := dir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(d)
	if err != nil {
		return nil, err
	}
	out := []*Record{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		f := filepath.Join(d, e.Name())
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue // detached this moment
		}
		r := &Record{}
		if err == nil {
			err = json.Unmarshal(b, r)
		}
		if err != nil {
			return nil, fmt.Errorf("record %s: %w", f, err)
		}
		r.Broken = !r.alive() || r.dying()
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *Record) int { return a.Since.Compare(b.Since) })
	return out, nil
}

// find looks an attachment up by name, path, mount point or URL.
func find(what string) (*Record, error) {
	rs, err := list()
	if err != nil {
		return nil, err
	}
	for _, r := range rs {
		if r.is(what) {
			return r, nil
		}
	}
	return nil, fmt.Errorf("nothing is attached as %s; see sluice attachments", what)
}

// is reports whether a person means this attachment by its name, path, mount point or URL.
func (r *Record) is(what string) bool {
	abs, err := filepath.Abs(what)
	if err != nil {
		abs = what
	}
	return r.Name == what || r.URL == what || abs == r.Path || abs == r.Mount && r.Mount != "" || abs == r.Dir && r.Dir != "" ||
		r.Mount != "" && real(abs) == r.Mount
}

// real is an absolute path without symbolic links, as the kernel names a mount point. What cannot be looked at, as a directory whose
// server is dead, keeps its last name.
func real(abs string) string {
	if p, err := filepath.EvalSymlinks(abs); err == nil {
		return p
	}
	if d, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		return filepath.Join(d, filepath.Base(abs))
	}
	return abs
}
