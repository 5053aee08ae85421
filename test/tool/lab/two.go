package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// A scenario with a Second script has two guests and a wire between them: an Ethernet of their own, eth1 in each (wire_up in
// lib.sh gives it 10.8.0.1 in the first guest and 10.8.0.2 in the second). Only there can packets be lost and cables be pulled.
// The first guest's logs lie where those of a single one do, the second's in the directory second.

const second = "second"

// wireEnd is the last digit of a guest's hardware address on the wire: QEMU would give both the same one.
func wireEnd(name string) string {
	if name == second {
		return "2"
	}
	return "1"
}

// bootAll boots the scenario's guest, or both.
func (l *lab) bootAll(r *Run) ([]*guest, error) {
	script := func(name string) string {
		if filepath.Dir(name) == "." {
			return filepath.Join(l.src, "scenarios", name)
		}
		return name
	}
	first := r.s.Script
	if first == "" {
		first = r.s.Name + ".sh"
	}
	if r.s.Second == "" {
		g, err := l.boot(r, "", script(first), nil)
		return []*guest{g}, err
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the wire: %w", err)
	}
	a, b := os.NewFile(uintptr(fds[0]), "wire"), os.NewFile(uintptr(fds[1]), "wire")
	defer a.Close()
	defer b.Close()
	one, err := l.boot(r, "", script(first), a)
	if err != nil {
		return nil, err
	}
	two, err := l.boot(r, second, script(r.s.Second), b)
	return []*guest{one, two}, err
}

// waitAll returns when all guests are off. When one has failed the others are ended: what they wait for will not come.
func waitAll(guests []*guest, cancel func()) error {
	if len(guests) == 1 {
		return guests[0].wait()
	}
	ends := make(chan error, len(guests))
	for _, g := range guests {
		go func() {
			err := g.wait()
			if err != nil && g.name != "" {
				err = fmt.Errorf("%s: %w", g.name, err)
			}
			ends <- err
		}()
	}
	var first error
	for range guests {
		if err := <-ends; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}

// board is where two guests meet: `tell NAME [TEXT]` leaves a note, `await NAME` waits for it and prints it.
type board struct {
	mu    sync.Mutex
	notes map[string]string
	bell  chan struct{} // closed and replaced with each note
}

func newBoard() *board { return &board{notes: map[string]string{}, bell: make(chan struct{})} }

func (b *board) answer(ctx context.Context, name string, args []string) (string, error) {
	if len(args) == 0 {
		return "", errors.New("a note needs a name")
	}
	if name == "tell" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.notes[args[0]] = strings.Join(args[1:], " ")
		close(b.bell)
		b.bell = make(chan struct{})
		return "", nil
	}
	for {
		b.mu.Lock()
		text, ok := b.notes[args[0]]
		bell := b.bell
		b.mu.Unlock()
		if ok {
			return text + "\n", nil
		}
		select {
		case <-bell:
		case <-ctx.Done():
			return "", fmt.Errorf("no note %s came: %w", args[0], ctx.Err())
		}
	}
}
