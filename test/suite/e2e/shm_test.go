package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/mem"
	tnfs "github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/fabric"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/shm"
)

// sharedHost is an initiator that goes through shared memory.
func sharedHost(t testing.TB, o block.Options) *block.Initiator {
	t.Helper()
	d := shm.New(shm.Options{})
	o.Device = d
	if o.MinBackoff == 0 {
		o.MinBackoff, o.MaxBackoff = 5*time.Millisecond, 100*time.Millisecond
	}
	i, err := block.New(o)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(i.Close(), d.Close())) })
	return i
}

func sharedURL(socket string) string { return "iser:///" + iqn + "/0?provider=shm&socket=" + socket }

// sharedStand is a target that is reached through shared memory, by the socket whose path it returns.
func sharedStand(t testing.TB, o stand.BlockOptions) (*served, *shm.Device, string) {
	t.Helper()
	d := shm.New(shm.Options{})
	t.Cleanup(func() { must(t, d.Close()) }) // after the stand: its server ends by itself
	s := stands(t, iwarp.Options{}, o, "shm")
	return s, d, s.Fabric(d, filepath.Join(t.TempDir(), "socket"), 1)
}

// onMedium reads a device without a target.
func onMedium(t testing.TB, d blockdev.Device, at int64, n int) []byte {
	t.Helper()
	slab, err := mem.NewSlab(n)
	must(t, err)
	defer func() { must(t, slab.Close()) }()
	must(t, blockdev.Do(context.Background(), d, &blockdev.Request{Op: blockdev.Read, Offset: at, Length: int64(n), Data: []mem.Span{{Slab: slab, Len: n}}}))
	return append([]byte(nil), slab.Bytes()[:n]...)
}

// Everything that a volume can do, through shared memory, and nothing is left of the target's memory when its initiators are gone.
func TestAVolumeThroughSharedMemory(t *testing.T) {
	s, d, socket := sharedStand(t, stand.BlockOptions{})
	i := sharedHost(t, block.Options{})
	if got, err := i.Discover(t.Context(), strings.Replace(sharedURL(socket), iqn+"/0", "", 1)); err != nil || len(got) != 1 || got[0].Name != iqn {
		t.Fatalf("discovery: %+v, %v", got, err)
	}
	v := open(t, i, sharedURL(socket))
	ctx := context.Background()
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for _, n := range []int{512, 4096, 8704, 64 << 10, 512 << 10} {
				want, got := pattern(n, int64(n+w)), make([]byte, n)
				at := int64(w) * (512 << 10)
				if _, err := v.WriteAt(want, at); err != nil {
					t.Error(err)
					return
				}
				if _, err := v.ReadAt(got, at); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes: %v, equal %v", n, err, bytes.Equal(got, want))
					return
				}
				if here := onMedium(t, s.dev, at, n); !bytes.Equal(here, want) {
					t.Errorf("%d bytes differ on the medium", n)
				}
			}
		})
	}
	all.Wait()
	var bufs []*mem.Buf
	var data []mem.Span
	for k := range 9 { // one request in many pieces of memory
		b, err := i.Memory().Get(4096 << (k % 3))
		must(t, err)
		copy(b.Bytes(), pattern(b.Len(), int64(k)))
		bufs, data = append(bufs, b), append(data, b.Span())
	}
	must(t, v.WriteSpans(ctx, 2<<20, false, data...))
	for _, b := range bufs {
		clear(b.Bytes())
	}
	must(t, v.ReadSpans(ctx, 2<<20, data...))
	for k, b := range bufs {
		if !bytes.Equal(b.Bytes(), pattern(b.Len(), int64(k))) {
			t.Errorf("piece %d differs", k)
		}
		b.Release()
	}
	one, two := pattern(4096, 1), pattern(4096, 2)
	_, err := v.WriteAt(one, 4096)
	must(t, err)
	_, err = v.CompareAndWrite(ctx, 4096, one, two)
	must(t, err)
	must(t, v.WriteZeroes(ctx, 4096, 8192, true))
	must(t, v.Discard(ctx, 1<<20, 1<<20))
	must(t, v.Flush(ctx))
	ss := s.Server.Sessions()
	if len(ss) != 1 || ss[0].Path == nil || ss[0].Path.Provider != "shm" || ss[0].Path.Exposure == "" || !strings.HasPrefix(ss[0].Remote, "uid=") || ss[0].Local != socket {
		t.Errorf("sessions: %+v", ss)
	}
	if st := s.Pool.Stats(); st.Lent == 0 {
		t.Errorf("the session has no memory of its own: %+v", st)
	}
	must(t, v.Close())
	ended(t, s, d)
}

