package e2e

import (
	"bytes"
	"errors"
	"math/rand"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// Two portals and both transports are four paths to one volume; they are cut one after the other, never all at once, and
// no request notices.
func TestPathsFailOver(t *testing.T) {
	for _, groups := range [][2]uint16{{1, 1}, {1, 2}} {
		s := newStand(t, iwarp.Options{})
		var relays []*relay
		var urls []string
		for k, scheme := range []string{"iser", "iscsi", "iser", "iscsi"} {
			w := newRelay(t, s.Portal("127.0.0.1", groups[k/2]))
			relays = append(relays, w)
			urls = append(urls, url(scheme, w.addr()))
		}
		v := open(t, host(t, block.Options{}, iwarp.Options{}), urls...)
		for _, p := range v.Paths() {
			if !p.Up || !p.InUse {
				t.Fatalf("%+v", p)
			}
		}
		down := -1
		writers(t, v, 16, 12, 32<<10, func(round int32) {
			if down >= 0 {
				relays[down].mend()
			}
			down = rand.Intn(len(relays))
			relays[down].cut(true)
		})
	}
}

// A write hangs in the target on a path that dies and stays dead. It is not done again on the other path before the
// first one is known to be over: what is written afterwards is not overwritten by a ghost.
func TestNoGhostWrite(t *testing.T) {
	for name, groups := range map[string][2]uint16{"one portal group": {1, 1}, "two portal groups": {1, 2}, ownNames: {1, 1},
		"two portal groups, the loss noticed first": {1, 2}} {
		t.Run(name, func(t *testing.T) {
			s, g := gated(t)
			a, b := newRelay(t, s.Portal("127.0.0.1", groups[0])), newRelay(t, s.Portal("127.0.0.1", groups[1]))
			as, bs := url("iser", a.addr()), url("iscsi", b.addr())
			if name == ownNames {
				as, bs = as+"?initiator="+iqn+".a", bs+"?initiator="+iqn+".b"
			}
			v := open(t, host(t, block.Options{}, iwarp.Options{}), as, bs)
			b.cut(true)
			waitPaths(t, v, 1)
			g.only = 1 // a second try of the write would pass
			g.set(true)
			_, done := submit(t, v, blockdev.Write, 0, pattern(4096, 1), nil)
			<-g.came
			if name == "two portal groups, the loss noticed first" {
				a.cut(true)                        // and only then is there a path to fence over
				time.Sleep(100 * time.Millisecond) // a chance for the target to forget the lost nexus too early
				b.mend()
			} else {
				b.mend()
				waitPaths(t, v, 2)
				a.cut(true)
			}
			select {
			case err := <-done:
				t.Fatalf("done while the first command may still run: %v", err)
			case <-time.After(50 * time.Millisecond): // a chance to be wrong
			}
			g.set(false)
			must(t, wait(t, done))
			_, err := v.WriteAt(pattern(4096, 2), 0)
			must(t, err)
			got := make([]byte, 4096)
			for range 20 {
				_, err = v.ReadAt(got, 0)
				must(t, err)
				if !bytes.Equal(got, pattern(4096, 2)) {
					t.Fatal("an old write came after a newer one")
				}
			}
		})
	}
}

// ownNames: the login that is a fence is one of the lost path's initiator port, by its name.
const ownNames = "one portal group, an initiator name for each path"

func waitPaths(t *testing.T, v *block.Volume, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // nothing announces a path
		up := 0
		for _, p := range v.Paths() {
			if p.Up {
				up++
			}
		}
		if up == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d paths are up, not %d: %+v", up, n, v.Paths())
		}
	}
}

// Two targets are not two paths.
func TestAnotherUnitIsNoPath(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	o := stands(t, iwarp.Options{}, stand.BlockOptions{}, "e2e-0002")
	v, err := host(t, block.Options{}, iwarp.Options{}).Open(t.Context(), url("iser", s.Portal("127.0.0.1", 1)), url("iser", o.Portal("127.0.0.1", 1)))
	if err == nil {
		t.Fatal(errors.Join(errors.New("two units are taken for one"), v.Close()))
	}
}

// Commands go where the target port groups say: to the optimized group, and to another one as soon as that is better,
// also while requests are under way.
func TestPathsFollowALUA(t *testing.T) {
	s := stands(t, iwarp.Options{}, stand.BlockOptions{SCSI: scsi.TargetOptions{PortGroups: []scsi.PortGroup{
		{ID: 1, State: scsi.ActiveOptimized, Ports: []uint16{1}}, {ID: 2, State: scsi.ActiveNonOptimized, Ports: []uint16{2}}}}}, "e2e-alua")
	v := open(t, host(t, block.Options{}, iwarp.Options{}), url("iser", s.Portal("127.0.0.1", 1)), url("iscsi", s.Portal("127.0.0.1", 2)))
	inUse := func(want uint16) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // a unit attention has to arrive with some command
			_, err := v.ReadAt(make([]byte, 512), 0)
			must(t, err)
			ok := true
			for _, p := range v.Paths() {
				ok = ok && p.InUse == (p.Group == want)
			}
			if ok {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v", v.Paths())
			}
		}
	}
	inUse(1)
	writers(t, v, 8, 12, 16<<10, func(round int32) {
		a, b := scsi.Standby, scsi.ActiveOptimized
		if round%4 == 0 {
			a, b = b, a
		} else if round%4 != 2 {
			return
		}
		// The better group first: the unit is never without one.
		if b == scsi.ActiveOptimized {
			must(t, errors.Join(s.SCSI.SetPortGroup(2, b), s.SCSI.SetPortGroup(1, a)))
		} else {
			must(t, errors.Join(s.SCSI.SetPortGroup(1, a), s.SCSI.SetPortGroup(2, b)))
		}
	})
	must(t, errors.Join(s.SCSI.SetPortGroup(2, scsi.ActiveOptimized), s.SCSI.SetPortGroup(1, scsi.Unavailable)))
	inUse(2)
	must(t, errors.Join(s.SCSI.SetPortGroup(1, scsi.ActiveOptimized), s.SCSI.SetPortGroup(2, scsi.ActiveNonOptimized)))
	inUse(1)
}

// Commands take turns on paths that are equally good, and leave alone those that are worse.
func TestCommandsTakeTurns(t *testing.T) {
	for _, state := range []scsi.AccessState{scsi.ActiveOptimized, scsi.ActiveNonOptimized} {
		s := stands(t, iwarp.Options{}, stand.BlockOptions{SCSI: scsi.TargetOptions{PortGroups: []scsi.PortGroup{
			{ID: 1, State: scsi.ActiveOptimized, Ports: []uint16{1}}, {ID: 2, State: state, Ports: []uint16{2}}}}}, "e2e-turns")
		a, b := newRelay(t, s.Portal("127.0.0.1", 1)), newRelay(t, s.Portal("127.0.0.1", 2))
		v := open(t, host(t, block.Options{}, iwarp.Options{}), url("iser", a.addr()), url("iser", b.addr()))
		from := [2]int64{a.passed(), b.passed()}
		const n, size = 64, 64 << 10
		for i := range n {
			_, err := v.WriteAt(pattern(size, int64(i)), int64(i*size)%diskSize)
			must(t, err)
		}
		one, other := a.passed()-from[0], b.passed()-from[1]
		if state == scsi.ActiveOptimized && (one < n/4*size || other < n/4*size) || state != scsi.ActiveOptimized && (one < n*size || other > size) {
			t.Errorf("group 2 %v: %d bytes went one way and %d the other", state, one, other)
		}
	}
}
