//go:build ceph && cgo && linux

package rbd_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/rbd"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/cephkit"
)

var numbers atomic.Int64

// options are for an image of the shared cluster that is not there yet.
func options(t testing.TB, c *cephkit.Cluster) rbd.Options {
	t.Helper()
	return rbd.Options{Cluster: rbd.Cluster{Conf: c.Conf}, Image: fmt.Sprintf("image%d", numbers.Add(1))}
}

func open(t testing.TB, o rbd.Options) *rbd.Device {
	t.Helper()
	d, err := rbd.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func made(t testing.TB, o rbd.Options, size int64) rbd.Options {
	t.Helper()
	if err := rbd.Create(o, size); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestConformance(t *testing.T) {
	c := shared.Get(t)
	for name, o := range map[string]rbd.Options{
		"plain":  {},
		"cached": {Cache: true},
		"4096":   {Logical: 4096},
	} {
		t.Run(name, func(t *testing.T) {
			options := func(t testing.TB) rbd.Options {
				n := options(t, c)
				n.Cache, n.Logical = o.Cache, o.Logical
				return n
			}
			of := map[blockdev.Device]rbd.Options{}
			fresh := func(t testing.TB) blockdev.Device {
				o := made(t, options(t), 6<<20) // two objects
				d := open(t, o)
				of[d] = o
				return d
			}
			blockdevtest.Run(t, blockdevtest.Options{
				Open: fresh,
				Reopen: func(t testing.TB, d blockdev.Device) blockdev.Device {
					blockdevtest.Close(t, d)
					again := open(t, of[d])
					of[again] = of[d]
					return again
				},
				ReadOnly: func(t testing.TB) blockdev.Device {
					d := fresh(t)
					m := blockdevtest.NewMemory(t, 8192)
					blockdevtest.Write(t, d, m, 0, []byte(strings.Repeat("x", 4096)), false)
					blockdevtest.Close(t, d)
					ro := of[d]
					ro.ReadOnly = true
					return open(t, ro)
				},
				Resize: func(t testing.TB, d blockdev.Device, size int64) {
					c.Run(t, "rbd", "resize", "--no-progress", "--allow-shrink", "--size", fmt.Sprintf("%dB", size), of[d].Image)
				},
				Cheap: true,
			})
		})
	}
}

// A compare-and-write over the border of two objects is one: all of it or nothing, which librbd's own is not.
func TestCompareAndWriteCrossesObjects(t *testing.T) {
	d := open(t, made(t, options(t, shared.Get(t)), 16<<20))
	defer blockdevtest.Close(t, d)
	m := blockdevtest.NewMemory(t, 1<<20)
	const border, n = 4 << 20, 8192
	was := bytes.Repeat([]byte{1}, n)
	blockdevtest.Write(t, d, m, border-n/2, was, false)
	cmp, data := m.All().Cut(0, n), m.All().Cut(n, n)
	copy(cmp.Bytes(), was)
	copy(data.Bytes(), bytes.Repeat([]byte{2}, n))
	r := &blockdev.Request{Op: blockdev.CompareWrite, Offset: border - n/2, Length: n, Data: []mem.Span{data}, Compare: []mem.Span{cmp}}
	if err := blockdevtest.Do(t, d, r); err != nil {
		t.Fatal(err)
	}
	copy(cmp.Bytes(), bytes.Repeat([]byte{2}, n))
	cmp.Bytes()[n-1] = 9 // in the second object
	copy(data.Bytes(), bytes.Repeat([]byte{3}, n))
	if err := blockdevtest.Do(t, d, r); !errors.Is(err, blockdev.ErrMiscompare) || r.Miss != n-1 {
		t.Fatalf("%v at %d, want a difference at %d", err, r.Miss, n-1)
	}
	if got := blockdevtest.Read(t, d, m, border-n/2, n); !bytes.Equal(got, bytes.Repeat([]byte{2}, n)) {
		t.Error("a miscompare wrote something, or the write before did not")
	}
}

func TestAnImageIsOneOpenersAndTellsWhatItIs(t *testing.T) {
	c := shared.Get(t)
	o := made(t, options(t, c), 16<<20)
	d := open(t, o)
	if g := d.Geometry(); g.OptimalIO != 4<<20 || !g.WriteThrough || g.DiscardUnit != 64<<10 || !g.Thin {
		t.Errorf("geometry %+v", g)
	}
	id, err := d.Identity()
	if err != nil || id == "" {
		t.Errorf("identity %q, %v", id, err)
	}
	if p := d.Path(); !strings.Contains(p, "no cache, exclusive lock") || !strings.Contains(p, "rbd/"+o.Image) {
		t.Errorf("path %q", p)
	}
	// The lock is exclusive against clients of others too: a write by them does not go through.
	if a := d.Addresses(); len(a) != 1 || !strings.Contains(c.Run(t, "rbd", "lock", "ls", o.Image), a[0]) {
		t.Errorf("the lock is not that of %v: %s", a, c.Run(t, "rbd", "lock", "ls", o.Image))
	}
	blockdevtest.Close(t, d)
	c.Run(t, "rbd", "rename", o.Image, o.Image+"-renamed")
	o.Image += "-renamed"
	again := open(t, o)
	defer blockdevtest.Close(t, again)
	if now, err := again.Identity(); err != nil || now != id {
		t.Errorf("renamed it is %q, %v; it was %q", now, err, id)
	}
}

func TestWhatCannotBeServedIsSaid(t *testing.T) {
	c := shared.Get(t)
	o := options(t, c)
	if _, err := rbd.Open(o); !errors.Is(err, unix.ENOENT) {
		t.Errorf("an image that is not there: %v", err)
	}
	p := o
	p.Pool = "nowhere"
	if _, err := rbd.Open(p); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a pool that is not there: %v", err)
	}
	made(t, o, 8<<20)
	if err := rbd.Create(o, 8<<20); !errors.Is(err, unix.EEXIST) {
		t.Errorf("made twice: %v", err)
	}
	var fe *rbd.FeatureError
	c.Run(t, "rbd", "config", "image", "set", o.Image, "rbd_cache", "true")
	if _, err := rbd.Open(o); !errors.As(err, &fe) || !strings.Contains(err.Error(), "rbd_cache") {
		t.Errorf("a cache by the image's own configuration: %v", err)
	}
	c.Run(t, "rbd", "config", "image", "rm", o.Image, "rbd_cache")
	d := open(t, o)
	m := blockdevtest.NewMemory(t, 4096)
	blockdevtest.Write(t, d, m, 0, append([]byte("RBDL\xba\xbe"), make([]byte, 506)...), false)
	blockdevtest.Close(t, d)
	if _, err := rbd.Open(o); !errors.As(err, &fe) || !strings.Contains(err.Error(), "encryption") {
		t.Errorf("a clone with an encryption format of its own: %v", err)
	}
}

// The size follows the image while it is served, without being asked.
func TestAResizeIsHeardOf(t *testing.T) {
	c := shared.Get(t)
	o := made(t, options(t, c), 8<<20)
	d := open(t, o)
	defer blockdevtest.Close(t, d)
	heard := make(chan struct{}, 100)
	d.OnChange(func() {
		if changed, err := d.Refresh(); err != nil {
			t.Error(err)
		} else if changed {
			heard <- struct{}{}
		}
	})
	c.Run(t, "rbd", "resize", "--no-progress", "--size", "12M", o.Image)
	<-heard
	if g := d.Geometry(); g.Size != 12<<20 || g.Generation == 0 {
		t.Errorf("size %d, generation %d", g.Size, g.Generation)
	}
	if err := d.Grow(20 << 20); err != nil {
		t.Fatal(err)
	}
	if out := c.Run(t, "rbd", "info", o.Image); !strings.Contains(out, "size 20 MiB") {
		t.Errorf("grown: %s", out)
	}
	if err := d.Ungrow(); err != nil || d.Geometry().Size != 12<<20 {
		t.Errorf("taken back: %d, %v", d.Geometry().Size, err)
	}
}

func TestSnapshotsAndClonesAreOfOneMoment(t *testing.T) {
	c := shared.Get(t)
	o := made(t, options(t, c), 8<<20)
	d := open(t, o)
	defer blockdevtest.Close(t, d)
	m := blockdevtest.NewMemory(t, 1<<20)
	then, now := bytes.Repeat([]byte("then"), 4096), bytes.Repeat([]byte("now!"), 4096)
	blockdevtest.Write(t, d, m, 4<<20-8192, then, false)
	clone := o
	clone.Image = o.Image + "-clone"
	if err := errors.Join(d.Snapshot("monday"), d.Clone(clone.Image)); err != nil {
		t.Fatal(err)
	}
	blockdevtest.Write(t, d, m, 4<<20-8192, now, false)
	snap := o
	snap.Snapshot = "monday"
	for what, of := range map[string]rbd.Options{"snapshot": snap, "clone": clone} {
		s := open(t, of)
		if got := blockdevtest.Read(t, s, m, 4<<20-8192, len(then)); !bytes.Equal(got, then) {
			t.Errorf("the %s has %q", what, got[:8])
		}
		if s.Geometry().ReadOnly != (what == "snapshot") {
			t.Errorf("the %s: read-only is %v", what, s.Geometry().ReadOnly)
		}
		blockdevtest.Close(t, s)
	}
	if out := c.Run(t, "rbd", "snap", "ls", o.Image); strings.Contains(out, "sluice-") {
		t.Errorf("a clone leaves a snapshot to be seen: %s", out)
	}
	if err := errors.Join(rbd.Remove(snap, ""), rbd.Remove(clone, "")); err != nil {
		t.Error(err)
	}
	if _, err := rbd.Open(clone); !errors.Is(err, unix.ENOENT) {
		t.Errorf("removed: %v", err)
	}
}

// A client with the least capabilities can do all of it, in its pool.
func TestTheLeastCapabilitiesSuffice(t *testing.T) {
	c := shared.Get(t)
	o := options(t, c)
	o.User, o.Keyring = "serves", c.User(t, "serves", "mon", "profile rbd", "osd", "profile rbd pool=rbd")
	d := open(t, made(t, o, 8<<20))
	m := blockdevtest.NewMemory(t, 4096)
	blockdevtest.Write(t, d, m, 0, []byte(strings.Repeat("w", 4096)), true)
	if err := errors.Join(d.Snapshot("s"), d.Clone(o.Image+"-c"), d.Grow(16<<20), d.WaitForMap()); err != nil {
		t.Error(err)
	}
	blockdevtest.Close(t, d)
	ro := o
	ro.User, ro.Keyring = "reads", c.User(t, "reads", "mon", "profile rbd", "osd", "profile rbd-read-only pool=rbd")
	if _, err := rbd.Open(ro); err == nil {
		t.Error("a client that may only read opens an image to write")
	}
	ro.ReadOnly = true
	r := open(t, ro)
	defer blockdevtest.Close(t, r)
	if got := blockdevtest.Read(t, r, m, 0, 4096); got[0] != 'w' {
		t.Errorf("read %q", got[:4])
	}
}

// What a client is told that another one has shut out, and what it can still do: nothing.
func TestABlocklistedClientIsFenced(t *testing.T) {
	c := shared.Get(t)
	o := made(t, options(t, c), 8<<20)
	d := open(t, o)
	m := blockdevtest.NewMemory(t, 4096)
	blockdevtest.Write(t, d, m, 0, []byte(strings.Repeat("1", 4096)), false)
	c.Run(t, "ceph", "osd", "blocklist", "add", d.Addresses()[0])
	copy(m.All().Bytes(), strings.Repeat("2", 4096))
	r := &blockdev.Request{Op: blockdev.Write, Length: 4096, Data: []mem.Span{m.All()}}
	for { // until the OSD has the map
		err := blockdevtest.Do(t, d, r)
		if errors.Is(err, blockdev.ErrFenced) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		copy(m.All().Bytes(), strings.Repeat("1", 4096)) // what was written is what a ghost would not be
	}
	if !strings.Contains(d.Path(), "blocklisted") {
		t.Errorf("path %q", d.Path())
	}
	after := open(t, o) // its lock is taken over
	copy(m.All().Bytes(), strings.Repeat("3", 4096))
	if err := blockdevtest.Do(t, d, r); !errors.Is(err, blockdev.ErrFenced) {
		t.Errorf("a ghost: %v", err)
	}
	if got := blockdevtest.Read(t, after, m, 0, 4096); got[0] == '3' {
		t.Error("a ghost's write is there")
	}
	blockdevtest.Close(t, after)
	if err := d.Close(); err != nil {
		t.Logf("close of a fenced device: %v", err)
	}
}
