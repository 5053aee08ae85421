package ceph

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/lib/cephkit"
	"github.com/sluice-storage/sluice/test/lib/proc"
)

const target = "iqn.2026-11.io.sluice:images"

// daemon is a sluiced that is a client with the least capabilities.
func daemon(t *testing.T, c *cephkit.Cluster, more string) *proc.Daemon {
	t.Helper()
	ring := c.User(t, "sluice", "mon", "profile rbd", "osd", "profile rbd")
	return proc.New(t, bin, fmt.Sprintf("ceph: {conf: %q, user: sluice, keyring: %q}\n%s", c.Conf, ring, more))
}

func say(t *testing.T, d *proc.Daemon, args ...string) string {
	t.Helper()
	out, code := d.Sluice(args...)
	if code != 0 {
		t.Fatalf("sluice %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

func open(t *testing.T, d *proc.Daemon, lun int) *block.Volume {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	v, err := block.Open(ctx, fmt.Sprintf("iscsi://%s/%s/%d", d.Portal(), target, lun), block.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close() }) // its daemon may be gone
	return v
}

func write(t *testing.T, v *block.Volume, off int64, b []byte) {
	t.Helper()
	if _, err := v.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

func has(t *testing.T, v *block.Volume, what string, off int64, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := v.ReadAt(got, off); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %q ..., want %q ...", what, got[:8], want[:8])
	}
}

func TestImagesAreMadeServedAndRemovedByCommand(t *testing.T) {
	c := shared.Get(t)
	d := daemon(t, c, "targets: [{name: "+target+", luns: []}]\n")
	d.Start()
	say(t, d, "volume", "create", "vm", "16MiB", "--rbd", "rbd/made")
	say(t, d, "target", "map", target, "0", "vm")
	v := open(t, d, 0)
	then, now := bytes.Repeat([]byte("then"), 3000), bytes.Repeat([]byte("now!"), 3000)
	write(t, v, 4<<20-6000, then) // over the border of two objects
	out := filepath.Join(t.TempDir(), "image")
	c.Run(t, "rbd", "export", "--no-progress", "made", out)
	if b, err := os.ReadFile(out); err != nil || !bytes.Equal(b[4<<20-6000:4<<20+6000], then) {
		t.Fatalf("Ceph sees something else in the image (%v)", err)
	}
	say(t, d, "volume", "snapshot", "vm", "monday")
	say(t, d, "volume", "create", "copy", "--clone", "vm")
	say(t, d, "target", "map", target, "1", "monday")
	say(t, d, "target", "map", target, "2", "copy")
	write(t, v, 4<<20-6000, now)
	has(t, open(t, d, 1), "the snapshot", 4<<20-6000, then)
	copied := open(t, d, 2)
	has(t, copied, "the clone", 4<<20-6000, then)
	write(t, copied, 0, now)
	has(t, v, "the origin", 4<<20-6000, now)

	// It grows by either side, and the initiator sees it.
	grown := func(want int64) {
		t.Helper()
		for limit := time.Now().Add(proc.Patience); v.Size() != want; time.Sleep(20 * time.Millisecond) { // it is told by unit attention
			if time.Now().After(limit) {
				t.Fatalf("the initiator sees %d bytes, not %d", v.Size(), want)
			}
			has(t, v, "while it grows", 4<<20-6000, now)
		}
	}
	c.Run(t, "rbd", "resize", "--no-progress", "--size", "24M", "made")
	grown(24 << 20)
	say(t, d, "volume", "resize", "vm", "32MiB")
	grown(32 << 20)

	if out, code := d.Sluice("volume", "create", "twice", "16MiB", "--rbd", "rbd/made"); code == 0 || !strings.Contains(out, "same image") {
		t.Errorf("one image twice: %d %s", code, out)
	}
	if out, code := d.Sluice("volume", "create", "none", "--rbd", "rbd/nothing"); code == 0 || !strings.Contains(out, "no such file") {
		t.Errorf("an image that is not there: %d %s", code, out)
	}
	// Another start has the same disks.
	id := say(t, d, "volume", "list", "-o", "json")
	d.Stop()
	d.Start()
	if again := say(t, d, "volume", "list", "-o", "json"); strings.Count(again, `"engine": "rbd"`) != strings.Count(id, `"engine": "rbd"`) || strings.Contains(again, "problem") {
		t.Errorf("after a restart: %s", again)
	}
	has(t, open(t, d, 0), "after a restart", 4<<20-6000, now)
	for lun, name := range []string{"vm", "monday", "copy"} {
		say(t, d, "target", "unmap", target, fmt.Sprint(lun))
		if name != "vm" {
			say(t, d, "volume", "delete", name, "--data", "--yes")
		}
	}
	say(t, d, "volume", "delete", "vm")
	if l := c.Run(t, "rbd", "ls"); strings.Contains(l, "copy") || !strings.Contains(l, "made") {
		t.Errorf("images that are left: %q", l)
	}
	if l := c.Run(t, "rbd", "snap", "ls", "made"); strings.Contains(l, "monday") {
		t.Errorf("snapshots that are left: %q", l)
	}
}

// What was answered survives SIGKILL of the daemon, without a flush: librbd's cache is off, and hosts are told that there is none.
func TestSIGKILLLosesNothingThatWasAnswered(t *testing.T) {
	c := shared.Get(t)
	c.Run(t, "rbd", "create", "--size", "16M", "killed")
	d := daemon(t, c, "volumes: [{name: v, rbd: {image: killed}}]\ntargets: [{name: "+target+", luns: [{lun: 0, volume: v}]}]\n")
	d.Start()
	v := open(t, d, 0)
	first, later := bytes.Repeat([]byte{1}, 1<<20), bytes.Repeat([]byte{2}, 1<<20)
	write(t, v, 0, first)
	write(t, v, 8<<20, first)
	write(t, v, 8<<20, later)
	d.Kill()
	_ = v.Close() // its daemon is gone
	d.Start()
	v = open(t, d, 0)
	has(t, v, "what was written once", 0, first)
	has(t, v, "what was written twice", 8<<20, later)
}

// The image that a volume was made of stays when another one has its name now.
func TestDeleteLeavesAnotherImageOfTheName(t *testing.T) {
	c := shared.Get(t)
	c.Run(t, "rbd", "create", "--size", "16M", "named")
	d := daemon(t, c, "")
	d.Start()
	say(t, d, "volume", "create", "n", "--rbd", "rbd/named")
	c.Run(t, "rbd", "rename", "named", "kept")
	c.Run(t, "rbd", "create", "--size", "16M", "named")
	if out, code := d.Sluice("volume", "delete", "n", "--data", "--yes"); code == 0 || !strings.Contains(out, "another image") {
		t.Errorf("exit %d: %s", code, out)
	}
	if l := c.Run(t, "rbd", "ls"); !strings.Contains(l, "named") || !strings.Contains(l, "kept") {
		t.Errorf("images that are left: %q", l)
	}
}

// OSDs stop, go and come back under a writer, which sees no error and loses nothing.
func TestAnOSDGoesAndComesBackUnderLoad(t *testing.T) {
	c := shared.Get(t)
	c.Run(t, "rbd", "create", "--size", "16M", "loaded")
	d := daemon(t, c, "volumes: [{name: v, rbd: {image: loaded}}]\ntargets: [{name: "+target+", luns: [{lun: 0, volume: v}]}]\n")
	d.Start()
	v := open(t, d, 0)
	stop, ended := make(chan struct{}), make(chan error, 1)
	last := [256]byte{}
	go func() {
		b := make([]byte, 64<<10)
		for i := 0; ; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			n := i % 256
			for k := range b {
				b[k] = byte(i/256 + n)
			}
			if _, err := v.WriteAt(b, int64(n)<<16); err != nil {
				ended <- err
				return
			}
			last[n] = b[0]
		}
	}()
	wait := func(d time.Duration) { // how long it is away is the test
		select {
		case err := <-ended:
			t.Fatalf("the writer ended: %v", err)
		case <-time.After(d):
		}
	}
	wait(time.Second)
	for _, step := range []func() error{
		func() error { return c.Signal("osd.0", syscall.SIGSTOP) }, func() error { return c.Signal("osd.0", syscall.SIGCONT) },
		func() error { return c.Kill("osd.0") }, func() error { return errors.Join(c.StartOSD(0), c.WaitUp(1)) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		wait(3 * time.Second)
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for n, b := range last {
		has(t, v, fmt.Sprint("block ", n), int64(n)<<16, bytes.Repeat([]byte{b}, 64<<10))
	}
}

// A pool without room says so, as a thin disk does, and goes on when there is some.
func TestAFullPoolIsAThinDiskWithoutRoom(t *testing.T) {
	c := shared.Get(t)
	c.Run(t, "ceph", "osd", "pool", "create", "small", "8", "8", "replicated", "--size", "1")
	c.Run(t, "rbd", "pool", "init", "small")
	c.Run(t, "rbd", "create", "--size", "256M", "small/full")
	d := daemon(t, c, "volumes: [{name: v, rbd: {pool: small, image: full}}]\ntargets: [{name: "+target+", luns: [{lun: 0, volume: v}]}]\n")
	d.Start()
	v := open(t, d, 0)
	b := bytes.Repeat([]byte("data"), 256<<10)
	write(t, v, 0, b)
	c.Run(t, "ceph", "osd", "pool", "set-quota", "small", "max_bytes", "1048576")
	var err error
	at := int64(8 << 20)
	for limit := time.Now().Add(proc.Patience); err == nil; at += 4096 { // the monitors look every few seconds, and what takes no more room is taken
		if _, err = v.WriteAt(b[:4096], at); time.Now().After(limit) || at > 200<<20 {
			t.Fatal("a pool over its quota takes writes")
		}
	}
	if !errors.Is(err, blockdev.ErrNoSpace) && !strings.Contains(strings.ToLower(err.Error()), "space") {
		t.Errorf("it says %v", err)
	}
	has(t, v, "what was there", 0, b)
	c.Run(t, "ceph", "osd", "pool", "set-quota", "small", "max_bytes", "0")
	for limit := time.Now().Add(proc.Patience); err != nil; {
		if _, err = v.WriteAt(b, at+4096); err != nil && time.Now().After(limit) {
			t.Fatalf("a pool that has room again: %v", err)
		}
	}
	has(t, v, "written behind it", at+4096, b)
}
