package block

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/mem"
)

func TestURLs(t *testing.T) {
	t.Setenv("LIBISCSI_CHAP_USERNAME", "")
	const name = "iqn.2026-01.org.example:disk"
	for s, want := range map[string]URL{
		"iser://host/" + name + "/3":        {ISER: true, Host: "host", Port: "3260", Target: name, LUN: 3},
		"iscsi://10.0.0.1:3261":             {Host: "10.0.0.1", Port: "3261"},
		"iscsi://[fe80::1]:3262/" + name:    {Host: "fe80::1", Port: "3262", Target: name},
		"iser://[::1]/" + name + "/0x10":    {ISER: true, Host: "::1", Port: "3260", Target: name, LUN: 16},
		"iscsi://joe%secret@h/" + name:      {Host: "h", Port: "3260", Target: name, Own: iscsi.Secret{Name: "joe", Secret: "secret"}},
		"iscsi://joe%p@ss%w:rd@h/" + name:   {Host: "h", Port: "3260", Target: name, Own: iscsi.Secret{Name: "joe", Secret: "p@ss%w:rd"}},
		"iscsi://h?iser&depth=4":            {ISER: true, Host: "h", Port: "3260", Depth: 4},
		"iscsi://h?header_digest=CRC32C":    {Host: "h", Port: "3260", HeaderDigest: true},
		"iscsi://h?data_digest=crc32c":      {Host: "h", Port: "3260", DataDigest: true},
		"iscsi://h?initiator=" + name + "x": {Host: "h", Port: "3260", Initiator: name + "x"},
		"iscsi://a%b@h?target_user=c&target_password=d": {Host: "h", Port: "3260", Own: iscsi.Secret{Name: "a", Secret: "b"},
			Theirs: iscsi.Secret{Name: "c", Secret: "d"}},
	} {
		got, err := ParseURL(s)
		if err != nil || *got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "host", "http://h", "iser://", "iser://:1", "iser://h:0", "iser://h:65536", "iser://::1", "iser://[::1", "iser://[::1]x",
		"iser://h/disk", "iser://h/" + name + "/16384", "iser://h/" + name + "/x", "iser://joe@h", "iser://%s@h", "iser://h?depth=0", "iser://h?what=1",
		"iser://h?header_digest=md5", "iser://h?target_password=x", "iser://h?%zz"} {
		var e *ErrURL
		if u, err := ParseURL(s); !errors.As(err, &e) {
			t.Errorf("%s: %+v, %v", s, u, err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("iser://joe%hidden@[::1]:3260/iqn.2026-01.org.example:disk/3?header_digest=crc32c&target_password=hidden2")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			return
		}
		if len(u.Own.Secret) > 3 && strings.Contains(u.String(), u.Own.Secret) && !strings.Contains(u.Own.Name+u.Host+u.Target+"iscsi:///***", u.Own.Secret) {
			t.Fatal("the secret is in the string")
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
	if e.Key != keyMiscompare || e.ASC != 0x1d || !e.HasInfo || e.Info != 7 || !errors.Is(e, ErrMiscompare) {
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
		r := &Request{Op: Write, Length: int64(total), Data: data}
		var k task
		at := 0
		for r.issued < r.Length {
			if !k.build(r, &l, sge, mem.Span{}) {
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
