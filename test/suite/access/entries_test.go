package access

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is wrong with one target's secrets is that target's problem: others are served, and changes of others are made.
func TestAWrongLineOfSecretsIsOneTargetsProblem(t *testing.T) {
	conf := twoVolumes + `
targets:
  - {name: "` + disks + `", luns: [{lun: 0, volume: a}], auth: {secrets_file: secrets}}
  - {name: "` + others + `", luns: [{lun: 0, volume: b}]}
`
	al := login{alice, "al", "als-own-secret"}
	s := prepare(t, conf)
	s.write("secrets", "al als-own-secret\nshort x\n")
	s.start()
	s.admits(login{name: alice}, others, 0)
	s.keepsOut(al, disks, "Target not found")
	if out := s.does("target list"); !strings.Contains(out, "NOT SERVED") || !strings.Contains(out, "line 2") {
		t.Errorf("what is wrong is not said:\n%s", out)
	}
	s.does("volume create more 1MiB")
	s.does("target map " + others + " 1 more")
	s.sees(login{name: alice}, others, 0, 1)
	s.does("config reload")
	s.keepsOut(al, disks, "Target not found")
	s.write("secrets", "al als-own-secret\n")
	s.does("config reload")
	s.admits(al, disks, 0)
	// It goes wrong while the target is served: a reload refuses it, other changes do not look at it, and it is served as it was.
	s.write("secrets", "al\n")
	s.refuses("", "config reload", "line 1")
	s.does("target unmap " + others + " 1")
	s.sees(al, others, 0)
	s.admits(al, disks, 0)
}

// A state file that cannot be read keeps its target away, not the others.
func TestAStateFileThatCannotBeReadIsOneTargetsProblem(t *testing.T) {
	s := begin(t, twoVolumes+`
targets:
  - {name: "`+disks+`", luns: [{lun: 0, volume: a}]}
  - {name: "`+others+`", luns: [{lun: 0, volume: b}]}
`)
	s.does("target set-group " + disks + " 1 standby")
	s.stop()
	files, err := filepath.Glob(filepath.Join(s.dir, "state", "scsi", "target-*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v %v", files, err)
	}
	if err := os.WriteFile(files[0], []byte("not what was written"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.admits(login{name: alice}, others, 0)
	s.keepsOut(login{name: alice}, disks, "Target not found")
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	s.does("config reload")
	s.admits(login{name: alice}, disks, 0)
}

// A file that has become empty is a mistake, an editor's or a full disk's: it takes nothing away.
func TestAnEmptiedFileTakesNothingAway(t *testing.T) {
	conf := twoVolumes + `
targets: [{name: "` + disks + `", luns: [{lun: 0, volume: a}]}]
`
	s := begin(t, conf)
	s.does("target map " + disks + " 1 b")
	for _, nothing := range []string{"", "\n# all of it is gone\n---\n"} {
		s.write("sluiced.yaml", nothing)
		s.refuses("", "config reload", "empty")
		s.hangup()
		s.refuses("", "volume create more 1MiB", "empty")
		s.sees(login{name: alice}, disks, 0, 1)
	}
	s.reload(conf)
	s.restart()
	s.sees(login{name: alice}, disks, 0, 1)
}

// A volume that leaves the operator's file while it is a LUN by command: a reload refuses to take the LUN away, and so does a
// change of something else. A start serves what is there and keeps the map for when the volume is back.
func TestAMapOutlivesAVolumeThatIsMissing(t *testing.T) {
	without := strings.Replace(twoVolumes, "  - {name: b, engine: mem, size: 1MiB}\n", "", 1)
	s := begin(t, twoVolumes)
	s.does("volume create more 1MiB")
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	s.does("target map " + disks + " 1 b")
	s.does("target map " + disks + " 2 more")
	s.write("sluiced.yaml", without)
	s.refuses("", "config reload", "unmap "+disks+" 1")
	s.refuses("", "target unmap "+disks+" 2", "unmap "+disks+" 1")
	s.sees(login{name: alice}, disks, 0, 1, 2)
	s.restart()
	s.sees(login{name: alice}, disks, 0, 2)
	s.does("volume resize more 2MiB")
	s.reload(twoVolumes)
	s.sees(login{name: alice}, disks, 0, 1, 2)
	// Its number can be given away, and the LUN that was waiting is gone then.
	s.write("sluiced.yaml", without)
	s.restart()
	s.does("volume create new 1MiB")
	s.does("target map " + disks + " 1 new")
	s.reload(twoVolumes)
	s.sees(login{name: alice}, disks, 0, 1, 2)
	s.does("target unmap " + disks + " 1")
	s.sees(login{name: alice}, disks, 0, 2)
	s.refuses("", "target map "+disks+" 4 nowhere", "no volume")
	s.refuses("", "target map "+disks+" 4 a", "belongs to one LUN")
}
