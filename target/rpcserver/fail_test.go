package rpcserver

import (
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// A program's refusal is always a whole reply: a success without its result, or a PROG_MISMATCH without versions, no client could parse.
func TestARefusalIsAWholeReply(t *testing.T) {
	for s, want := range map[AcceptStat]AcceptStat{ProgUnavail: ProgUnavail, ProcUnavail: ProcUnavail, GarbageArgs: GarbageArgs, SystemErr: SystemErr,
		AcceptStat(oncrpc.Success): SystemErr, AcceptStat(oncrpc.ProgMismatch): SystemErr, 77: SystemErr} {
		c := &Call{XID: 7, Out: []byte("what was there")}
		if v := c.Fail(s); v != Done {
			t.Errorf("%v: verdict %d", s, v)
		}
		r := xdr.NewReader(c.Out)
		var no *oncrpc.ReplyError
		if xid, err := oncrpc.ParseReply(&r); xid != 7 || !errors.As(err, &no) || no.Denied || AcceptStat(no.Accept) != want || r.Len() != 0 {
			t.Errorf("%v became %v, %d bytes behind it", s, err, r.Len())
		}
	}
}
