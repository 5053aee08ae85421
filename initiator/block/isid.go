package block

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// An ISID is a part of the name of an initiator port, and a target keeps reservations and registrations by that name: it has
// to come back when a volume is opened again (RFC 7143 section 10.1.1). Two sessions with one ISID at one portal group end
// each other, so that no two live ones may share it: hosts do not, because each has a seed of its own, and volumes opened
// twice do not, because each holds a lock on its ISID, in a file that all processes with the seed share.

// DefaultStateDir is where the commands keep the seed: SLUICE_INITIATOR_STATE, or a directory of the system for root and of
// the user for others; empty where there is none.
func DefaultStateDir() string {
	if d := os.Getenv("SLUICE_INITIATOR_STATE"); d != "" {
		return d
	}
	if os.Geteuid() == 0 {
		return "/var/lib/sluice-initiator"
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "sluice-initiator")
	}
	if h, err := os.UserHomeDir(); err == nil {
		return filepath.Join(h, ".local", "state", "sluice-initiator")
	}
	return ""
}

// isidSlots bounds how often one unit is opened on one host with ISIDs that come back.
const isidSlots = 64

// port is an ISID and what keeps others from it.
type port struct {
	isid iscsi.ISID
	lock io.Closer // nil for a random one
}

func (p *port) close() {
	if p.lock != nil {
		_ = p.lock.Close() // a lock file that is only read
		p.lock = nil
	}
}

// port finds the ISID of a URL that no other session of this host uses now.
func (i *Initiator) port(u *URL) port {
	if i.o.StateDir != "" {
		p, err := i.keptPort(u)
		if err == nil {
			return p
		}
		i.o.Log.Warn("the target will take this host for a new one: its ISID is random, and persistent reservations do not come back",
			"error", err)
	}
	return port{isid: iscsi.RandomISID(0)}
}

func (i *Initiator) keptPort(u *URL) (port, error) {
	if err := os.MkdirAll(i.o.StateDir, 0o700); err != nil {
		return port{}, err
	}
	seed, err := hostSeed(i.o.StateDir)
	if err != nil {
		return port{}, err
	}
	f, err := os.OpenFile(filepath.Join(i.o.StateDir, "isid-locks"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return port{}, err
	}
	name := i.o.Name
	if u.Initiator != "" {
		name = u.Initiator
	}
	for slot := range isidSlots {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%d\n%s\n%d", seed, name, u.Target, u.LUN, u.at(), slot))
		isid := iscsi.ISID{0x80, sum[0], sum[1], sum[2], sum[3], sum[4]} // "Random", section 11.12.5
		at := int64(0)
		for _, b := range sum[:5] {
			at = at<<8 | int64(b)
		}
		// The lock is the open file's: it ends with the process, however that ends.
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: at, Len: 1})
		if err == nil {
			return port{isid, f}, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return port{}, errors.Join(fmt.Errorf("block: lock an ISID: %w", err), f.Close())
		}
	}
	return port{}, errors.Join(fmt.Errorf("block: this host has opened the unit %d times", isidSlots), f.Close())
}

// hostSeed is what tells this host from others of its name: a random number of its own, and what tells copies of one
// machine's image apart.
func hostSeed(dir string) (string, error) {
	path := filepath.Join(dir, "isid-seed")
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if b, err = makeSeed(dir, path); err != nil {
			return "", err
		}
	}
	if err != nil {
		return "", err
	}
	if len(b) < 32 {
		return "", fmt.Errorf("block: %s is cut short; remove it, and the host gets a new ISID", path)
	}
	for _, p := range []string{"/etc/machine-id", "/sys/class/dmi/id/product_uuid"} {
		if more, err := os.ReadFile(p); err == nil {
			b = append(append(b, '\n'), more...)
		}
	}
	return string(b), nil
}

// makeSeed writes a seed whole or not at all; of several at once the first one's counts.
func makeSeed(dir, path string) ([]byte, error) {
	f, err := os.CreateTemp(dir, ".seed")
	if err != nil {
		return nil, err
	}
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	_, err = f.WriteString(hex.EncodeToString(raw[:]) + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		if err = os.Link(f.Name(), path); errors.Is(err, os.ErrExist) {
			err = nil
		}
	}
	if err = errors.Join(err, os.Remove(f.Name())); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}
