//go:build ceph && cgo && linux

package radosstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/ceph"
	"github.com/sluice-storage/sluice/target/internal/gateway"
)

// A gateway as a process of its own, so that it can be stopped and killed by signals. It owns the volume "vol" whenever it can, and its
// data is the object "data": it writes its name and a number there again and again, and says on its output what it knows of.

const (
	envChild = "SLUICE_TEST_GATEWAY_CONF"
	envName  = "SLUICE_TEST_GATEWAY_NAME"
	dataName = "data"
)

func options(conf string) Options {
	return Options{Ceph: ceph.Options{Conf: conf, OSDTimeout: 20 * time.Second}, Pool: "rbd", Namespace: "group"}
}

// medium is the object.
type medium struct {
	name string
	tell func(format string, args ...any)
	lost func(error)
}

// data is the object in one term.
type data struct {
	m       *medium
	objects *ceph.IoCtx
	term    uint64
	stop    atomic.Bool
	ended   chan struct{}
	unsure  bool
	drained bool
}

func (m *medium) Open(_ context.Context, inst gateway.Instance, term uint64) (gateway.Serving, error) {
	x, err := inst.(*Instance).Cluster().Pool("rbd", "group")
	if err != nil {
		return nil, err
	}
	d := &data{m: m, objects: x, term: term, ended: make(chan struct{})}
	m.tell("owner %d", term)
	go d.write()
	return d, nil
}

func (d *data) write() {
	defer close(d.ended)
	for n := 1; !d.stop.Load(); n++ {
		if _, err := d.objects.Write(dataName, &ceph.WriteOp{WriteFull: fmt.Appendf(nil, "%d %s %d", d.term, d.m.name, n)}); err != nil {
			d.unsure = true
			d.m.tell("failed %d blocklisted=%v", d.term, errors.Is(said(err), gateway.ErrBlocklisted))
			go d.m.lost(err)
			return
		}
		d.m.tell("wrote %d %d", d.term, n)
		time.Sleep(5 * time.Millisecond) // the test reads all of it
	}
}

func (d *data) Apply(_ context.Context, number uint64, _ []byte) error {
	d.m.tell("rules %d", number)
	return nil
}

func (d *data) Drain(context.Context) error {
	d.stop.Store(true)
	<-d.ended
	if d.unsure {
		return errors.New("the end of a write is not known")
	}
	d.drained = true
	return nil
}

// Abort has one more write in its hands, as a process that was stopped may have.
func (d *data) Abort() {
	d.stop.Store(true)
	<-d.ended
	if !d.drained {
		_, err := d.objects.Write(dataName, &ceph.WriteOp{WriteFull: fmt.Appendf(nil, "%d %s %d", d.term, d.m.name, 0)})
		d.m.tell("late %d blocklisted=%v", d.term, errors.Is(said(err), gateway.ErrBlocklisted))
	}
	d.objects.Close()
	d.m.tell("standby %d", d.term)
}

// child is the process.
func child(conf string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	s, err := Connect(options(conf))
	fail(err)
	g, err := gateway.Join(context.Background(), s, gateway.Options{Name: os.Getenv(envName), Machine: "m", Alone: true})
	fail(err)
	var v *gateway.Volume
	ready := make(chan struct{})
	m := &medium{name: os.Getenv(envName), tell: func(f string, args ...any) { fmt.Printf(f+"\n", args...) }, lost: func(err error) {
		<-ready
		v.Lost(err)
	}}
	v, err = g.Add("vol", m)
	fail(err)
	close(ready)
	// Commands come by standard input: "drain", "take", "rules". Its end is the process's.
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		switch in.Text() {
		case "drain":
			err = g.Drain(ctx)
			g.Undrain()
		case "take":
			err = v.Take(ctx, gateway.CauseOperator)
		case "rules":
			err = v.ChangeReservations(ctx, func(old []byte) ([]byte, error) { return append(old, '.'), nil })
		}
		cancel()
		fmt.Printf("done %s %v\n", in.Text(), err)
	}
	g.Close() // with a late write, which is this owner's still
	s.Close()
	os.Exit(0)
}

// peer is a child as its test sees it.
type peer struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func start(t *testing.T, conf, name string) *peer {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, cmd: exec.Command(exe), lines: make(chan string, 1<<16)}
	p.cmd.Env = append(os.Environ(), envChild+"="+conf, envName+"="+name)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(p.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.lines <- sc.Text()
		}
	}()
	t.Cleanup(func() {
		p.in.Close()
		p.signal(syscall.SIGCONT)
		time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
		for range p.lines {
		}
		<-done
		_ = p.cmd.Wait()
	})
	return p
}

func (p *peer) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// await returns the first line that begins so.
func (p *peer) await(prefix string) string {
	p.t.Helper()
	limit := time.After(40 * time.Second)
	for {
		select {
		case l, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the process has ended, without %q", prefix)
			}
			if strings.HasPrefix(l, "error") {
				p.t.Fatal(l)
			}
			if strings.HasPrefix(l, prefix) {
				return l
			}
		case <-limit:
			p.t.Fatalf("nothing says %q", prefix)
		}
	}
}

func (p *peer) do(command string) {
	p.t.Helper()
	fmt.Fprintln(p.in, command)
	if l := p.await("done " + command); !strings.HasSuffix(l, "<nil>") {
		p.t.Fatal(l)
	}
}

func term(t *testing.T, line string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.Fields(line)[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
