//go:build linux

package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// churn makes, moves and removes names from several processes. Each has a tree of its own, whose state it knows and checks,
// and all of them fight over the names of one common directory, where only errors that say "another was faster" will do.
type churn struct {
	dir    string
	seed   uint64
	ops    int
	procs  int
	worker int

	rng   *rand.Rand
	own   string
	tree  map[string]thing // by path below own; "" is its top
	links int              // names given so far
}

// thing is what a name must be.
type thing struct {
	dir    bool
	target string // of a symbolic link
	file   *content
}

// content is shared by the hard links of a file.
type content struct {
	seed  uint64
	size  int
	mode  fs.FileMode
	links int
}

const (
	maxThings  = 200
	maxContent = 96 << 10 // bytes
)

func (c *churn) run() (string, error) {
	if c.worker >= 0 {
		return "", c.work()
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(c.dir, "common"), 0o755); err != nil {
		return "", err
	}
	var cmds []*exec.Cmd
	for i := range c.procs {
		cmd := exec.Command(self, "-churn", "-worker", strconv.Itoa(i), "-seed", strconv.FormatUint(c.seed, 10), "-ops", strconv.Itoa(c.ops), c.dir)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err = cmd.Start(); err != nil {
			break
		}
		cmds = append(cmds, cmd)
	}
	for i, cmd := range cmds {
		if werr := cmd.Wait(); werr != nil {
			err = errors.Join(err, fmt.Errorf("process %d: %w", i, werr))
		}
	}
	if err == nil {
		// What is left of the fight can be listed and removed.
		err = os.RemoveAll(filepath.Join(c.dir, "common"))
	}
	return fmt.Sprintf("%d processes of %d operations on names", c.procs, c.ops), err
}

func (c *churn) work() error {
	c.rng = rand.New(rand.NewPCG(c.seed, uint64(c.worker)+1))
	c.own = filepath.Join(c.dir, "p"+strconv.Itoa(c.worker))
	c.tree = map[string]thing{"": {dir: true}}
	if err := os.Mkdir(c.own, 0o755); err != nil {
		return err
	}
	for n := range c.ops {
		var err error
		if c.rng.IntN(4) == 0 {
			err = c.fight()
		} else {
			err = c.step()
		}
		if err != nil {
			return fmt.Errorf("process %d, operation %d: %w", c.worker, n, err)
		}
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("process %d, at the end: %w", c.worker, err)
	}
	return os.RemoveAll(c.own)
}

// pick returns a random name of those that want agrees with, "" and false when there is none.
func (c *churn) pick(want func(string, thing) bool) (string, bool) {
	var names []string
	for p, t := range c.tree {
		if want(p, t) {
			names = append(names, p)
		}
	}
	if len(names) == 0 {
		return "", false
	}
	slices.Sort(names) // a map's order is not the seed's
	return names[c.rng.IntN(len(names))], true
}

func isDir(_ string, t thing) bool  { return t.dir }
func isFile(_ string, t thing) bool { return t.file != nil }
func notTop(p string, _ thing) bool { return p != "" }
func (c *churn) at(p string) string { return filepath.Join(c.own, p) }
func (c *churn) isEmpty(p string) bool {
	for q := range c.tree {
		if q != p && strings.HasPrefix(q, p+"/") {
			return false
		}
	}
	return true
}

