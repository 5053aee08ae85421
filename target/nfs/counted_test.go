package nfs_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// A call of two handles is counted with the export of the first, also where the second is no handle; one whose first handle is none belongs to no
// export.
func TestACallIsCountedWithTheExportOfItsFirstHandle(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o666))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v := s.mount(t)
	c, root := v.Self(), v.Root()
	o, err := c.Lookup(ctx, root, "f")
	must(t, err)
	forged := append([]byte(nil), root...)
	forged[len(forged)-1] ^= 1
	counted := func(p nfs3.Proc) (here, stray uint64) {
		for _, st := range s.nfs.Stats() {
			n := st.Times[p].Count()
			if st.Export == "" {
				stray += n
			} else {
				here += n
			}
		}
		return here, stray
	}
	for _, x := range []struct {
		what  string
		proc  nfs3.Proc
		do    func(a, b []byte) error
		first []byte
	}{
		{"RENAME", nfs3.ProcRename, func(a, b []byte) error { return c.Rename(ctx, a, "f", b, "g") }, root},
		{"LINK", nfs3.ProcLink, func(a, b []byte) error { _, err := c.Link(ctx, a, b, "g"); return err }, o.FH},
	} {
		if x.do(x.first, forged) == nil {
			t.Fatalf("%s takes a forged handle", x.what)
		}
		if here, stray := counted(x.proc); here != 1 || stray != 0 {
			t.Errorf("%s into a forged handle: %d calls of the export, %d of none", x.what, here, stray)
		}
		if x.do(forged, root) == nil {
			t.Fatalf("%s takes a forged handle", x.what)
		}
		if here, stray := counted(x.proc); here != 1 || stray != 1 {
			t.Errorf("%s of a forged handle: %d calls of the export, %d of none", x.what, here, stray)
		}
	}
}
