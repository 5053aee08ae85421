package filesystem_test

import (
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// buffer is where a read puts its data.
type buffer []byte

func (m buffer) Loan(int, int) (int, bool)    { return -1, false } // it takes no pages
func (m buffer) Unlend()                      {}
func (m buffer) Sink(n int) ([][]byte, error) { return [][]byte{m[:n]}, nil }

// A protocol of one's own finds files by handles, on behalf of its clients.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "greeting"), []byte("hello"), 0o644); err != nil {
		log.Fatal(err)
	}
	files, err := filesystem.New(filesystem.Options{}, filesystem.Export{Path: "/data", Dir: dir, Rights: filesystem.Rights{Squash: filesystem.SquashNone, Insecure: true}})
	if err != nil {
		log.Fatal(err)
	}
	caller := filesystem.Caller{
		Peer:    &rpcserver.Peer{Addr: netip.MustParseAddrPort("192.0.2.1:1023")},
		Cred:    filesystem.Credential{Known: true, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
		MayWait: true,
	}
	root, e := files.Mount(&caller, "/data")
	if e != filesystem.OK {
		log.Fatal(e)
	}
	var o filesystem.Object
	if e := files.FindDir(&caller, root, &o, false); e != filesystem.OK {
		log.Fatal(e)
	}
	var attr filesystem.Attr
	handle, e := o.Lookup([]byte("greeting"), &attr)
	o.End()
	if e != filesystem.OK {
		log.Fatal(e)
	}
	fmt.Println(attr.Size, "bytes")

	if e := files.Find(&caller, handle, &o); e != filesystem.OK {
		log.Fatal(e)
	}
	into := make(buffer, 100)
	r := filesystem.Read{Want: 100, Into: into}
	e = o.Read(&r)
	o.End()
	fmt.Printf("%s, end: %v, %v\n", into[:r.N], r.EOF, e == filesystem.OK)
	if err := files.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 5 bytes
	// hello, end: true, true
}
