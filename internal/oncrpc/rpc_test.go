package oncrpc

import (
	"bytes"
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/internal/xdr"
)

func seedCall() []byte {
	s := Sys{UID: 1000, GID: 100, NGroups: 2, Groups: [MaxGroups]uint32{4, 5}}
	c := Call{XID: 7, Prog: 100003, Vers: 3, Proc: 6, Cred: Auth{Flavor: AuthSys, Body: s.Append(nil, 9, "host")}}
	return append(c.Append(nil), 1, 2, 3, 4)
}

func TestCall(t *testing.T) {
	var c Call
	r := xdr.NewReader(seedCall())
	if err := c.Parse(&r); err != nil {
		t.Fatal(err)
	}
	var s Sys
	if err := s.Parse(c.Cred.Body); err != nil {
		t.Fatal(err)
	}
	if c.XID != 7 || c.Prog != 100003 || c.Proc != 6 || s.UID != 1000 || s.NGroups != 2 || s.Groups[1] != 5 || !bytes.Equal(r.Rest(), []byte{1, 2, 3, 4}) {
		t.Fatalf("%+v %+v", c, s)
	}
	if a := testing.AllocsPerRun(100, func() {
		r := xdr.NewReader(nil)
		r.Reset(seed)
		_ = c.Parse(&r)
		_ = s.Parse(c.Cred.Body)
	}); a != 0 {
		t.Errorf("parsing a call allocates %v times", a)
	}
}

var seed = seedCall()

func TestReplies(t *testing.T) {
	for _, tc := range []struct {
		msg  []byte
		want *ReplyError
	}{
		{AppendReply(nil, 1, Success), nil},
		{AppendReply(nil, 1, ProcUnavail), &ReplyError{Accept: ProcUnavail}},
		{AppendMismatch(nil, 1, 3, 3), &ReplyError{Accept: ProgMismatch}},
		{AppendVersionMismatch(nil, 1), &ReplyError{Denied: true}},
		{AppendAuthError(nil, 1, AuthTooWeak), &ReplyError{Denied: true, Auth: AuthTooWeak}},
	} {
		r := xdr.NewReader(tc.msg)
		xid, err := ParseReply(&r)
		if xid != 1 {
			t.Errorf("xid %d", xid)
		}
		if tc.want == nil && err != nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%x: %v, not %v", tc.msg, err, tc.want)
		}
	}
}

func TestVersionOfAnother(t *testing.T) {
	m := seedCall()
	m[11] = 3
	var c Call
	r := xdr.NewReader(m)
	var ve *VersionError
	if err := c.Parse(&r); !errors.As(err, &ve) || ve.Version != 3 || c.XID != 7 {
		t.Fatalf("%v, xid %d", err, c.XID)
	}
}

func TestMark(t *testing.T) {
	var b [MarkLen]byte
	PutMark(b[:], 1234, true)
	if n, last := ParseMark(b[:]); n != 1234 || !last {
		t.Fatal(n, last)
	}
	PutMark(b[:], MaxFragment, false)
	if n, last := ParseMark(b[:]); n != MaxFragment || last {
		t.Fatal(n, last)
	}
}

func FuzzCall(f *testing.F) {
	f.Add(seedCall())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var c Call
		r := xdr.NewReader(b)
		if c.Parse(&r) != nil {
			return
		}
		var s Sys
		if s.Parse(c.Cred.Body) == nil && s.NGroups > MaxGroups {
			t.Fatal("more groups than there may be")
		}
		// What was understood is written as it came, except for the rubbish in padding.
		var again Call
		r2 := xdr.NewReader(c.Append(nil))
		if err := again.Parse(&r2); err != nil || again.XID != c.XID || !bytes.Equal(again.Cred.Body, c.Cred.Body) {
			t.Fatalf("%+v became %+v, %v", c, again, err)
		}
	})
}

func FuzzReply(f *testing.F) {
	f.Add(AppendReply(nil, 1, Success))
	f.Add(AppendMismatch(nil, 1, 3, 3))
	f.Add(AppendAuthError(nil, 1, AuthBadCred))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := xdr.NewReader(b)
		if _, err := ParseReply(&r); err != nil && err.Error() == "" {
			t.Fatal("an error without words")
		}
	})
}
