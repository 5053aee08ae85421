package access

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

const authTarget = twoVolumes + `
targets:
  - name: ` + disks + `
    luns: [{lun: 0, volume: a}]
    auth: {secrets_file: secrets%s}
`

// auth.mutual_user: libiscsi asks the target for its proof and believes no other.
func TestTheTargetProvesItself(t *testing.T) {
	s := prepare(t, fmt.Sprintf(authTarget, ", mutual_user: us"))
	s.write("secrets", "al als-own-secret\nmutual us the-targets-own-one\nmutual them another-of-its-own\n")
	s.start()
	al := login{alice, "al", "als-own-secret"}
	s.admits(al, disks, 0)
	for secret, good := range map[string]bool{"the-targets-own-one": true, "another-of-its-own": false} {
		out, err := s.tool("iscsi-inq", "-i", alice, al.url(s.portals[0])+"/"+disks+"/0?target_user=us&target_password="+secret)
		if (err == nil && strings.Contains(out, "CONNECTED")) != good {
			t.Errorf("expecting %s of the target: %v\n%s", secret, err, out)
		}
	}
}

// auth.algorithms: what is not listed is not accepted, and the strongest in common is chosen.
func TestAlgorithmsAreThoseConfigured(t *testing.T) {
	s := prepare(t, fmt.Sprintf(authTarget, ", algorithms: [SHA-256, SHA-1]"))
	s.write("secrets", "al als-own-secret\n")
	s.start()
	for offer, want := range map[string]string{"5": "", "8,5": "", "5,6": "6", "5,6,7": "6", "7,6": "7"} {
		nc, err := net.DialTimeout("tcp", s.portals[0], patience)
		if err != nil {
			t.Fatal(err)
		}
		q := iscsi.LoginRequest{CSG: iscsi.StageSecurity, ITT: 1, CmdSN: 1, ISID: iscsi.ISID{0x80, 0, 0, 1, 2, 3}}
		ask(t, nc, &q, "InitiatorName="+alice, "TargetName="+disks, "AuthMethod=CHAP")
		r, keys := ask(t, nc, &q, "CHAP_A="+offer)
		if keys["CHAP_A"] != want || (r.Status == iscsi.LoginAuthFailed) != (want == "") {
			t.Errorf("offered %s: status %04x, chose %q, wanted %q", offer, uint16(r.Status), keys["CHAP_A"], want)
		}
		_ = nc.Close()
	}
}

// discovery_auth: discovery wants a secret, logins to targets that ask for none do not.
func TestDiscoveryCanAskForASecret(t *testing.T) {
	s := prepare(t, twoVolumes+`
targets: [{name: "`+disks+`", luns: [{lun: 0, volume: a}]}]
discovery_auth: {secrets_file: secrets}
`)
	s.write("secrets", "al als-own-secret "+alice+"\n")
	s.start()
	if got := s.discovers(login{alice, "al", "als-own-secret"}); !slices.Equal(got, []string{disks}) {
		t.Errorf("discovered %v", got)
	}
	for _, l := range []login{{name: alice}, {alice, "al", "not-als-own-secret"}, {bob, "al", "als-own-secret"}} {
		if out, err := s.tool("iscsi-ls", "-i", l.name, l.url(s.portals[0])); err == nil {
			t.Errorf("%+v discovers:\n%s", l, out)
		}
	}
	s.admits(login{name: bob}, disks, 0)
}

// redirect: logins are sent elsewhere, and arrive there.
func TestARedirectedLoginArrivesElsewhere(t *testing.T) {
	there := begin(t, twoVolumes+`
targets: [{name: "`+disks+`", luns: [{lun: 5, volume: a}]}]
`)
	here := begin(t, head+`
targets: [{name: "`+disks+`", redirect: "`+there.portals[0]+`"}]
`)
	r, keys := here.firstResponse("InitiatorName="+alice, "TargetName="+disks, "SessionType=Normal", "AuthMethod=None")
	if r.Status != iscsi.LoginMovedTemporarily || keys["TargetAddress"] != there.portals[0] {
		t.Errorf("status %04x, TargetAddress %q", uint16(r.Status), keys["TargetAddress"])
	}
	here.admits(login{name: alice}, disks, 5)
	here.reload(head + `
volumes: [{name: c, engine: mem, size: 1MiB}]
targets: [{name: "` + disks + `", luns: [{lun: 2, volume: c}]}]
`)
	here.admits(login{name: alice}, disks, 2)
}

