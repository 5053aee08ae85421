package nfs_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// busy cannot serve each procedure at first.
type busy struct {
	rpcserver.Program
	mu    sync.Mutex
	asked map[uint32]int
}

func (p *busy) Serve(c *rpcserver.Call) rpcserver.Verdict {
	if c.Prog != nfs3.Prog || nfs3.Proc(c.Proc) == nfs3.ProcNull {
		return p.Program.Serve(c)
	}
	if !c.Worker {
		return rpcserver.Again
	}
	p.mu.Lock()
	p.asked[c.Proc]++
	n := p.asked[c.Proc]
	p.mu.Unlock()
	if n > 2 {
		return p.Program.Serve(c)
	}
	// NFS3ERR_JUKEBOX without attributes; what has none to leave out ends after the status.
	c.Out = append(c.Out, 0, 0, 0x27, 0x18, 0, 0, 0, 0, 0, 0, 0, 0)[:len(c.Out)+4+4*none(nfs3.Proc(c.Proc))]
	return rpcserver.Done
}

// none is how many optional attributes a refusal of a procedure has.
func none(p nfs3.Proc) int {
	switch p {
	case nfs3.ProcGetattr:
		return 0
	case nfs3.ProcWrite, nfs3.ProcCreate, nfs3.ProcCommit, nfs3.ProcSetattr:
		return 2
	}
	return 1
}

// A server that has not the means now says NFS3ERR_JUKEBOX, and is asked again (RFC 1813 section 2.6).
func TestWhatAServerCannotDoNowIsAskedForAgain(t *testing.T) {
	for _, how := range []string{"tcp", "iwarp"} {
		t.Run(how, func(t *testing.T) {
			p := &busy{asked: map[uint32]int{}}
			s := startWrapped(t, how, nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true}, func(of rpcserver.Program) rpcserver.Program {
				if of.ID() != nfs3.Prog {
					return of
				}
				p.Program = of
				return p
			})
			v := s.mount(t)
			f, err := v.Create(context.Background(), "f", 0o644)
			must(t, err)
			want := random(100_000, 1)
			_, err = f.WriteAt(want, 0)
			must(t, err)
			must(t, f.Close())
			got, err := v.ReadFile("f")
			must(t, err)
			disk, err := os.ReadFile(filepath.Join(s.dir, "f"))
			must(t, err)
			if string(got) != string(want) || string(disk) != string(want) {
				t.Error("other bytes")
			}
			ctx, cancel := context.WithCancel(context.Background())
			p.mu.Lock()
			p.asked[uint32(nfs3.ProcLookup)] = -1 << 30
			p.mu.Unlock()
			cancel()
			if _, err := v.StatContext(ctx, "f"); err == nil {
				t.Error("a call that was given up succeeded")
			}
		})
	}
}