// ended waits until nothing is left of connections through shared memory.
func ended(t *testing.T, s *served, d *shm.Device) {
	t.Helper()
	limit := time.Now().Add(patience)
	for g := d.Gauges(); g.Connections > 0 || s.Pool.Stats().Lent > 0; g = d.Gauges() { // the target's end of it has no event
		if time.Now().After(limit) {
			t.Fatalf("left: %+v, %+v", g, s.Pool.Stats())
		}
		time.Sleep(time.Millisecond)
	}
}

// asSpy makes this test binary an initiator that reads a part of a volume, and then looks for a secret in all memory that it has been
// shown: "URL offset".
const asSpy = "SLUICE_E2E_SPY"

func secret() []byte { return pattern(64<<10, 77) }

func spyMain(what string) error {
	where, offset, _ := strings.Cut(what, " ")
	at, err := strconv.ParseInt(offset, 10, 64)
	if err != nil {
		return err
	}
	v, err := block.Open(context.Background(), where, block.Options{Name: "iqn.2026-01.org.example:spy"})
	if err != nil {
		return err
	}
	if _, err := v.ReadAt(make([]byte, 64<<10), at); err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return err
	}
	look, bytesSeen, found := secret()[1000:1064], 0, false
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, " r--s ") || !strings.Contains(line, "/memfd:") { // what a peer has shown
			continue
		}
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return err
		}
		b := make([]byte, to-from)
		if _, err := memory.ReadAt(b, int64(from)); err != nil {
			return err
		}
		bytesSeen += len(b)
		found = found || bytes.Contains(b, look)
	}
	fmt.Println(bytesSeen > 1<<20, found)
	return v.Close()
}

// The memory that one connection shows its peer holds nothing of another's: a process that searches all that it was shown finds what it
// asked for, and nothing that another host has read and written.
func TestConnectionsThroughSharedMemoryHaveMemoryOfTheirOwn(t *testing.T) {
	s, _, socket := sharedStand(t, stand.BlockOptions{})
	v := open(t, sharedHost(t, block.Options{}), sharedURL(socket))
	over := open(t, host(t, block.Options{Name: "iqn.2026-01.org.example:tcp"}, iwarp.Options{}), url("iser", s.Portal("127.0.0.1", 1)))
	self, err := os.Executable()
	must(t, err)
	for _, c := range []struct{ offset, want string }{{"1048576", "true false"}, {"0", "true true"}} { // the second shows that it would be found
		for _, w := range []*block.Volume{v, over} {
			_, err := w.WriteAt(secret(), 0)
			must(t, err)
			got := make([]byte, 64<<10)
			_, err = w.ReadAt(got, 0)
			must(t, err)
			if !bytes.Equal(got, secret()) {
				t.Fatal("the bytes differ")
			}
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), asSpy+"="+sharedURL(socket)+" "+c.offset)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil || strings.TrimSpace(string(out)) != c.want {
			t.Errorf("at %s: memory was shown, and the secret in it: %s, want %s (%v)", c.offset, out, c.want, err)
		}
	}
}

// A target without room for one more connection's own memory refuses it, and takes it when another has gone.
func TestThereIsARoomForConnectionsThroughSharedMemory(t *testing.T) {
	s, d, socket := sharedStand(t, stand.BlockOptions{})
	var vs []*block.Volume
	limit := func() (*block.Volume, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return sharedHost(t, block.Options{Name: "iqn.2026-01.org.example:" + string(rune('a'+len(vs)))}).Open(ctx, sharedURL(socket))
	}
	for range 40 {
		v, err := limit()
		if err != nil {
			if !errors.Is(err, block.ErrNoPath) && len(vs) == 0 {
				t.Fatal(err)
			}
			break
		}
		vs = append(vs, v)
	}
	if len(vs) == 0 || len(vs) == 40 {
		t.Fatalf("%d connections have %d bytes each of a pool of %d", len(vs), 5<<20, s.Pool.Stats().Max)
	}
	for _, v := range vs { // those that there are work
		_, err := v.ReadAt(make([]byte, 512<<10), 0)
		must(t, err)
	}
	must(t, vs[0].Close())
	limitTime := time.Now().Add(patience)
	for {
		v, err := limit()
		if err == nil {
			vs[0] = v
			break
		}
		if time.Now().After(limitTime) {
			t.Fatal(err)
		}
	}
	for _, v := range vs {
		must(t, v.Close())
	}
	ended(t, s, d)
}

// asInitiator makes this test binary a process that writes to the volume of a URL until it is killed.
const asInitiator = "SLUICE_E2E_INITIATOR"

