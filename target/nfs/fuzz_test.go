package nfs_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

// FuzzServer sends the server a message and wants an answer or the end of the connection, and the server alive.
func FuzzServer(f *testing.F) {
	o := stand.FileOptions{More: []rpcserver.Program{rpcserver.NewBinder()}}
	at, _ := stand.NewFiles(f, o, nfs.Export{Path: "/data", Dir: f.TempDir(), Async: true, Rights: open}).TCP("127.0.0.1:0")
	for proc := range uint32(nfs3.NumProcs) {
		c := oncrpc.Call{XID: proc, Prog: nfs3.Prog, Vers: 3, Proc: proc}
		f.Add(append(c.Append(nil), make([]byte, 64)...))
	}
	m := mount3.PathArgs{Path: []byte("/data")}
	c := oncrpc.Call{Prog: mount3.Prog, Vers: 3, Proc: mount3.ProcMnt}
	f.Add(m.Append(c.Append(nil)))
	b := oncrpc.Call{Prog: 100000, Vers: 2, Proc: 3}
	f.Add(append(b.Append(nil), make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, msg []byte) {
		if len(msg) > 1<<16 {
			return
		}
		nc, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nc.Close() }()
		_ = nc.SetDeadline(time.Now().Add(patience))
		wire := make([]byte, 4, 4+len(msg))
		oncrpc.PutMark(wire, len(msg), true)
		if _, err := nc.Write(append(wire, msg...)); err != nil {
			t.Fatal(err)
		}
		var mark [4]byte
		if _, err := io.ReadFull(nc, mark[:]); err != nil {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				t.Fatalf("%x: neither an answer nor an end", msg)
			}
			return
		}
		n, last := oncrpc.ParseMark(mark[:])
		if !last || n > 1<<17 {
			t.Fatalf("%x: an answer of %d bytes", msg, n)
		}
		if _, err := io.CopyN(io.Discard, nc, int64(n)); err != nil {
			t.Fatal(err)
		}
	})
}
