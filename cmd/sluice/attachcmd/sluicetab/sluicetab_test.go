package sluicetab

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

const good = `# volumes of this machine
data   iser://192.0.2.1/iqn.2026-11.org.example:data/0
	two	iser://192.0.2.1/iqn.2026-11.org.example:two/3,iscsi://[2001:db8::1]:3261/iqn.2026-11.org.example:two/3  /etc/sluice/two.cred  as=nbd,reconnect=5m,nofail
later  iscsi://h/iqn.2026-11.org.example:x/1 - noauto,as=fuse,ro,reconnect=forever,crc=always,_netdev

sock iser://h/iqn.2026-11.org.example:x/2 none as=socket,socket=/run/x.sock,initiator=iqn.2026-11.org.example:me,rw,auto
`

func TestATableIsRead(t *testing.T) {
	got, err := Parse("t", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{Name: "data", URLs: []string{"iser://192.0.2.1/iqn.2026-11.org.example:data/0"}, Face: "auto", Line: 2},
		{Name: "two", URLs: []string{"iser://192.0.2.1/iqn.2026-11.org.example:two/3", "iscsi://[2001:db8::1]:3261/iqn.2026-11.org.example:two/3"},
			Credentials: "/etc/sluice/two.cred", Face: "device", Reconnect: 5 * time.Minute, NoFail: true, Line: 3},
		{Name: "later", URLs: []string{"iscsi://h/iqn.2026-11.org.example:x/1"}, Face: "file", Reconnect: Forever, ReadOnly: true, NoAuto: true, CRC: "always", Line: 4},
		{Name: "sock", URLs: []string{"iser://h/iqn.2026-11.org.example:x/2"}, Face: "socket", Socket: "/run/x.sock", Initiator: "iqn.2026-11.org.example:me", Line: 6},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestErrorsPointAtTheirPlace(t *testing.T) {
	const u = "iser://h/iqn.2026-11.org.example:x/0"
	for _, tc := range []struct {
		text, want string
		line, col  int
	}{
		{"\n\ndata", "the URL is missing", 3, 5},
		{"a " + u + " - - -", "a fifth field", 1, 44},
		{"a/b " + u, "letters, digits", 1, 1},
		{".a " + u, "begins with", 1, 1},
		{strings.Repeat("a", 65) + " " + u, "at most 64 bytes", 1, 1},
		{"a http://h", "unknown scheme", 1, 3},
		{"a iser://h", "names no target", 1, 3},
		{"a " + u + ",iser://h/q/0", "iSCSI name", 1, 40},
		{"a nfs://h/x", "/etc/fstab", 1, 3},
		{"a " + u + " cred", "absolute path", 1, 40},
		{"a " + u + " - as=disk", "none of auto", 1, 42},
		{"a " + u + " - ro,asd=nbd", `unknown option "asd"`, 1, 45},
		{"a " + u + " - ro,ro", "twice", 1, 45},
		{"a " + u + " - ro,rw", "contradict", 1, 42},
		{"a " + u + " - auto,noauto", "contradict", 1, 42},
		{"a " + u + " - ro=1", "takes no value", 1, 42},
		{"a " + u + " - reconnect=soon", "no reconnect limit", 1, 42},
		{"a " + u + " - reconnect=-1s", "no reconnect limit", 1, 42},
		{"a " + u + " - crc=maybe", "none of on", 1, 42},
		{"a " + u + " - socket=/x", "as=socket", 1, 42},
		{"a " + u + " - ,", `unknown option ""`, 1, 42},
		{"a " + u + "\na " + u, "in line 1 already", 2, 1},
		{"a " + u + "\x01", "0x01", 1, 39},
		{strings.Repeat("a", 5000), "longer than", 1, 65},
	} {
		_, err := Parse("tab", []byte(tc.text))
		var e *Error
		if !errors.As(err, &e) || e.Line != tc.line || e.Column != tc.col || !strings.Contains(e.Detail, tc.want) {
			t.Errorf("%.60q: %v, want %d:%d %s", tc.text, err, tc.line, tc.col, tc.want)
		}
	}
}

func TestTheCaretStandsBelowTheWord(t *testing.T) {
	_, err := Parse("tab", []byte("a\tiser://h/iqn.2026-11.org.example:x/0\t-\tas=disk"))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 3 || strings.IndexByte(lines[2], '^') != strings.Index(lines[1], "as=disk") || strings.Count(lines[2], "\t") != 3 {
		t.Errorf("%s", err)
	}
}

// Whatever a table holds, what is taken from it is something that attach can be told, and an error points into the text.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("a iser://h/iqn.2026-11.org.example:x/0 - as=disk"))
	f.Add([]byte("a nfs://h/x\r\n\tb"))
	f.Add([]byte("\xff\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		es, err := Parse("tab", b)
		var e *Error
		if err != nil {
			if !errors.As(err, &e) || len(es) != 0 {
				t.Fatalf("%v with %d entries", err, len(es))
			}
			if e.Line > 0 && (e.Column < 1 || e.Column > len(e.Text)+1) {
				t.Fatalf("column %d of %q", e.Column, e.Text)
			}
			return
		}
		for _, e := range es {
			if CheckName(e.Name) != "" || len(e.URLs) == 0 || e.Face == "" || e.Reconnect < Forever {
				t.Fatalf("%+v", e)
			}
		}
	})
}
