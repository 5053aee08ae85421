package access

import (
	"net"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// A portal's group tag can be changed while it serves: discovery and logins give the new one (RFC 7143 section 13.9), and what names
// the groups follows.
func TestAChangedGroupTagIsApplied(t *testing.T) {
	conf := func(group string) string {
		return `
state_dir: state
timeouts: {drain: 1s}
portals: [{address: "127.0.0.1:0", group: ` + group + `}]
volumes: [{name: a, engine: mem, size: 1MiB}]
targets:
  - name: ` + disks + `
    luns: [{lun: 0, volume: a}]
    port_groups: [{group: 4, portals: [` + group + `], state: active/optimized}]
`
	}
	s := begin(t, conf("1"))
	was := s.portals[0]
	if got := s.groupTag(); got != "1" {
		t.Fatalf("the login gives group %q", got)
	}
	s.write("sluiced.yaml", conf("7"))
	if out := s.does("config reload"); strings.Contains(out, "starts again") {
		t.Errorf("the new tag waits for a restart:\n%s", out)
	}
	if got := s.groupTag(); got != "7" {
		t.Errorf("the login gives group %q after the tag has become 7", got)
	}
	if out, err := s.tool("iscsi-ls", "-i", alice, "iscsi://"+was); err != nil || !strings.Contains(out, was+",7") {
		t.Errorf("%v: discovery does not give the new tag:\n%s", err, out)
	}
	for _, p := range asks[[]struct {
		Address string
		Group   uint16
	}](s, "portals") {
		if p.Group != 7 || p.Address != was {
			t.Errorf("%+v", p)
		}
	}
	s.admits(login{name: alice}, disks, 0)
}

// groupTag is TargetPortalGroupTag of a login's first response.
func (s *stand) groupTag() string {
	s.t.Helper()
	r, keys := s.firstResponse("InitiatorName="+alice, "TargetName="+disks, "SessionType=Normal", "AuthMethod=None")
	if r.Status != iscsi.LoginSuccess {
		s.t.Fatalf("login status %v", r.Status)
	}
	return keys["TargetPortalGroupTag"]
}

// firstResponse sends one login request in the security stage and returns what the target answers.
func (s *stand) firstResponse(keys ...string) (iscsi.LoginResponse, map[string]string) {
	s.t.Helper()
	nc, err := net.DialTimeout("tcp", s.portals[0], patience)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	return ask(s.t, nc, &iscsi.LoginRequest{CSG: iscsi.StageSecurity, ITT: 1, CmdSN: 1, ISID: iscsi.ISID{0x80, 0, 0, 1, 2, 3}}, keys...)
}
