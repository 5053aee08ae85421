package shm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// roleEnv makes this test binary the process at the other end of a connection, and pathEnv says where.
const (
	roleEnv = "SHM_TEST_ROLE"
	pathEnv = "SHM_TEST_PATH"
)

const killBytes = 256 << 10 // of each Write and Read of such a process

// play is such a process. It works until it is killed.
func play(role string) int {
	if err := act(role, os.Getenv(pathEnv)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// act connects, is told an STag by a Send, and writes to it and reads from it for ever.
func act(role, path string) error {
	ctx := context.Background()
	d := New(Options{})
	q, err := d.NewQP(transport.QPOptions{Sends: 64, Recvs: 64})
	if err != nil {
		return err
	}
	s, err := mem.Shared.NewSlab(2*killBytes + 64)
	if err == nil {
		err = d.Register(s)
	}
	if err == nil {
		_, err = q.PostRecv([]transport.Recv{{Buf: mem.Span{Slab: s, Off: 2 * killBytes, Len: 64}}})
	}
	if err != nil {
		return err
	}
	params := transport.ConnParams{ReadsIn: 8, ReadsOut: 8}
	if role == "listen" {
		l, err := d.Listen(ctx, path)
		if err != nil {
			return err
		}
		fmt.Println("listening")
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Accept(ctx, q, params)
		}
		if err != nil {
			return err
		}
	} else if _, err = d.Dial(ctx, path, q, params); err != nil {
		return err
	}
	var wc [16]transport.WC
	await := func(n int) error {
		for n > 0 {
			k, err := q.Poll(wc[:])
			if err != nil {
				return err
			}
			if n -= k; k == 0 {
				if err := q.Wait(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := await(1); err != nil {
		return err
	}
	told := s.Bytes()[2*killBytes:]
	at := transport.Remote{STag: binary.LittleEndian.Uint32(told), Off: binary.LittleEndian.Uint64(told[4:])}
	for n := 0; ; n++ {
		_, err := q.Post([]transport.WR{
			{Op: transport.OpWrite, Flags: transport.Signaled, Local: []mem.Span{{Slab: s, Len: killBytes}}, Remote: at},
			{Op: transport.OpRead, Flags: transport.Signaled, Local: []mem.Span{{Slab: s, Off: killBytes, Len: killBytes}}, Remote: at},
		})
		if err == nil {
			err = await(2)
		}
		if err != nil {
			return err
		}
		if n == 50 {
			fmt.Println("working")
			if role == "idle" {
				select {}
			}
		}
	}
}

// A process that is killed at any moment ends its connection here, at once and with words that say so, and leaves nothing behind: no
// mapping, no descriptor, no window.
func TestAKilledPeerLeavesNothingBehind(t *testing.T) {
	for _, role := range []string{"dial", "listen", "idle"} {
		t.Run(role, func(t *testing.T) {
			for range 5 {
				killOnce(t, role)
			}
		})
	}
}

func killOnce(t *testing.T, role string) {
	maps, fds := memfds(t)
	socks := sockets(t)
	path := filepath.Join(t.TempDir(), "s")
	e := newEnd(t, Options{}, transport.QPOptions{})
	s, err := mem.Shared.NewSlab(killBytes + 4096)
	if err == nil {
		err = e.dev.Register(s)
	}
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(exe)
	child.Env = append(os.Environ(), roleEnv+"="+role, pathEnv+"="+path)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	say := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the process said %q, want %q", lines.Text(), want)
		}
	}
	ctx := testCtx(t)
	params := reads(transport.ConnParams{})
	var l transport.Listener
	if role != "listen" {
		if l, err = e.dev.Listen(ctx, path); err != nil {
			t.Fatal(err)
		}
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	if role == "listen" {
		say("listening")
		_, err = e.dev.Dial(ctx, path, e.qp, params)
	} else {
		var r transport.Request
		if r, err = l.Accept(ctx); err == nil {
			err = r.Accept(ctx, e.qp, params)
		}
		err = errors.Join(err, l.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	w := e.bind(mem.Span{Slab: s, Len: killBytes}, transport.RemoteRead|transport.RemoteWrite)
	tell := mem.Span{Slab: s, Off: killBytes, Len: 12}
	binary.LittleEndian.PutUint32(tell.Bytes(), w.Remote().STag)
	binary.LittleEndian.PutUint64(tell.Bytes()[4:], w.Remote().Off)
	e.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{tell}})
	e.recv(1, tell)
	ended := make(chan error, 1)
	go func() { ended <- e.drain() }()
	say("working")
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, ErrPeerGone) || !errors.Is(err, transport.ErrLost) {
		t.Errorf("ended with %v", err)
	}
	if len(e.got) != 1 || e.got[0].Err == nil || w.Valid() {
		t.Errorf("came back: %+v; the window is valid: %t", e.got, w.Valid())
	}
	_ = child.Wait() // it was killed
	if g := e.dev.Gauges(); g != (transport.Gauges{}) {
		t.Errorf("left: %+v", g)
	}
	if err := errors.Join(e.dev.Unregister(s), s.Close(), e.dev.Close()); err != nil {
		t.Error(err)
	}
	if m, f := memfds(t); m != maps || f != fds {
		t.Errorf("%d mappings and %d files of memory are left, there were %d and %d", m, f, maps, fds)
	}
	if n := sockets(t); n != socks {
		t.Errorf("%d sockets are left, there were %d", n, socks)
	}
}