func initiatorMain(url string) error {
	v, err := block.Open(context.Background(), url, block.Options{})
	if err != nil {
		return err
	}
	os.Stdout.WriteString("there\n")
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			b := make([]byte, 256<<10)
			for err == nil {
				_, err = v.WriteAt(b, int64(w)*(256<<10))
			}
		})
	}
	all.Wait()
	return err
}

// An initiator process that is killed amid its writes leaves nothing at the target: no session, no memory, no mapping.
func TestAKilledInitiatorLeavesNothingAtTheTarget(t *testing.T) {
	s, d, socket := sharedStand(t, stand.BlockOptions{})
	self, err := os.Executable()
	must(t, err)
	for range 5 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), asInitiator+"="+sharedURL(socket))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		if n, err := out.Read(make([]byte, 16)); err != nil || n != 6 {
			t.Fatal(n, err)
		}
		limit := time.Now().Add(patience)
		for s.Pool.Stats().Lent < 6<<20 && time.Now().Before(limit) { // writes are under way
			time.Sleep(time.Millisecond)
		}
		kill(t, cmd)
		ended(t, s, d)
		if n := len(s.Server.Sessions()); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	if n := strings.Count(string(maps), "/memfd:"); n != 0 {
		t.Errorf("%d mappings of shared memory are left", n)
	}
}

// One Initiator takes a way through shared memory beside one over TCP, whichever is first: its memory is shared when it is first used so.
func TestSharedMemoryBesideAnotherFabric(t *testing.T) {
	s, _, socket := sharedStand(t, stand.BlockOptions{})
	addr := s.Portal("127.0.0.1", 2)
	for _, urls := range [][]string{{sharedURL(socket), url("iser", addr)}, {sharedURL(socket), url("iscsi", addr)}, {url("iser", addr), sharedURL(socket)}, {url("iscsi", addr), sharedURL(socket)}} {
		var set fabric.Set
		i, err := block.New(block.Options{Provider: set.Device})
		must(t, err)
		v := open(t, i, urls...)
		if n := len(s.Server.Sessions()); n != len(urls) {
			t.Errorf("%v: %d paths are up", urls, n)
		}
		want, got := pattern(1<<20, 3), make([]byte, 1<<20)
		_, err = v.WriteAt(want, 0)
		must(t, err)
		_, err = v.ReadAt(got, 0)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Error("the bytes differ")
		}
		must(t, errors.Join(v.Close(), i.Close(), set.Close()))
	}
	var set fabric.Set
	i, err := block.New(block.Options{Provider: set.Device})
	must(t, err)
	v := open(t, i, url("iscsi", addr))
	if _, err := i.Open(t.Context(), sharedURL(socket)); !errors.Is(err, mem.ErrInUse) {
		t.Errorf("memory that is in use became shared: %v", err)
	}
	must(t, errors.Join(v.Close(), i.Close(), set.Close()))
}

// A directory through shared memory: what is written arrives, in the file and back, whatever its size.
func TestADirectoryThroughSharedMemory(t *testing.T) {
	d := shm.New(shm.Options{})
	t.Cleanup(func() { must(t, d.Close()) })
	dir := t.TempDir()
	f := stand.NewFiles(t, stand.FileOptions{NFS: tnfs.Options{StateDir: t.TempDir()}}, tnfs.Export{Path: "/data", Dir: dir, Clients: []tnfs.Client{{Match: "127.0.0.1", Rights: stand.Everyone}}})
	where := f.Shared(d, filepath.Join(t.TempDir(), "socket"))
	fs, err := nfs.Open(t.Context(), where, nfs.Options{})
	must(t, err)
	defer func() { must(t, fs.Close()) }()
	for _, n := range []int{0, 1, 511, 512, 513, 4096, 100_000, 1 << 20, 5<<20 + 7} {
		want := pattern(n, int64(n))
		must(t, fs.WriteFile(t.Context(), "f", want, 0o644))
		got, err := fs.ReadFile("f")
		must(t, err)
		here, err := os.ReadFile(filepath.Join(dir, "f"))
		must(t, err)
		if !bytes.Equal(got, want) || !bytes.Equal(here, want) {
			t.Errorf("%d bytes: back %t, there %t", n, bytes.Equal(got, want), bytes.Equal(here, want))
		}
	}
	for k := range 200 {
		must(t, fs.Mkdir(t.Context(), "d"+strings.Repeat("x", k), 0o755))
	}
	if l, err := fs.ReadDir("."); err != nil || len(l) != 201 {
		t.Errorf("%d names, %v", len(l), err)
	}
}
