package nfs3

import (
	"testing"

	"github.com/sluice-storage/sluice/internal/xdr"
)

type item interface {
	Append([]byte) []byte
	Parse(*xdr.Reader)
}

func args() []item {
	return []item{&FHArgs{}, &SetattrArgs{}, &DirOp{}, &AccessArgs{}, &RangeArgs{}, &WriteArgs{}, &CreateArgs{}, &MkdirArgs{}, &SymlinkArgs{}, &MknodArgs{},
		&RenameArgs{}, &LinkArgs{}, &ReaddirArgs{}, &ReaddirArgs{Plus: true}, &ACLArgs{}, &ACLArgs{Set: true, Mask: MaskAll, ACLs: someACLs}}
}

func results() []item {
	return []item{&AttrRes{}, &WccRes{}, &LookupRes{}, &AccessRes{}, &ReadlinkRes{}, &ReadRes{}, &WriteRes{}, &WriteRes{Commit: true}, &CreateRes{}, &RenameRes{},
		&LinkRes{}, &ReaddirRes{}, &FsstatRes{}, &FsinfoRes{}, &PathconfRes{}, &ACLRes{Mask: MaskAll, ACLs: someACLs}, &ACLRes{Set: true}}
}

var someACLs = ACLs{AccessCnt: 2, Access: []ACE{{ACLUserObj, 0, 6}, {ACLUser, 1000, 4}}, DefaultCnt: 7}

// fuzz parses b as each item; what is understood must survive being written and read again.
func fuzz(t *testing.T, l []item, b []byte) {
	for _, x := range l {
		r := xdr.NewReader(b)
		x.Parse(&r)
		if r.Err() != nil {
			continue
		}
		first := string(x.Append(nil))
		r = xdr.NewReader([]byte(first))
		x.Parse(&r)
		if r.Err() != nil || string(x.Append(nil)) != first {
			t.Fatalf("%T: %x came back as %x (%v)", x, first, x.Append(nil), r.Err())
		}
	}
}

func FuzzArgs(f *testing.F) {
	for _, x := range args() {
		f.Add(x.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) { fuzz(t, args(), b) })
}

func FuzzResults(f *testing.F) {
	for _, x := range results() {
		f.Add(x.Append(nil))
	}
	f.Add((&Entry{Name: []byte("x")}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzz(t, results(), b)
		r := xdr.NewReader(b)
		e := Entry{Plus: true}
		for more := true; more; {
			more, _ = e.Parse(&r)
		}
	})
}