// isns: targets and portals are registered when the daemon begins and taken back when it ends (RFC 4171).
func TestTargetsAreRegisteredWithISNS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	type message struct {
		function uint16
		body     []byte
	}
	got, done := make(chan message, 64), make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			var h [12]byte
			if _, err := io.ReadFull(nc, h[:]); err == nil {
				b := make([]byte, binary.BigEndian.Uint16(h[4:]))
				if _, err := io.ReadFull(nc, b); err == nil {
					got <- message{binary.BigEndian.Uint16(h[2:]), b}
					h[2] |= 0x80 // the response, with status 0
					binary.BigEndian.PutUint16(h[4:], 4)
					_, _ = nc.Write(append(h[:], 0, 0, 0, 0))
				}
			}
			_ = nc.Close()
		}
	}()
	defer func() { _ = l.Close(); <-done }()
	s := begin(t, twoVolumes+`
targets: [{name: "`+disks+`", luns: [{lun: 0, volume: a}]}]
isns: "`+l.Addr().String()+`"
`)
	next := func(function uint16, name string) {
		t.Helper()
		late := time.After(patience)
		for {
			select {
			case m := <-got:
				if m.function == function && bytes.Contains(m.body, []byte(name)) {
					return
				}
			case <-late:
				t.Fatalf("no message of function %d with %s", function, name)
			}
		}
	}
	next(1, disks)
	s.does("target create " + others)
	next(1, others)
	s.stop()
	next(4, disks)
}

// A volume's serial is what a host reads (SPC-4, page 80h).
func TestTheSerialIsTheConfiguredOne(t *testing.T) {
	s := begin(t, head+`
volumes: [{name: a, engine: mem, size: 1MiB, serial: "SER-0815"}]
targets: [{name: "`+disks+`", luns: [{lun: 0, volume: a}]}]
`)
	out, err := s.tool("iscsi-inq", "-i", alice, "-e", "1", "-c", strconv.Itoa(0x80), "iscsi://"+s.portals[0]+"/"+disks+"/0")
	if err != nil || !strings.Contains(out, "SER-0815") {
		t.Errorf("%v\n%s", err, out)
	}
}

// direct: the file is open past the page cache.
func TestADirectVolumeIsOpenPastThePageCache(t *testing.T) {
	s := prepare(t, head+`
volumes:
  - {name: past, path: past.img, size: 1MiB, direct: true}
  - {name: through, path: through.img, size: 1MiB}
targets: [{name: "`+disks+`", luns: [{lun: 0, volume: past}, {lun: 1, volume: through}]}]
`)
	for _, name := range []string{"past.img", "through.img"} {
		s.write(name, strings.Repeat("\x00", 1<<20))
	}
	s.start()
	direct := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if err != nil || !strings.HasSuffix(to, ".img") {
			continue
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", s.cmd.Process.Pid, filepath.Base(fd)))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "flags:")
		flags, err := strconv.ParseInt(strings.Fields(rest)[0], 8, 64)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(to)
		direct[name] = direct[name] || flags&unix.O_DIRECT != 0
	}
	if !direct["past.img"] || direct["through.img"] || len(direct) != 2 {
		t.Errorf("open past the page cache: %v", direct)
	}
	s.sees(login{name: alice}, disks, 0, 1)
}

// log.format: json makes every line one object. log.audit: logins, refusals and changes go to a file of their own.
func TestTheLogIsWhatItIsConfiguredToBe(t *testing.T) {
	s := begin(t, twoVolumes+`
log: {format: json, audit: audit}
targets: [{name: "`+disks+`", luns: [{lun: 0, volume: a}], initiators: [{name: "`+alice+`"}]}]
`)
	s.admits(login{name: alice}, disks, 0)
	s.keepsOut(login{name: bob}, disks, "")
	s.does("target create " + others)
	s.stop()
	lines := 0
	for line := range strings.Lines(s.out.String()) {
		lines++
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
	if lines == 0 {
		t.Error("nothing was logged")
	}
	audit := s.read("audit")
	for _, want := range []string{"session began", "login refused", "admin request"} {
		if !strings.Contains(audit, want) {
			t.Errorf("%q is not in the record:\n%s", want, audit)
		}
		if strings.Contains(s.out.String(), want) {
			t.Errorf("%q is in the log although there is a record", want)
		}
	}
	for line := range strings.Lines(audit) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON in the record: %s", line)
		}
	}
}
