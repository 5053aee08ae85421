package access

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const oneTarget = twoVolumes + `
targets:
  - name: ` + disks + `
    luns: [{lun: 0, volume: a}]
    initiators: [{name: "` + alice + `"}, {name: "` + bob + `"}]
    auth: {secrets_file: secrets}
log: {audit: audit}
`

// A user that proves its secret is not every host: it has initiator names of its own, and no other may use them (RFC 7143
// section 9.2).
func TestAUserHasItsOwnInitiatorNames(t *testing.T) {
	s := prepare(t, oneTarget)
	s.write("secrets", "al als-own-secret "+alice+" "+alice+".b\nbo bobs-own-secret "+bob+"\nfree anyones-secret\n"+bob+" named-as-its-host\n")
	s.start()
	s.admits(login{alice, "al", "als-own-secret"}, disks, 0)
	s.admits(login{bob, "bo", "bobs-own-secret"}, disks, 0)
	s.admits(login{bob, bob, "named-as-its-host"}, disks, 0)
	s.keepsOut(login{alice, "bo", "bobs-own-secret"}, disks, "Authentication failure")
	s.keepsOut(login{bob, "al", "als-own-secret"}, disks, "Authentication failure")
	s.keepsOut(login{alice, "free", "anyones-secret"}, disks, "Authentication failure")
	s.keepsOut(login{alice, bob, "named-as-its-host"}, disks, "Authentication failure")
	// The record says who it was, both times. It is complete when the daemon has ended.
	s.stop()
	var began, refused bool
	for line := range strings.Lines(s.read("audit")) {
		began = began || strings.Contains(line, "session began") && strings.Contains(line, `"user":"al"`)
		refused = refused || strings.Contains(line, "login refused") && strings.Contains(line, `"user":"bo"`) && strings.Contains(line, alice)
	}
	if !began || !refused {
		t.Errorf("the record does not name the users:\n%s", s.read("audit"))
	}
}

// Without names a user may log in under those that no other user has, as files of earlier versions mean it.
func TestAUserWithoutNamesMayUseThoseOfNobody(t *testing.T) {
	s := prepare(t, oneTarget)
	s.write("secrets", "al als-own-secret\nbo bobs-own-secret\n")
	s.start()
	s.admits(login{alice, "al", "als-own-secret"}, disks, 0)
	s.admits(login{alice, "bo", "bobs-own-secret"}, disks, 0)
}

func TestTheInterfaceBindsAUserToItsNames(t *testing.T) {
	s := begin(t, twoVolumes)
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	s.refuses("als-own-secret\n", "target secret "+disks+" al --initiator nonsense", "nonsense")
	s.doesWith("als-own-secret\n", "target secret "+disks+" al --initiator "+alice)
	s.admits(login{alice, "al", "als-own-secret"}, disks, 0)
	s.keepsOut(login{bob, "al", "als-own-secret"}, disks, "Authentication failure")
	// A new secret leaves the names as they are.
	s.doesWith("als-second-secret\n", "target secret "+disks+" al")
	s.restart()
	s.admits(login{alice, "al", "als-second-secret"}, disks, 0)
	s.keepsOut(login{bob, "al", "als-second-secret"}, disks, "Authentication failure")
}

func TestNoUserIsCalledMutual(t *testing.T) {
	s := begin(t, twoVolumes)
	s.does("target create " + disks)
	s.refuses("a-long-enough-secret\n", "target secret "+disks+" mutual", "no user is called mutual")
	s.refuses("a-long-enough-secret\n", "target secret "+disks+" mutual --mutual", "no user is called mutual")
}

// A target's own secret makes CHAP a must. Without a user no initiator could log in to it, so the secret is refused.
func TestTheTargetsOwnSecretNeedsAUser(t *testing.T) {
	s := begin(t, twoVolumes)
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	s.refuses("the-targets-own-one\n", "target secret "+disks+" us --mutual", "there is no user yet")
	s.admits(login{alice, "", ""}, disks, 0)
}

// One secret for both directions lets a peer prove with what it was just told (RFC 7143 section 9.2.1).
func TestTheTargetsOwnSecretIsNoUsers(t *testing.T) {
	s := begin(t, twoVolumes)
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	s.doesWith("als-own-secret\n", "target secret "+disks+" al")
	s.refuses("als-own-secret\n", "target secret "+disks+" us --mutual", "9.2.1")
	s.doesWith("the-targets-own-one\n", "target secret "+disks+" us --mutual")
	s.refuses("the-targets-own-one\n", "target secret "+disks+" bo", "9.2.1")
	s.admits(login{alice, "al", "als-own-secret"}, disks, 0)
}

// libiscsi offers CHAP wherever it is given a user, and says its name again in each request of a login.
func TestASecretThatNobodyAsksForDoesNoHarm(t *testing.T) {
	s := begin(t, twoVolumes+`
targets: [{name: "`+disks+`", luns: [{lun: 0, volume: a}]}]
`)
	al := login{alice, "al", "a-secret-that-is-unknown"}
	if got := s.discovers(al); len(got) != 1 || got[0] != disks {
		t.Errorf("discovered %v", got)
	}
	s.admits(al, disks, 0)
}

// Who is kept out is kept out, also where the target proves itself by the same name.
func TestRemovingASecretKeepsTheUserOutUnderANameOfBoth(t *testing.T) {
	s := begin(t, twoVolumes)
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	s.doesWith("als-own-secret\n", "target secret "+disks+" al")
	s.doesWith("the-targets-own-one\n", "target secret "+disks+" al --mutual")
	s.refuses("", "target secret "+disks+" al --remove --yes", "is the last")
	s.doesWith("bobs-own-secret\n", "target secret "+disks+" bo")
	if out := s.does("target secret " + disks + " al --remove --yes"); !strings.Contains(out, "target's own") {
		t.Errorf("both are not said:\n%s", out)
	}
	s.keepsOut(login{alice, "al", "als-own-secret"}, disks, "Authentication failure")
	s.admits(login{bob, "bo", "bobs-own-secret"}, disks, 0)
	if b, err := os.ReadFile(filepath.Join(s.dir, "state", "secrets", disks)); err != nil || strings.Contains(string(b), "al ") {
		t.Errorf("the secrets are\n%s%v", b, err)
	}
}

// What an initiator sees is said, for allowing it again without LUNs lets it see all.
func TestAllowSaysWhatIsSeen(t *testing.T) {
	s := begin(t, twoVolumes)
	s.does("target create " + disks)
	for args, want := range map[string]string{" --lun 0 --lun 3": "and sees of its LUNs 0 and 3", "": "and sees every LUN"} {
		if out := s.does("target allow " + disks + " " + alice + args); !strings.Contains(out, want) {
			t.Errorf("allow%s does not say %q:\n%s", args, want, out)
		}
	}
}