// fresh is a name that nothing has, in a random directory; now and then a long one.
func (c *churn) fresh() string {
	dir, _ := c.pick(isDir)
	c.links++
	name := "n" + strconv.Itoa(c.links)
	if c.rng.IntN(10) == 0 {
		name += strings.Repeat("x", 255-len(name))
	}
	if len(dir) > 2000 {
		dir = "" // paths are bounded too
	}
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func bytesOf(seed uint64, n int) []byte {
	b := make([]byte, n)
	x := seed | 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

func (c *churn) step() error {
	op := c.rng.IntN(12)
	if len(c.tree) > maxThings {
		op = 6 + c.rng.IntN(2)
	}
	switch op {
	case 0, 1:
		return c.create()
	case 2:
		p := c.fresh()
		c.tree[p] = thing{dir: true}
		return os.Mkdir(c.at(p), 0o755)
	case 3:
		p := c.fresh()
		t := fmt.Sprintf("../%d/nowhere", c.rng.IntN(1000))
		c.tree[p] = thing{target: t}
		return os.Symlink(t, c.at(p))
	case 4:
		p, ok := c.pick(isFile)
		if !ok {
			return c.create()
		}
		q := c.fresh()
		t := c.tree[p]
		t.file.links++
		c.tree[q] = t
		return os.Link(c.at(p), c.at(q))
	case 5:
		return c.rename()
	case 6:
		p, ok := c.pick(func(p string, t thing) bool { return !t.dir })
		if !ok {
			return nil
		}
		if f := c.tree[p].file; f != nil {
			f.links--
		}
		delete(c.tree, p)
		return os.Remove(c.at(p))
	case 7:
		p, ok := c.pick(func(p string, t thing) bool { return t.dir && p != "" })
		if !ok {
			return nil
		}
		if !c.isEmpty(p) {
			if err := unix.Rmdir(c.at(p)); !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
				return errors.Join(fmt.Errorf("rmdir of %s, which is not empty, is not refused as that", p), err)
			}
			return nil
		}
		delete(c.tree, p)
		return os.Remove(c.at(p))
	case 8, 9:
		return c.rewrite()
	case 10:
		p, ok := c.pick(isFile)
		if !ok {
			return nil
		}
		f := c.tree[p].file
		f.mode = fs.FileMode(0o600 | c.rng.IntN(0o200))
		return os.Chmod(c.at(p), f.mode)
	default:
		if p, ok := c.pick(notTop); ok {
			return c.verify(p, c.tree[p])
		}
		return nil
	}
}

func (c *churn) create() error {
	p := c.fresh()
	f := &content{seed: c.rng.Uint64(), size: c.rng.IntN(maxContent), mode: 0o644, links: 1}
	c.tree[p] = thing{file: f}
	h, err := os.OpenFile(c.at(p), os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
	if err != nil {
		return err
	}
	_, err = h.Write(bytesOf(f.seed, f.size))
	if err == nil && c.rng.IntN(4) == 0 {
		err = h.Sync()
	}
	return errors.Join(err, h.Close())
}

// rewrite gives a file other bytes: longer or shorter, by way of truncation to nothing or not.
func (c *churn) rewrite() error {
	p, ok := c.pick(isFile)
	if !ok {
		return c.create()
	}
	f := c.tree[p].file
	f.seed, f.size = c.rng.Uint64(), c.rng.IntN(maxContent)
	flags := os.O_WRONLY
	if c.rng.IntN(2) == 0 {
		flags |= os.O_TRUNC
	}
	h, err := os.OpenFile(c.at(p), flags, 0)
	if err != nil {
		return err
	}
	if _, err = h.Write(bytesOf(f.seed, f.size)); err == nil {
		err = h.Truncate(int64(f.size))
	}
	return errors.Join(err, h.Close())
}

// rename moves anything, to a new name or onto one of its kind.
func (c *churn) rename() error {
	p, ok := c.pick(notTop)
	if !ok {
		return nil
	}
	t := c.tree[p]
	q := c.fresh()
	if !t.dir && c.rng.IntN(2) == 0 {
		q, _ = c.pick(func(q string, o thing) bool { return !o.dir })
	}
	if t.dir && strings.HasPrefix(q, p+"/") {
		if err := os.Rename(c.at(p), c.at(q)); !errors.Is(err, unix.EINVAL) {
			return errors.Join(errors.New("a directory moved into itself is not refused as that"), err)
		}
		return nil
	}
	if err := os.Rename(c.at(p), c.at(q)); err != nil {
		return err
	}
	if old := c.tree[q]; old.file != nil {
		if old.file == t.file {
			return nil // two names of one file: nothing happens (rename(2))
		}
		old.file.links--
	}
	if q == p {
		return nil
	}
	delete(c.tree, p)
	c.tree[q] = t
	if t.dir {
		for k, v := range c.tree {
			if rest, below := strings.CutPrefix(k, p+"/"); below {
				delete(c.tree, k)
				c.tree[q+"/"+rest] = v
			}
		}
	}
	return nil
}

func (c *churn) verify(p string, t thing) error {
	st, err := os.Lstat(c.at(p))
	if err != nil {
		return err
	}
	switch {
	case t.dir:
		if !st.IsDir() {
			return fmt.Errorf("%s is %v, not a directory", p, st.Mode())
		}
	case t.target != "":
		if got, err := os.Readlink(c.at(p)); err != nil || got != t.target {
			return fmt.Errorf("%s leads to %q, not %q: %w", p, got, t.target, err)
		}
	default:
		if !st.Mode().IsRegular() || st.Size() != int64(t.file.size) || st.Mode().Perm() != t.file.mode {
			return fmt.Errorf("%s is %v of %d bytes, not %v of %d", p, st.Mode(), st.Size(), t.file.mode, t.file.size)
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Nlink) != t.file.links {
			return fmt.Errorf("%s has %d links, not %d", p, sys.Nlink, t.file.links)
		}
		got, err := os.ReadFile(c.at(p))
		if err != nil {
			return err
		}
		if err := same(got, bytesOf(t.file.seed, t.file.size), 0); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// check compares the whole tree with what must be there.
func (c *churn) check() error {
	seen := make(map[string]bool)
	err := filepath.WalkDir(c.own, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		p, _ := filepath.Rel(c.own, path)
		if p == "." {
			p = ""
		}
		t, ok := c.tree[p]
		if !ok {
			return fmt.Errorf("%s is there and must not be", p)
		}
		if seen[p] {
			return fmt.Errorf("%s is listed twice", p)
		}
		seen[p] = true
		return c.verify(p, t)
	})
	if err != nil {
		return err
	}
	for p := range c.tree {
		if !seen[p] {
			return fmt.Errorf("%s is not listed", p)
		}
	}
	return nil
}

// fight does something in the directory that all processes share. Whoever comes second is told so and nothing else.
func (c *churn) fight() error {
	common := filepath.Join(c.dir, "common")
	name := func() string { return filepath.Join(common, "c"+strconv.Itoa(c.rng.IntN(20))) }
	var err error
	switch c.rng.IntN(7) {
	case 0, 1:
		// A file's bytes are those of a seed that it begins with: a reader sees one writer's, or a beginning of them.
		err = c.writeTagged(name())
	case 2:
		err = os.Rename(name(), name())
	case 3:
		err = os.Remove(name())
	case 4:
		err = os.Link(name(), name())
	case 5:
		err = os.Mkdir(name(), 0o755)
	default:
		var l []os.DirEntry
		if l, err = os.ReadDir(common); err == nil {
			seen := make(map[string]bool)
			for _, e := range l {
				if seen[e.Name()] {
					return fmt.Errorf("%s is listed twice", e.Name())
				}
				seen[e.Name()] = true
			}
		}
	}
	for _, fine := range []error{unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.EISDIR, unix.ENOTDIR, unix.ESTALE, unix.EPERM, unix.EBUSY} {
		if errors.Is(err, fine) {
			return nil // EPERM: a hard link to a directory; EBUSY: another client removes what is open there
		}
	}
	return err
}

func (c *churn) writeTagged(p string) error {
	h, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(p))
	_, err = h.Write(bytesOf(sum.Sum64(), 1+c.rng.IntN(8192)))
	return errors.Join(err, h.Close())
}
