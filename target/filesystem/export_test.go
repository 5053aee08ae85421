package filesystem

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(apartEnv) != "" {
		os.Exit(m.Run()) // threads apart wait ten seconds for the next use
	}
	goleak.VerifyTestMain(m)
}

func rules(t *testing.T, clients ...Client) *Served {
	t.Helper()
	e := &Served{}
	for _, c := range clients {
		r, err := parseRule(c)
		if err != nil {
			t.Fatal(err)
		}
		e.rules = append(e.rules, r)
	}
	return e
}

// The first rule that matches a client counts, be it an address, a prefix, a name or everybody; who matches none is out.
func TestFirstRuleThatMatchesCounts(t *testing.T) {
	rw, ro := Rights{}, Rights{ReadOnly: true}
	list := []Client{{"192.0.2.7", rw}, {"192.0.2.0/24", ro}, {"2001:db8::/32", rw}, {"LocalHost", Rights{Squash: SquashAll}}, {"10.1.2.3/8", ro}}
	e := rules(t, list...)
	n := newNames(nil)
	defer n.close()
	all := rules(t, append(list, Client{"*", Rights{ReadOnly: true, Squash: SquashAll}})...)
	for addr, want := range map[string]*Rights{
		"192.0.2.7": &list[0].Rights, "192.0.2.8": &list[1].Rights, "192.0.3.1": nil, "2001:db8:1::1": &list[2].Rights, "2001:db9::1": nil,
		"127.0.0.1": &list[3].Rights, "10.255.0.1": &list[4].Rights, "11.0.0.1": nil,
	} {
		a := netip.MustParseAddr(addr)
		r, ok, unsure := e.rightsOf(a, n.matches)
		if unsure || ok != (want != nil) || ok && r != *want {
			t.Errorf("%s: %+v, %v", addr, r, ok)
		}
		if want == nil {
			want = &Rights{ReadOnly: true, Squash: SquashAll}
		}
		if r, ok, _ := all.rightsOf(a, n.matches); !ok || r != *want {
			t.Errorf("%s where * ends the list: %+v, %v", addr, r, ok)
		}
	}
	// A name may have to be asked for, which a connection's reader must not wait for; what comes before it need not.
	if _, _, unsure := e.rightsOf(netip.MustParseAddr("192.0.3.1"), unasked); !unsure {
		t.Error("a name was looked up on a goroutine that must not wait")
	}
	if r, ok, unsure := e.rightsOf(netip.MustParseAddr("192.0.2.8"), unasked); unsure || !ok || !r.ReadOnly {
		t.Errorf("%+v, %v, %v", r, ok, unsure)
	}
	if r, ok, _ := (&Served{Export: Export{Rights: ro}}).rightsOf(netip.MustParseAddr("203.0.113.1"), unasked); !ok || r != ro {
		t.Errorf("an export without rules: %+v, %v", r, ok)
	}
}

func TestRulesThatAreNone(t *testing.T) {
	for _, m := range []string{"", "  ", "192.0.2.0/33", "192.0.2/24", "a.*.org", "*.a.*", "10.0.0.0/8/8"} {
		if _, err := parseRule(Client{Match: m}); err == nil || !strings.Contains(err.Error(), "client") {
			t.Errorf("%q is taken for a rule: %v", m, err)
		}
	}
}

