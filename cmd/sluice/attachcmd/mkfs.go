package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// edge is how much of a volume's beginning and end must be zero for it to be called empty: boot sectors, partition
// tables at both ends, superblocks of file systems (btrfs at 64 KiB) and RAID metadata lie there.
const edge = 1 << 20

// makeFS makes a file system, but not over anything: a wrong URL must not cost data.
func makeFS(ctx context.Context, dev, kind string, force bool, say func(string, ...any)) error {
	if kind == "" || strings.ContainsFunc(kind, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
		return ui.Usagef("--mkfs %q is no file system type", kind)
	}
	if !force {
		if err := mustBeEmpty(ctx, dev); err != nil {
			return err
		}
	}
	args := []string{}
	switch {
	case strings.HasPrefix(kind, "ext"):
		args = []string{"-q", "-F"} // it asks about whole disks otherwise
	case kind == "xfs":
		args = []string{"-q"}
		if force {
			args = append(args, "-f")
		}
	case kind == "btrfs" || kind == "f2fs":
		args = []string{"-q"}
		if force {
			args = append(args, "-f")
		}
	}
	began := time.Now()
	say("making %s on %s", kind, dev)
	if err := tool(ctx, "mkfs."+kind, append(args, dev)...); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return refused("there is no mkfs.%s on this machine; install the tools of that file system", kind)
		}
		return err
	}
	say("made %s in %v", kind, time.Since(began).Round(time.Millisecond))
	return nil
}

// mustBeEmpty refuses a device on which blkid finds a signature, or that is not blank where signatures lie: blkid knows
// many formats and not all.
func mustBeEmpty(ctx context.Context, dev string) error {
	out, err := exec.CommandContext(ctx, "blkid", "--probe", "--output", "export", "--", dev).Output()
	var ee *exec.ExitError
	switch {
	case err == nil:
		return refused("the volume is not empty (%s); --force destroys what is on it", signature(string(out)))
	case errors.As(err, &ee) && ee.ExitCode() == 2: // nothing found
	case errors.As(err, &ee) && ee.ExitCode() == 8: // several that contradict one another
		return refused("the volume is not empty: blkid finds signatures of several formats; --force destroys what is on it")
	default:
		return fmt.Errorf("blkid cannot say whether the volume is empty: %w; --force goes ahead all the same", err)
	}
	f, err := os.Open(dev)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	at, err := firstNonZero(f, size)
	if err != nil {
		return fmt.Errorf("whether the volume is empty: %w", err)
	}
	if at >= 0 {
		return refused("the volume is not empty: byte %d is not zero, though blkid knows no format of it; --force destroys what is on it", at)
	}
	return nil
}

// firstNonZero looks at both edges of a device; -1 says that they are blank.
func firstNonZero(r io.ReaderAt, size int64) (int64, error) {
	b := make([]byte, 64<<10)
	for _, from := range []int64{0, max(0, size-edge)} {
		for at := from; at < min(from+edge, size); {
			n, err := r.ReadAt(b[:min(int64(len(b)), size-at)], at)
			for i, c := range b[:n] {
				if c != 0 {
					return at + int64(i), nil
				}
			}
			if n == 0 {
				return 0, errors.Join(err, io.ErrUnexpectedEOF)
			}
			at += int64(n)
		}
	}
	return -1, nil
}

// signature is what blkid found, in one line.
func signature(out string) string {
	var words []string
	for _, w := range strings.Fields(out) {
		if !strings.HasPrefix(w, "DEVNAME=") {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}
