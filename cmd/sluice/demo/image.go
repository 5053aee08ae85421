package demo

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// MissingToolError says which program is not installed and which Debian package has it.
type MissingToolError struct{ Tool, Package string }

func (e *MissingToolError) Error() string {
	return fmt.Sprintf("%s is not installed; install the package %s, or give a file system image with --image FILE", e.Tool, e.Package)
}

// lookTool finds a program that Debian keeps in sbin, which is not in an ordinary user's PATH.
func lookTool(tool, pkg string) (string, error) {
	if p, err := exec.LookPath(tool); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		p := filepath.Join(dir, tool)
		if fi, err := os.Stat(p); err == nil && fi.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", &MissingToolError{Tool: tool, Package: pkg}
}

// makeImage makes an ext4 file system of size bytes at path, with files in it, as an ordinary user: mkfs.ext4 fills
// it from a directory, nothing is mounted.
func makeImage(ctx context.Context, dir, path string, size int64) (files int, err error) {
	mkfs, err := lookTool("mkfs.ext4", "e2fsprogs")
	if err != nil {
		return 0, err
	}
	content := filepath.Join(dir, "content")
	if err := os.MkdirAll(filepath.Join(content, "notes"), 0o755); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(content)) }()
	for i := range 24 {
		name := filepath.Join(content, "notes", fmt.Sprintf("page-%02d", i))
		b := make([]byte, 1<<(6+i%14))
		if _, err := rand.Read(b); err != nil {
			return 0, err
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			return 0, err
		}
		files++
	}
	if err := os.WriteFile(filepath.Join(content, "large"), make([]byte, 8<<20), 0o644); err != nil {
		return 0, err
	}
	files++
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, mkfs, "-q", "-F", "-L", "sluice-demo", "-d", content, path).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("mkfs.ext4 failed: %w: %s", err, out)
	}
	return files, nil
}

// fsck checks the file system in the image at path, reading only. It reports false where no e2fsck is installed or the
// image holds something else.
func fsck(ctx context.Context, path string) (bool, error) {
	tool, err := lookTool("e2fsck", "e2fsprogs")
	if err != nil {
		return false, nil //nolint:nilerr // the demo goes on without the check and says so
	}
	out, err := exec.CommandContext(ctx, tool, "-f", "-n", path).CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("e2fsck finds fault with what was read back: %w: %s", err, out)
	}
	return true, nil
}

// isExt4 looks for the superblock's magic number at byte 1080.
func isExt4(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [2]byte
	_, err = f.ReadAt(b[:], 1080)
	return err == nil && b == [2]byte{0x53, 0xef}
}

func sumFile(path string) (string, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), n, err
}
