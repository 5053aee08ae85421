package access

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// ask sends one login request and returns the response with its keys.
func ask(t *testing.T, nc net.Conn, q *iscsi.LoginRequest, keys ...string) (iscsi.LoginResponse, map[string]string) {
	t.Helper()
	var text []byte
	for _, k := range keys {
		text = append(append(text, k...), 0)
	}
	q.DataLen = len(text)
	var h [iscsi.BHSLen]byte
	q.Put(h[:])
	out := append(append(h[:], text...), make([]byte, iscsi.Pad(len(text)))...)
	_ = nc.SetDeadline(time.Now().Add(patience))
	if _, err := nc.Write(out); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(nc, h[:]); err != nil {
		t.Fatal(err)
	}
	n := iscsi.BHS(h[:]).DataLen()
	data := make([]byte, n+iscsi.Pad(n))
	if _, err := io.ReadFull(nc, data); err != nil {
		t.Fatal(err)
	}
	var r iscsi.LoginResponse
	r.Parse(h[:])
	got := map[string]string{}
	for kv := range strings.SplitSeq(string(data[:n]), "\x00") {
		if k, v, ok := strings.Cut(kv, "="); ok {
			got[k] = v
		}
	}
	return r, got
}
