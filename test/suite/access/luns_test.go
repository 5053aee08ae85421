package access

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const twoVolumes = head + `
volumes:
  - {name: a, engine: mem, size: 1MiB}
  - {name: b, engine: mem, size: 1MiB}
`

// Who is let in without a list of LUNs sees all of them: those that are mapped and those that will be.
func TestAllowedWithoutLUNsSeesEveryLUN(t *testing.T) {
	s := begin(t, twoVolumes)
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	s.does("target allow " + disks + " " + alice)
	s.sees(login{name: alice}, disks, 0)
	s.does("target map " + disks + " 1 b")
	s.sees(login{name: alice}, disks, 0, 1)
	s.keepsOut(login{name: bob}, disks, "")
	s.does("target allow " + disks + " " + bob + " --lun 1")
	s.sees(login{name: bob}, disks, 1)
	s.restart()
	s.sees(login{name: alice}, disks, 0, 1)
	s.sees(login{name: bob}, disks, 1)
	s.does("target allow " + disks + " " + bob)
	s.sees(login{name: bob}, disks, 0, 1)
}

func TestInitiatorsOfANewTargetSeeEveryLUN(t *testing.T) {
	s := begin(t, twoVolumes)
	s.does("target create " + disks + " --initiator " + alice)
	s.does("target map " + disks + " 0 a")
	s.sees(login{name: alice}, disks, 0)
	s.does("target map " + disks + " 7 b")
	s.sees(login{name: alice}, disks, 0, 7)
	s.keepsOut(login{name: bob}, disks, "")
}

// An older daemon wrote "luns: []" of an initiator that was allowed without --lun.
func TestAnOlderManagedFileMeansEveryLUN(t *testing.T) {
	s := prepare(t, twoVolumes)
	s.write("state/managed.yaml", `
targets:
- name: `+disks+`
  luns: []
  initiators:
  - name: `+alice+`
    luns: []
maps:
- {target: "`+disks+`", lun: 0, volume: a}
- {target: "`+disks+`", lun: 1, volume: b}
`)
	s.start()
	s.sees(login{name: alice}, disks, 0, 1)
}

// In the operator's own file an empty list was written on purpose: it names no LUN. Taking it away is a change.
func TestAnEmptyListInTheOperatorsFileHidesEveryLUN(t *testing.T) {
	conf := func(luns string) string {
		return twoVolumes + `
targets:
  - name: ` + disks + `
    luns: [{lun: 0, volume: a}]
    initiators: [{name: "` + alice + `"` + luns + `}]
`
	}
	s := begin(t, conf(", luns: []"))
	s.sees(login{name: alice}, disks)
	if out := s.does("config show --live"); !strings.Contains(out, "luns: []") {
		t.Errorf("the empty list is not shown:\n%s", out)
	}
	s.reload(conf(""))
	s.sees(login{name: alice}, disks, 0)
	s.reload(conf(", luns: []"))
	s.sees(login{name: alice}, disks)
}

// A target that was deleted leaves nothing to a later one of its name.
func TestADeletedTargetsMapIsGone(t *testing.T) {
	s := begin(t, twoVolumes)
	s.does("volume create v 1MiB")
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	s.does("target map " + disks + " 3 v")
	s.sees(login{name: alice}, disks, 0, 3)
	s.does("target delete " + disks + " --yes")
	s.does("volume delete v --yes")
	s.does("target create " + disks)
	s.sees(login{name: alice}, disks)
	s.restart()
	s.sees(login{name: alice}, disks)
}

// Maps of targets that are gone, which older daemons left in managed.yaml, hold no volume and come back with no target.
func TestAnOlderDaemonsLeftMapsDoNotComeBack(t *testing.T) {
	s := prepare(t, twoVolumes)
	s.write("state/managed.yaml", `
volumes:
- {name: v, engine: file, path: "`+filepath.Join(s.dir, "state", "v.img")+`", size: 1MiB}
maps:
- {target: "`+disks+`", lun: 0, volume: a}
- {target: "`+disks+`", lun: 1, volume: v}
- {target: "`+others+`", lun: 1, volume: v}
`)
	s.write("state/v.img", strings.Repeat("\x00", 1<<20))
	s.start()
	s.does("target create " + disks)
	s.sees(login{name: alice}, disks)
	s.does("volume delete v --yes")
	s.does("target create " + others)
	s.sees(login{name: alice}, others)
}

