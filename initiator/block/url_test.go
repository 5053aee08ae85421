package block

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

func TestURLs(t *testing.T) {
	noSecrets(t)
	const name = "iqn.2026-01.org.example:disk"
	for s, want := range map[string]URL{
		"iser://host/" + name + "/3":                          {ISER: true, Host: "host", Port: "3260", Target: name, LUN: 3},
		"iscsi://10.0.0.1:3261":                               {Host: "10.0.0.1", Port: "3261"},
		"iscsi://[fe80::1]:3262/" + name:                      {Host: "fe80::1", Port: "3262", Target: name},
		"iser://[::1]/" + name + "/0x10":                      {ISER: true, Host: "::1", Port: "3260", Target: name, LUN: 16},
		"iscsi://joe%secret@h/" + name:                        {Host: "h", Port: "3260", Target: name, CHAP: Secret{Name: "joe", Secret: "secret"}},
		"iscsi://joe%p@ss%w:rd@h/" + name:                     {Host: "h", Port: "3260", Target: name, CHAP: Secret{Name: "joe", Secret: "p@ss%w:rd"}},
		"iscsi://joe%a/b?c@d@h:1/" + name:                     {Host: "h", Port: "1", Target: name, CHAP: Secret{Name: "joe", Secret: "a/b?c@d"}},
		"iscsi://joe:a/b@h?depth=4":                           {Host: "h", Port: "3260", Depth: 4, CHAP: Secret{Name: "joe", Secret: "a/b"}},
		"iscsi://h?iser&depth=4":                              {ISER: true, Host: "h", Port: "3260", Depth: 4},
		"iscsi://h?header_digest=CRC32C":                      {Host: "h", Port: "3260", HeaderDigest: true},
		"iscsi://h?data_digest=crc32c":                        {Host: "h", Port: "3260", DataDigest: true},
		"iscsi://h?initiator=" + name + "x":                   {Host: "h", Port: "3260", Initiator: name + "x"},
		"iser://h:3261/" + name + "/1?provider=shm":           {ISER: true, Host: "h", Port: "3261", Target: name, LUN: 1, Provider: "shm"},
		"iser:///" + name + "/0?provider=shm&socket=/run/a.b": {ISER: true, Host: "localhost", Port: "3260", Target: name, Provider: "shm", Socket: "/run/a.b"},
		"iser://h?socket=/s&provider=shm":                     {ISER: true, Host: "h", Port: "3260", Provider: "shm", Socket: "/s"},
		"iscsi://a%b@h?target_user=c&target_password=d": {Host: "h", Port: "3260", CHAP: Secret{Name: "a", Secret: "b"},
			MutualCHAP: Secret{Name: "c", Secret: "d"}},
	} {
		got, err := ParseURL(s)
		if err != nil || *got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "host", "http://h", "iser://", "iser://:1", "iser://h:0", "iser://h:65536", "iser://::1", "iser://[::1", "iser://[::1]x",
		"iser://h/disk", "iser://h/" + name + "/16384", "iser://h/" + name + "/x", "iser://joe@h", "iser://%s@h", "iser://h?depth=0", "iser://h?what=1",
		"iser://h?header_digest=md5", "iser://h?target_password=x", "iser://h?%zz",
		"iser://a%b@h?target_user=x", "iser:///" + name + "/0?provider=shm", "iser:///" + name + "/0?socket=/run/a", "iser://h?provider=shm&socket=a", "iser://h?provider=shm&socket=",
		"iscsi://h?provider=shm&socket=/a"} {
		var e *URLError
		if u, err := ParseURL(s); !errors.As(err, &e) {
			t.Errorf("%s: %+v, %v", s, u, err)
		}
	}
}

func noSecrets(t testing.TB) {
	for _, k := range []string{"USERNAME", "PASSWORD", "TARGET_USERNAME", "TARGET_PASSWORD"} {
		t.Setenv("LIBISCSI_CHAP_"+k, "")
	}
}

