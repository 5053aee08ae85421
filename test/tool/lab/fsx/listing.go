//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// listing reads a large directory again and again while another process renames, makes and removes other files in it. A
// file that was there all the time must be seen exactly once in each reading; one that moves, at most twice, once under
// each name.
type listing struct {
	dir     string
	create  string // where the files are made, dir if empty: the server's end of a mount is faster
	seed    uint64
	files   int
	rounds  int
	renames bool
}

const readAtOnce = 97 // entries asked for at a time

func (l *listing) run() (string, error) {
	if l.renames {
		return "", l.disturb()
	}
	if l.create == "" {
		l.create = l.dir
	}
	d, made := filepath.Join(l.dir, "many"), filepath.Join(l.create, "many")
	if err := os.Mkdir(made, 0o755); err != nil {
		return "", err
	}
	for i := range l.files {
		name := fmt.Sprintf("stay-%06d", i)
		if i%10 == 0 {
			name = fmt.Sprintf("move-%06d-0", i) // one in ten moves
		}
		if err := os.WriteFile(filepath.Join(made, name), nil, 0o644); err != nil {
			return "", err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(self, "-list", "-rename", "-seed", strconv.FormatUint(l.seed, 10), "-files", strconv.Itoa(l.files), l.dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	stop, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	for r := 0; r < l.rounds && err == nil; r++ {
		if err = l.once(d); err != nil {
			err = fmt.Errorf("reading %d: %w", r, err)
		}
	}
	_ = stop.Close() // the other one ends
	out, rerr := io.ReadAll(said)
	err = errors.Join(err, rerr, cmd.Wait())
	if err == nil {
		err = os.RemoveAll(made)
	}
	return fmt.Sprintf("%d files listed %d times during %s", l.files, l.rounds, strings.TrimSpace(string(out))), err
}

func (l *listing) once(d string) error {
	f, err := os.Open(d)
	if err != nil {
		return err
	}
	defer f.Close()
	seen := make(map[string]int)
	for {
		names, err := f.Readdirnames(readAtOnce)
		for _, n := range names {
			seen[n]++
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	for i := range l.files {
		if i%10 == 0 {
			continue
		}
		name := fmt.Sprintf("stay-%06d", i)
		if seen[name] != 1 {
			return fmt.Errorf("%s was there all the time and was seen %d times", name, seen[name])
		}
	}
	return nil
}

// disturb moves files from name to name, and makes and removes others, until standard input ends.
func (l *listing) disturb() error {
	d := filepath.Join(l.dir, "many")
	rng := rand.New(rand.NewPCG(l.seed, 1))
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(end)
	}()
	now := make(map[int]int) // file -> its name's number
	renamed, made := 0, 0
	for {
		select {
		case <-end:
			fmt.Printf("%d renames and %d files made and removed\n", renamed, made)
			return nil
		default:
		}
		i := rng.IntN((l.files+9)/10) * 10
		from, to := fmt.Sprintf("move-%06d-%d", i, now[i]), fmt.Sprintf("move-%06d-%d", i, now[i]+1)
		if err := os.Rename(filepath.Join(d, from), filepath.Join(d, to)); err != nil {
			return err
		}
		now[i]++
		if renamed++; renamed%4 == 0 {
			p := filepath.Join(d, fmt.Sprintf("new-%d", renamed))
			if err := os.WriteFile(p, nil, 0o644); err != nil {
				return err
			}
			if err := os.Remove(p); err != nil {
				return err
			}
			made++
		}
	}
}
