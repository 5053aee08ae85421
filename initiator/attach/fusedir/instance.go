package fusedir

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// instance is what one life of a mount calls itself to the lock manager: no other has the name, neither another mount nor one of the same
// directory in a container of the same host name. The name lies in a file, so that the next life can free what this one held, should
// it be killed; the file is locked while its owner lives.
type instance struct {
	name string
	dead string   // of the life before, which was killed
	f    *os.File // nil: nothing is kept
}

// newInstance takes the place of the dead instance of a mount. Without a directory for the names, or where another instance of the mount
// lives, it frees nothing and keeps nothing.
func newInstance(state, machine, source, dir string) (*instance, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	i := &instance{name: fmt.Sprintf("%s-sluice-%s", machine, hex.EncodeToString(b[:]))}
	if state == "" {
		return i, nil
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(source + "\x00" + dir))
	f, err := os.OpenFile(filepath.Join(state, hex.EncodeToString(sum[:12])), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return i, f.Close()
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	old, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if line, ok := strings.CutSuffix(string(old), "\n"); ok { // a name that was cut off held nothing yet
		i.dead = line
	}
	i.f = f
	return i, nil
}

// keep writes the name down before anything is locked under it. What the life before held has been freed.
func (i *instance) keep() error {
	if i.f == nil {
		return nil
	}
	if err := i.f.Truncate(0); err != nil {
		return err
	}
	if _, err := i.f.WriteAt([]byte(i.name+"\n"), 0); err != nil {
		return err
	}
	return i.f.Sync()
}

// end forgets the name of an instance that holds nothing any more.
func (i *instance) end() error {
	if i == nil || i.f == nil {
		return nil
	}
	return errors.Join(os.Remove(i.f.Name()), i.f.Close())
}

// drop gives the place up as it was: the life before is still to be freed.
func (i *instance) drop() error {
	if i.f == nil {
		return nil
	}
	if i.dead == "" {
		return i.end()
	}
	return i.f.Close()
}