// Squashing maps exactly those whom it names, in all places where a credential names a user or group.
func TestSquash(t *testing.T) {
	e := &Served{Export: Export{AnonUID: 1000, AnonGID: 2000}}
	anon := identity{uid: 1000, gid: 2000}
	sys := func(uid, gid uint32, groups ...uint32) Credential {
		return Credential{Known: true, UID: uid, GID: gid, Groups: groups}
	}
	id := func(uid, gid uint32, groups ...uint32) identity {
		i := identity{uid: uid, gid: gid, n: len(groups)}
		copy(i.groups[:], groups)
		return i
	}
	for _, tc := range []struct {
		what string
		sys  Credential
		sq   Squash
		want identity
	}{
		{"a user, root squashed", sys(7, 8, 9, 10), SquashRoot, id(7, 8, 9, 10)},
		{"root, root squashed", sys(0, 0, 0, 5), SquashRoot, anon},
		{"root's group, root squashed", sys(7, 0, 0, 10), SquashRoot, id(7, 2000, 2000, 10)},
		{"root, nobody squashed", sys(0, 0, 4), SquashNone, id(0, 0)},
		{"root of a group, nobody squashed", sys(0, 7, 4), SquashNone, id(0, 7)},
		{"a user, nobody squashed", sys(7, 0, 0), SquashNone, id(7, 0, 0)},
		{"a user, all squashed", sys(7, 8, 9), SquashAll, anon},
		{"no credential", Credential{}, SquashNone, anon},
		{"no user", sys(^uint32(0), 8), SquashNone, anon},
		{"no group", sys(7, ^uint32(0)), SquashNone, anon},
	} {
		if got := e.identityOf(&tc.sys, tc.sq); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.what, got, tc.want)
		}
	}
}

// A handle is good for the server that holds its key and the export that it was made for, to the last bit.
func TestHandlesAreAuthenticated(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	serve := func(state string, e ...Export) *FS {
		t.Helper()
		s, err := New(Options{StateDir: state}, e...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	s := serve(state, Export{Path: "/a", Dir: dir, ID: 7})
	e := s.table.Load().byPath["/a"]
	h, err := s.makeHandle(e, e.root)
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := s.checkHandle(h); got != e || err != nil || len(h) > MaxHandle {
		t.Fatalf("%d bytes: %v", len(h), err)
	}
	for i := range len(h) * 8 {
		h[i/8] ^= 1 << (i % 8)
		if _, _, err := s.checkHandle(h); err == nil {
			t.Fatalf("bit %d may be changed", i)
		}
		h[i/8] ^= 1 << (i % 8)
	}
	for n := range h {
		if _, _, err := s.checkHandle(h[:n]); err == nil {
			t.Fatalf("%d bytes of %d will do", n, len(h))
		}
	}
	// Moved: another server with the key, and the export under another path and with another name for the directory.
	if moved := serve(state, Export{Path: "/b", Dir: dir + "/.", ID: 7}); moved != nil {
		n, err := moved.nodes.get(h)
		if err != nil {
			t.Fatalf("after a move: %v", err)
		}
		moved.nodes.put(n)
	}
	for what, other := range map[string]*FS{
		"another key": serve(t.TempDir(), Export{Path: "/a", Dir: dir, ID: 7}), "another ID": serve(state, Export{Path: "/a", Dir: dir, ID: 8}), "no key kept": serve("", Export{Path: "/a", Dir: dir, ID: 7}),
	} {
		if _, err := other.nodes.get(h); err == nil {
			t.Errorf("%s: the handle is good", what)
		}
	}
}

// An export that a change of the list does not touch stays as it was, descriptor and Data; one whose rules change keeps its
// Data.
func TestSetExportsTouchesWhatChanges(t *testing.T) {
	a, b := Export{Path: "/a", Dir: t.TempDir()}, Export{Path: "/b", Dir: t.TempDir()}
	s, err := New(Options{NewData: func() any { return new(int) }}, a)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Check(a, b); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(a, Export{Path: "/c", Dir: filepath.Join(a.Dir, "gone")}); err == nil {
		t.Error("an export of nothing was taken")
	}
	was := s.table.Load().byPath["/a"]
	if err := s.SetExports(a, b); err != nil {
		t.Fatal(err)
	}
	if now := s.table.Load().byPath["/a"]; now != was || was.users.Load() != 1 {
		t.Errorf("%p is %p now, with %d users", was, now, was.users.Load())
	}
	if err := s.SetExports(a, Export{Path: "/b", Dir: filepath.Join(a.Dir, "gone")}); err == nil || len(s.table.Load().list) != 2 {
		t.Errorf("a wrong list: %v", err)
	}
	a.ReadOnly = true
	if err := s.SetExports(a); err != nil {
		t.Fatal(err)
	}
	if now := s.table.Load().byPath["/a"]; now == was || now.Data != was.Data || was.Data == nil || was.users.Load() != 0 {
		t.Errorf("%p is %p now, with %d users", was, now, was.users.Load())
	}
}
