package daemon

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/target/scsi"
)

// watched joins a nexus to a target and returns what it is told of asynchronously.
func watched(t *testing.T, st *scsi.Target, group uint16) chan scsi.AsyncEvent {
	ch := make(chan scsi.AsyncEvent, 16)
	n := st.NewNexus(scsi.NexusOptions{InitiatorName: "iqn.2026-11.io.sluice:host", TargetPortGroup: group, Async: func(e scsi.AsyncEvent) { ch <- e }})
	t.Cleanup(func() {
		gone := make(chan struct{})
		n.Close(func() { close(gone) })
		<-gone
	})
	return ch
}

func told(t *testing.T, ch chan scsi.AsyncEvent, asc, ascq byte) {
	t.Helper()
	select {
	case e := <-ch:
		if e.Sense[2] != 6 || e.Sense[12] != asc || e.Sense[13] != ascq {
			t.Errorf("sense % x, want %02X/%02X", e.Sense, asc, ascq)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("nobody was told")
	}
}

// A sparse volume that is larger than the room below it warns its initiators, once; atomic writes are offered where
// they are asked for; a thick volume takes its room and offers no UNMAP.
func TestRoomAndAtomicWritesAreConfigured(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	cfg, err := ParseConfig(file, []byte(`
state_dir: state
volumes:
  - {name: thin, size: 8TiB, low_space: 8TiB, atomic: true}
  - {name: thick, size: 1MiB, thick: true}
targets:
  - name: iqn.2026-11.io.sluice:test
    luns: [{lun: 0, volume: thin}, {lun: 1, volume: thick}]
portals: [{address: "127.0.0.1:0"}]
`))
	if err != nil {
		t.Fatal(err)
	}
	makeFiles(t, cfg)
	d, err := New(cfg, zap.NewNop()) // not run: nobody else looks at the room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.closeAll(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ch := watched(t, d.targets["iqn.2026-11.io.sluice:test"], 1)
	d.checkSpace()
	d.checkSpace()
	told(t, ch, 0x38, 0x07)
	if len(ch) != 0 {
		t.Errorf("told %d times more", len(ch))
	}
	if g := d.volumes["thin"].dev.Geometry(); g.AtomicMax != 128<<10 {
		t.Errorf("%+v", g)
	}
	dir := filepath.Join(filepath.Dir(file), "state")
	if _, err := os.Stat(filepath.Join(dir, "thin.img.redo")); err != nil {
		t.Error(err)
	}
	g := d.volumes["thick"].dev.Geometry()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "thick.img"), &st); err != nil || st.Blocks*512 < 1<<20 || g.Thin || g.DiscardUnit != 0 {
		t.Errorf("%v, %d blocks taken, %+v", err, st.Blocks, g)
	}
}

const groupsConfig = `
state_dir: state
portals: [{address: "127.0.0.1:0", group: 1}, {address: "127.0.0.2:0", group: 2}]
volumes: [{name: ram, engine: mem, size: 1MiB}]
targets:
  - name: iqn.2026-11.io.sluice:test
    luns: [{lun: 0, volume: ram}]
    port_groups:
      - {group: 11, portals: [1], preferred: true}
      - {group: 12, portals: [2], state: active/non-optimized}
`

// States of port groups change at a reload, and sessions learn of it; other groups end the sessions.
func TestPortGroupsAreConfigured(t *testing.T) {
	d, _ := running(t, groupsConfig)
	st := d.targets["iqn.2026-11.io.sluice:test"]
	is := func(st *scsi.Target) string {
		var l []string
		for _, g := range st.PortGroups() {
			l = append(l, g.State.String())
		}
		return strings.Join(l, " ")
	}
	if got := is(st); got != "active/optimized active/non-optimized" {
		t.Fatal(got)
	}
	reload := func(conf string) {
		t.Helper()
		c, err := ParseConfig(d.source, []byte(conf))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Reload(c); err != nil {
			t.Fatal(err)
		}
	}
	ch := watched(t, st, 2)
	reload(strings.Replace(groupsConfig, "non-optimized", "optimized", 1))
	told(t, ch, 0x2A, 0x06)
	if now := d.targets["iqn.2026-11.io.sluice:test"]; now != st || is(st) != "active/optimized active/optimized" {
		t.Errorf("%v, %s", now == st, is(st))
	}
	reload(strings.Replace(groupsConfig, "group: 12", "group: 13", 1))
	if now := d.targets["iqn.2026-11.io.sluice:test"]; now == st || now.PortGroups()[1].ID != 13 {
		t.Error("the groups are the old ones")
	}
}

func TestWrongPortGroupsAreRefused(t *testing.T) {
	for change, want := range map[string]string{
		"group: 12,=group: 11,":                           "port group 11 is there twice",
		"portals: [2]=portals: [1]":                       "portal group tag 1 is in the port groups 11 and 12",
		"portals: [2]=portals: [3]":                       "no portal has the group tag 3",
		"portals: [2]=portals: []":                        "port group 12 has no portals",
		"group: 12, =":                                    "a port group needs a number",
		"active/non-optimized=offline":                    `state "offline" is none of`,
		"    port_groups=    alua: none\n    port_groups": "port groups need alua",
		"size: 1MiB=size: 1MiB, atomic: true":             "keeps nothing across a loss of power",
		"size: 1MiB=size: 1MiB, thick: true":              "low_space and thick",
	} {
		a, b, _ := strings.Cut(change, "=")
		if _, err := ParseConfig("/x/c.yaml", []byte(strings.Replace(groupsConfig, a, b, 1))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", change, err)
		}
	}
}