// That the target has to prove itself is asked for in the URL, the environment or the options, and so is who we are: no
// mixture drops it without a word.
func TestMutualCHAPIsNotDropped(t *testing.T) {
	ours, theirs := Secret{Name: "us", Secret: "our secret"}, Secret{Name: "them", Secret: "their secret"}
	for own := range 4 {
		for proof := range 4 {
			noSecrets(t)
			var o Options
			user, query := "", ""
			switch own {
			case 1:
				user = ours.Name + "%" + ours.Secret + "@"
			case 2:
				t.Setenv("LIBISCSI_CHAP_USERNAME", ours.Name)
				t.Setenv("LIBISCSI_CHAP_PASSWORD", ours.Secret)
			case 3:
				o.CHAP = ours
			}
			switch proof {
			case 1:
				query = "?target_user=them&target_password=their+secret"
			case 2:
				t.Setenv("LIBISCSI_CHAP_TARGET_USERNAME", theirs.Name)
				t.Setenv("LIBISCSI_CHAP_TARGET_PASSWORD", theirs.Secret)
			case 3:
				o.MutualCHAP = theirs
			}
			i, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			u, err := i.parse("iscsi://" + user + "h/iqn.2026-01.org.example:disk" + query)
			switch {
			case err != nil:
				if own != 0 && !(own == 3 && proof == 1) || proof == 0 {
					t.Errorf("own %d, proof %d: %v", own, proof, err)
				}
			case proof != 0 && (u.CHAP != ours || u.MutualCHAP != theirs), proof == 0 && u.MutualCHAP.Secret != "":
				t.Errorf("own %d, proof %d: %+v", own, proof, u)
			}
			if err := i.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// What is printed of a URL depends on no secret: with another secret it is the same.
func FuzzParseURL(f *testing.F) {
	noSecrets(f)
	f.Add("iser://joe%hidden@[::1]:3260/iqn.2026-01.org.example:disk/3?header_digest=crc32c&target_password=hidden2")
	f.Add("iser:// 0001000100010001%0000@0")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			return
		}
		other := *u
		other.CHAP.Secret, other.MutualCHAP.Secret = "another", "and another"
		if u.String() != other.String() {
			t.Fatal("the string depends on a secret")
		}
	})
}

// No part of a secret is printed, whatever the secret holds, neither in the string of a URL nor in the error of one.
func FuzzSecretsStayOut(f *testing.F) {
	noSecrets(f)
	for _, s := range []string{"pass/word", "a?depth=b", "a@b", "x/iqn.2026-01.org.example:y", "?who&what", "%zz/q", "[::1", "a:b:c", ":99999/", "a&bcdef=g"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, s string, own bool) {
		const hide = "\x01QZ\x02" // occurs in nothing that is printed for another reason
		secret := ""
		for _, c := range s {
			secret += hide + string(c)
		}
		if s == "" {
			return
		}
		raw := "iser://joe%" + secret + "@host:3260/iqn.2026-01.org.example:disk/3"
		if !own {
			raw = "iser://joe%known@host/iqn.2026-01.org.example:disk/3?target_password=" + secret
		}
		u, err := ParseURL(raw)
		out := ""
		if err != nil {
			out = err.Error()
		} else {
			out = u.String()
		}
		if strings.Contains(out, "QZ") {
			t.Fatalf("%q", out)
		}
	})
}

func FuzzParseSense(f *testing.F) {
	f.Add(fixedSense(5, 0x24, 0))
	f.Add([]byte{0x72, 0x0e, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7})
	f.Fuzz(func(t *testing.T, b []byte) {
		if e := parseSense(b); e.Error() == "" {
			t.Fatal("no words")
		}
	})
}

func TestDescriptorSense(t *testing.T) {
	e := parseSense([]byte{0x72, 0x0e, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7})
	if e.Key != keyMiscompare || e.ASC != 0x1d || !e.HasInfo || e.Info != 7 || !errors.Is(e, blockdev.ErrMiscompare) {
		t.Fatalf("%+v", e)
	}
}

// However a request's memory is cut, its pieces are whole blocks, within the limits, and hold all of it in order.
func TestPiecesAreTheWhole(t *testing.T) {
	slab, err := mem.NewSlab(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slab.Close() }()
	rapid.Check(t, func(t *rapid.T) {
		var data []mem.Span
		total := 0
		for total < 64<<10 {
			n := rapid.OneOf(rapid.IntRange(1, 700), rapid.IntRange(512, 20000)).Draw(t, "span")
			n = min(n, 64<<10-total)
			data = append(data, mem.Span{Slab: slab, Off: total, Len: n})
			total += n
		}
		sge := rapid.IntRange(2, 8).Draw(t, "sge")
		l := limits{block: 512, piece: rapid.Int64Range(1, 64).Draw(t, "piece") * 512}
		r := stateOf(&blockdev.Request{Op: blockdev.Write, Length: int64(total), Data: data})
		var k task
		at := 0
		for r.issued < r.Length {
			if _, ok := k.build(r, &l, sge, mem.Span{}); !ok {
				return // too fragmented for a block: the request fails
			}
			if k.n%512 != 0 || k.n > l.piece || len(k.spans) > sge || k.edtl != k.n {
				t.Fatalf("a piece of %d bytes in %d spans", k.n, len(k.spans))
			}
			for _, s := range k.spans {
				if s.Off != at || s.Len == 0 {
					t.Fatalf("a span at %d, where %d comes next", s.Off, at)
				}
				at += s.Len
			}
		}
		if at != total {
			t.Fatalf("%d of %d bytes", at, total)
		}
	})
}

func TestLUNs(t *testing.T) {
	for _, n := range []uint16{0, 1, 255, 256, 16383} {
		if got, ok := decodeLUN(encodeLUN(n)); !ok || got != n {
			t.Error(n, got, ok)
		}
	}
}
