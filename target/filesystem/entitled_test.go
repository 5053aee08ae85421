package filesystem

import (
	"net/netip"
	"testing"
)

func TestWhoIsEntitledFollowsTheExports(t *testing.T) {
	open := Export{Path: "/a", Dir: t.TempDir(), Clients: []Client{{Match: "10.0.0.0/24"}, {Match: "10.0.1.1", Rights: Rights{Insecure: true}}}}
	s, err := New(Options{}, open)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	check := func(when, host string, privileged, want bool) {
		t.Helper()
		if is := s.Entitled(netip.MustParseAddr(host), privileged); is != want {
			t.Errorf("%s: %s is entitled: %v", when, host, is)
		}
	}
	check("at first", "10.0.0.7", true, true)
	check("at first, without root", "10.0.0.7", false, false)
	check("at first, without root", "10.0.1.1", false, true)
	check("at first", "10.0.2.1", true, false)
	open.Clients = open.Clients[1:]
	named := Export{Path: "/b", Dir: t.TempDir(), Clients: []Client{{Match: "host.example"}}}
	if err := s.SetExports(open); err != nil {
		t.Fatal(err)
	}
	check("with its rule gone", "10.0.0.7", true, false)
	if err := s.SetExports(open, named); err != nil {
		t.Fatal(err)
	}
	check("where only a name server could tell", "10.0.0.7", true, true)
	if err := s.SetExports(); err != nil {
		t.Fatal(err)
	}
	check("without exports", "10.0.1.1", true, false)
}