// A map goes with a target that leaves the operator's file, too.
func TestAMapGoesWithTheOperatorsTarget(t *testing.T) {
	with := twoVolumes + `
targets: [{name: "` + disks + `", luns: [{lun: 0, volume: a}]}]
`
	s := begin(t, with)
	s.does("target map " + disks + " 1 b")
	s.sees(login{name: alice}, disks, 0, 1)
	s.reload(twoVolumes)
	s.reload(with)
	s.sees(login{name: alice}, disks, 0)
	s.restart()
	s.sees(login{name: alice}, disks, 0)
}

// A secret that was valid for a deleted target opens no later one of its name.
func TestADeletedTargetsSecretsAreGone(t *testing.T) {
	s := begin(t, twoVolumes)
	joe := login{alice, "joe", "joes-first-secret"}
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	s.doesWith(joe.secret+"\n", "target secret "+disks+" joe")
	s.admits(joe, disks, 0)
	s.does("target delete " + disks + " --yes")
	if left, _ := filepath.Glob(filepath.Join(s.dir, "state", "secrets", "*")); len(left) > 0 {
		t.Errorf("secrets are left: %v", left)
	}
	// A daemon that was killed between its two steps may have left them all the same.
	s.write("state/secrets/"+disks, "joe "+joe.secret+"\n")
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	s.doesWith("anns-only-secret\n", "target secret "+disks+" ann")
	s.admits(login{alice, "ann", "anns-only-secret"}, disks, 0)
	s.keepsOut(joe, disks, "Authentication failure")
	if b, err := os.ReadFile(filepath.Join(s.dir, "state", "secrets", disks)); err != nil || slices.Contains(strings.Fields(string(b)), "joe") {
		t.Errorf("%v: %s", err, b)
	}
}

// States of port groups that an operator set are not inherited.
func TestALaterTargetBeginsWithItsOwnPortGroups(t *testing.T) {
	with := twoVolumes + `
targets:
  - name: ` + disks + `
    luns: [{lun: 0, volume: a}]
    port_groups: [{group: 5, portals: [1]}]
`
	s := begin(t, with)
	s.does("target set-group " + disks + " 5 standby")
	s.reload(twoVolumes)
	s.reload(with)
	type group struct{ State string }
	if g := asks[[]group](s, "target groups "+disks); len(g) != 1 || g[0].State != "active/optimized" {
		t.Errorf("a later target has the states of the one before: %+v", g)
	}
	s.does("target create " + others)
	s.does("target set-group " + others + " 1 standby")
	s.does("target delete " + others + " --yes")
	s.does("target create " + others)
	if g := asks[[]group](s, "target groups "+others); len(g) != 1 || g[0].State != "active/optimized" {
		t.Errorf("a later target has the states of the one before: %+v", g)
	}
}

// A target that leaves the operator's file takes the LUNs that were mapped into it with it, however the daemon learns of that: a later
// target of its name is another one's.
func TestATargetThatLeavesTheFileTakesItsMapsAlong(t *testing.T) {
	served := twoVolumes + "targets: [{name: \"" + disks + "\", luns: [{lun: 0, volume: a}]}]\n"
	for name, leaves := range map[string]func(s *stand){
		"by a reload": func(s *stand) { s.reload(twoVolumes) },
		"by a command": func(s *stand) {
			s.write("sluiced.yaml", twoVolumes)
			s.does("target create " + disks + "-other")
		},
		"while the daemon is down": func(s *stand) {
			if code := s.stop(); code != 0 {
				t.Errorf("sluiced ended with %d", code)
			}
			s.write("sluiced.yaml", twoVolumes)
			s.start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, served)
			s.does("target map " + disks + " 1 b")
			s.sees(login{name: alice}, disks, 0, 1)
			leaves(s)
			s.reload(served)
			s.sees(login{name: alice}, disks, 0)
			s.restart()
			s.sees(login{name: alice}, disks, 0)
		})
	}
}
