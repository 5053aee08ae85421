package saves

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"regexp"
	"time"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/test/lib/proc"
)

var exportPort = regexp.MustCompile(`nfsport=(\d+)`)

// locker makes the calls of a client that locks the file of the export.
type locker struct {
	c    *rpcclient.Client
	file []byte
}

func (l *locker) call(ctx context.Context, prog, vers, proc uint32, args []byte, parse func(*xdr.Reader)) error {
	sys := oncrpc.Sys{}
	k := rpcclient.Call{Prog: prog, Vers: vers, Proc: proc, Cred: rpcclient.Auth{Flavor: oncrpc.AuthSys, Body: sys.Append(nil, 1, "saves")}, Args: args}
	if err := l.c.Do(ctx, &k); err != nil {
		return err
	}
	res := xdr.NewReader(k.Results)
	parse(&res)
	return res.Err()
}

// locker connects to the file service of the daemon that runs now.
func (s *stand) locker(ctx context.Context) (*locker, error) {
	var port string
	for end := time.Now().Add(proc.Patience); port == ""; time.Sleep(time.Millisecond) { // its log comes by a pipe
		if m := exportPort.FindAllStringSubmatch(s.d.Log()[s.logged:], -1); m != nil {
			port = m[len(m)-1][1]
		} else if time.Now().After(end) {
			return nil, fmt.Errorf("no export is logged")
		}
	}
	l := &locker{c: rpcclient.NewClient(rpcclient.TCP(net.JoinHostPort("127.0.0.1", port)), rpcclient.Options{})}
	path := mount3.PathArgs{Path: []byte("/x")}
	var m mount3.MntRes
	err := l.call(ctx, mount3.Prog, mount3.Vers, mount3.ProcMnt, path.Append(nil), m.Parse)
	if err == nil && m.Status != mount3.OK {
		err = m.Status
	}
	if err != nil {
		_ = l.c.Close()
		return nil, err
	}
	name := nfs3.DirOp{Dir: bytes.Clone(m.FH), Name: []byte("f")}
	var r nfs3.LookupRes
	err = l.call(ctx, nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcLookup), name.Append(nil), r.Parse)
	if err == nil && r.Status != nfs3.OK {
		err = r.Status
	}
	if err != nil {
		_ = l.c.Close()
		return nil, err
	}
	l.file = bytes.Clone(r.FH)
	return l, nil
}

type lockError nlm4.Stat

func (e lockError) Error() string { return fmt.Sprintf("NLM status %d", uint32(e)) }

// part is the part of the file that a trial locks.
func part(file []byte, k int, caller string) nlm4.Lock {
	return nlm4.Lock{Caller: []byte(caller), FH: file, Owner: []byte(caller), SVID: 1, Off: uint64(k) * 10, Len: 10}
}

// lock locks the part of a trial.
func (s *stand) lock(ctx context.Context, k int, caller string) error {
	l, err := s.locker(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = l.c.Close() }() // the daemon may be dead
	for end := time.Now().Add(proc.Patience); ; time.Sleep(time.Millisecond) {
		a := nlm4.LockArgs{Cookie: []byte{1}, Exclusive: true, Lock: part(l.file, k, caller)}
		var r nlm4.Res
		err := l.call(ctx, nlm4.Prog, nlm4.Vers, nlm4.ProcLock, a.Append(nil), r.Parse)
		switch {
		case err != nil:
			return err
		case r.Stat == nlm4.DeniedGrace && time.Now().Before(end): // a millisecond after the start
		case r.Stat != nlm4.Granted:
			return lockError(r.Stat)
		default:
			return nil
		}
	}
}

// locked asks as another client does.
func (s *stand) locked(k int) bool {
	s.t.Helper()
	ctx := context.Background()
	l, err := s.locker(ctx)
	must(s.t, err)
	defer func() { must(s.t, l.c.Close()) }()
	a := nlm4.TestArgs{Cookie: []byte{1}, Exclusive: true, Lock: part(l.file, k, "stranger")}
	var r nlm4.TestRes
	must(s.t, l.call(ctx, nlm4.Prog, nlm4.Vers, nlm4.ProcTest, a.Append(nil), r.Parse))
	if r.Stat != nlm4.Granted && r.Stat != nlm4.Denied {
		s.t.Errorf("NLM TEST: status %d", r.Stat)
	}
	return r.Stat == nlm4.Denied
}
