// Package tgt runs the block initiator against tgtd, a target that none of us wrote, over TCP.
package tgt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
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
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/port"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const iqn = "iqn.2026-01.org.example:disk"

// server is one tgtd with one disk of 64 MiB.
type server struct {
	t       *testing.T
	port    string
	control string
	cmd     *exec.Cmd
	dir     string
	host    string
}

func start(t *testing.T, host string) *server {
	t.Helper()
	need.Root(t) // tgtd keeps its control socket in /var/run
	s := &server{t: t, dir: t.TempDir(), host: host}
	if strings.Contains(host, ":") {
		need.IPv6(t)
	}
	n, err := port.Free()
	if err != nil {
		t.Fatal(err)
	}
	s.port = strconv.Itoa(n)
	s.control = strconv.Itoa(1 + n%32000) // distinct from other tgtds of the machine, nearly as the port is
	f, err := os.Create(filepath.Join(s.dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(64<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	s.run()
	t.Cleanup(s.kill)
	return s
}

func (s *server) run() {
	s.t.Helper()
	s.cmd = exec.Command(need.Tool(s.t, "tgtd", "tgt"), "-f", "-C", s.control, "--iscsi", "portal="+net.JoinHostPort(s.host, s.port))
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for s.try("--op", "show", "--mode", "sys") != nil {
		if time.Now().After(deadline) {
			s.t.Fatal("tgtd does not answer")
		}
		time.Sleep(20 * time.Millisecond) // nothing tells when another program is ready
	}
	s.admin("--op", "new", "--mode", "target", "--tid", "1", "-T", iqn)
	s.admin("--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", filepath.Join(s.dir, "disk"))
	s.admin("--op", "update", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "--params", "thin_provisioning=1")
	for _, digest := range []string{"HeaderDigest", "DataDigest"} {
		s.admin("--op", "update", "--mode", "target", "--tid", "1", "--name", digest, "--value", "CRC32C,None")
	}
	s.admin("--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL")
}

func (s *server) try(args ...string) error {
	out, err := exec.Command(need.Tool(s.t, "tgtadm", "tgt"), append([]string{"-C", s.control, "--lld", "iscsi"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tgtadm %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (s *server) admin(args ...string) {
	s.t.Helper()
	if err := s.try(args...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // "killed" is what it says
}

func (s *server) url(user, query string) string {
	return "iscsi://" + user + net.JoinHostPort(s.host, s.port) + "/" + iqn + "/1" + query
}

func initiator(t *testing.T, o block.Options) *block.Initiator {
	t.Helper()
	i, err := block.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}

func open(t *testing.T, i *block.Initiator, url string) *block.Volume {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	v, err := i.Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
			t.Error(err)
		}
	})
	return v
}

func fill(n int, seed int64) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b)
	return b
}

func TestDiscovery(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			s := start(t, host)
			got, err := initiator(t, block.Options{}).Discover(context.Background(), "iscsi://"+net.JoinHostPort(host, s.port))
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 || got[0].Name != iqn || len(got[0].Portals) == 0 || got[0].Portals[0].Addr != net.JoinHostPort(host, s.port) {
				t.Fatalf("%+v", got)
			}
		})
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	s := start(t, "127.0.0.1")
	for _, query := range []string{"", "?header_digest=crc32c&data_digest=crc32c", "?depth=1"} {
		for _, imm := range []int{0, -1} {
			t.Run(query+strconv.Itoa(imm), func(t *testing.T) {
				v := open(t, initiator(t, block.Options{Immediate: imm}), s.url("", query))
				g := v.Unit()
				if g.Size != 64<<20 || g.Logical != 512 || g.Vendor != "IET" || g.ID == "" {
					t.Fatalf("%+v", g)
				}
				for _, n := range []int{512, 4096, 64 << 10, 1 << 20, 5<<20 + 512} {
					want := fill(n, int64(n))
					if _, err := v.WriteAt(want, 1<<20); err != nil {
						t.Fatal(err)
					}
					got := make([]byte, n)
					if _, err := v.ReadAt(got, 1<<20); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(got, want) {
						t.Fatalf("%d bytes differ", n)
					}
				}
				if err := v.Flush(context.Background()); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

func TestProvisioningAndComparison(t *testing.T) {
	s := start(t, "127.0.0.1")
	v := open(t, initiator(t, block.Options{}), s.url("", ""))
	ctx := context.Background()
	one, two := fill(512, 1), fill(512, 2)
	if _, err := v.WriteAt(one, 0); err != nil {
		t.Fatal(err)
	}
	// tgt reports a limit for COMPARE AND WRITE and then refuses the command; should it learn it, both halves count.
	if _, err := v.CompareAndWrite(ctx, 0, one, two); err == nil {
		if miss, err := v.CompareAndWrite(ctx, 0, one, two); !errors.Is(err, blockdev.ErrMiscompare) || miss < -1 || miss > 511 {
			t.Fatalf("%d %v", miss, err)
		}
	} else if !errors.Is(err, blockdev.ErrUnsupported) {
		t.Fatal(err)
	}
	// Parts of blocks are written all the same.
	if _, err := v.WriteAt([]byte("part"), 100); err != nil {
		t.Fatal(err)
	}
	part := make([]byte, 6)
	if _, err := v.ReadAt(part, 99); err != nil || string(part[1:5]) != "part" || part[5] != one[104] && part[5] != two[104] {
		t.Fatalf("%q %v", part, err)
	}
	if err := v.WriteZeroes(ctx, 0, 1<<20, true); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 512)
	if _, err := v.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, make([]byte, 512)) {
		t.Fatal("not zero")
	}
	if err := v.Discard(ctx, 0, 1<<20); err != nil {
		t.Fatal(err)
	}
	if n, err := v.ReadAt(got, 64<<20); n != 0 || err != io.EOF {
		t.Fatal(n, err)
	}
	if err := v.Discard(ctx, 64<<20, 1<<20); !errors.Is(err, blockdev.ErrRange) {
		t.Fatal(err)
	}
	var se *block.SenseError
	if _, err := v.Raw(ctx, []byte{0xff, 0, 0, 0, 0, 0}, nil, false); !errors.As(err, &se) || se.ASC != 0x20 {
		t.Fatal(err)
	}
	if b, err := v.Inquiry(ctx, 0x83); err != nil || len(b) < 8 {
		t.Fatal(b, err)
	}
	luns, err := v.LUNs(ctx)
	if err != nil || len(luns) != 2 {
		t.Fatal(luns, err)
	}
}

func TestManyCommandsAtATime(t *testing.T) {
	s := start(t, "127.0.0.1")
	v := open(t, initiator(t, block.Options{}), s.url("", ""))
	const n, size = 400, 16 << 10
	bufs := make([]*mem.Buf, n)
	var wg sync.WaitGroup
	reqs := make([]blockdev.Request, n)
	for k := range reqs {
		b, err := v.Memory().Get(size)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		copy(b.Bytes(), fill(size, int64(k)))
		bufs[k] = b
		r := &reqs[k]
		r.Op, r.Offset, r.Length, r.Data = blockdev.Write, int64(k)*size, size, []mem.Span{b.Span()}
		r.Done = func(*blockdev.Request) { wg.Done() }
	}
	for _, op := range []blockdev.Op{blockdev.Write, blockdev.Read} {
		wg.Add(n)
		for k := range reqs {
			reqs[k].Op = op
			v.Submit(&reqs[k])
		}
		wg.Wait()
		for k := range reqs {
			if reqs[k].Err != nil {
				t.Fatal(reqs[k].Err)
			}
			if !bytes.Equal(bufs[k].Bytes(), fill(size, int64(k))) {
				t.Fatalf("%s %d differs", op, k)
			}
			if op == blockdev.Write {
				clear(bufs[k].Bytes())
			}
		}
	}
}

func TestCHAP(t *testing.T) {
	s := start(t, "127.0.0.1")
	s.admin("--op", "new", "--mode", "account", "--user", "joe", "--password", "a secret of ours")
	s.admin("--op", "bind", "--mode", "account", "--tid", "1", "--user", "joe")
	s.admin("--op", "new", "--mode", "account", "--user", "disk", "--password", "a secret of theirs")
	s.admin("--op", "bind", "--mode", "account", "--tid", "1", "--user", "disk", "--outgoing")
	i := initiator(t, block.Options{})
	open(t, i, s.url("joe%a secret of ours@", ""))
	open(t, i, s.url("joe%a secret of ours@", "?target_user=disk&target_password=a+secret+of+theirs"))
	for _, bad := range []string{s.url("", ""), s.url("joe%wrong secret@", ""), s.url("joe%a secret of ours@", "?target_password=wrong")} {
		if _, err := i.Open(context.Background(), bad); err == nil {
			t.Errorf("%s is let in", bad)
		} else if strings.Contains(err.Error(), "secret of") || strings.Contains(err.Error(), "wrong") && strings.Contains(err.Error(), "%wrong") {
			t.Errorf("a secret in %q", err)
		}
	}
	if _, err := i.Open(context.Background(), "iscsi://joe%a secret of ours@"+net.JoinHostPort(s.host, s.port)+"/iqn.2026-01.org.example:none/1"); err == nil {
		t.Error("a target that is not there")
	}
}

// The target is killed and started again below the writes; afterwards everything that was acknowledged is there.
func TestATargetThatRestarts(t *testing.T) {
	s := start(t, "127.0.0.1")
	v := open(t, initiator(t, block.Options{MinBackoff: 10 * time.Millisecond, MaxBackoff: 200 * time.Millisecond}), s.url("", ""))
	const n, size = 64, 32 << 10
	var wg sync.WaitGroup
	half := make(chan struct{}, n)
	errs := make([]error, n)
	for k := range n {
		wg.Go(func() {
			for round := range 4 {
				if _, errs[k] = v.WriteAt(fill(size, int64(round*n+k)), int64(k)*size); errs[k] != nil {
					return
				}
				if round == 1 {
					half <- struct{}{}
				}
			}
		})
	}
	for range n / 2 {
		<-half
	}
	s.kill()
	s.run()
	wg.Wait()
	for k := range n {
		if errs[k] != nil {
			t.Fatal(errs[k])
		}
		got := make([]byte, size)
		if _, err := v.ReadAt(got, int64(k)*size); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, fill(size, int64(3*n+k))) {
			t.Fatalf("block %d differs", k)
		}
	}
}
