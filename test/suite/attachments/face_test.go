package attachments

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// block is what users write at a time.
const block = 4096

// user is a program that has something of an attachment open.
type user interface {
	put(b byte) error   // a block of it
	write(b byte) error // the same, durable on return
	close()
}

// face is a way to attach, how it is used, and where the target keeps what was written.
type face struct {
	name   string
	needs  func(t *testing.T)
	attach func(s *stand, more ...string) []string
	use    func(path string) (user, error)
	kept   string
}

var faces = []face{
	{"file", func(t *testing.T) { need.FUSE(t) }, attachAs("file"), func(path string) (user, error) { return openFile(path, os.O_RDWR) }, "v.img"},
	{"socket", func(*testing.T) {}, attachAs("socket"), dialNBD, "v.img"},
	{"directory", func(t *testing.T) { need.FUSE(t) }, func(s *stand, more ...string) []string {
		return append([]string{"mount", s.exportURL(), filepath.Join(s.dir, "mnt"), "--name", "a"}, more...)
	}, func(path string) (user, error) { return openFile(filepath.Join(path, "f"), os.O_RDWR|os.O_CREATE) }, "export/f"},
}

// kernelFaces are those that the kernel's own drivers show; the lab has them in its guest.
var kernelFaces = []face{
	{"ublk", func(t *testing.T) { need.Device(t, "/dev/ublk-control") }, attachAs("ublk"), openDevice, "v.img"},
	{"device", func(t *testing.T) { need.Device(t, "/dev/nbd0") }, attachAs("device"), openDevice, "v.img"},
}

// here are the faces that are tried on this machine.
func here() []face {
	names := os.Getenv(envFaces)
	if names == "" {
		return faces
	}
	var l []face
	for _, f := range append(slices.Clone(faces), kernelFaces...) {
		if slices.Contains(strings.Split(names, ","), f.name) {
			l = append(l, f)
		}
	}
	return l
}

// openDevice holds a block device as a mount does.
func openDevice(path string) (user, error) { return openFile(path, os.O_RDWR|os.O_EXCL) }

func attachAs(f string) func(*stand, ...string) []string {
	return func(s *stand, more ...string) []string {
		return append([]string{"attach", s.url(), "--face", f, "--name", "a"}, more...)
	}
}

// kept compares what the target has with what was written last.
func (s *stand) kept(f *face, b byte) {
	s.t.Helper()
	r, err := os.Open(filepath.Join(s.dir, f.kept))
	if err != nil {
		s.t.Error(err)
		return
	}
	defer r.Close()
	got := make([]byte, block)
	if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{b}, block)) {
		s.t.Errorf("the target does not have what was written: %q and not %q, %v", got[0], b, err)
	}
}

type openedFile struct{ f *os.File }

func openFile(path string, flags int) (user, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	return openedFile{f}, err
}

func (o openedFile) put(b byte) error {
	_, err := o.f.WriteAt(bytes.Repeat([]byte{b}, block), 0)
	return err
}

func (o openedFile) write(b byte) error { return errors.Join(o.put(b), o.f.Sync()) }

func (o openedFile) close() { _ = o.f.Close() } // of a mount that has ended

// nbdClient speaks as little of the NBD protocol as a write and a flush need.
type nbdClient struct{ c net.Conn }

func dialNBD(path string) (user, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	hello := make([]byte, 18)
	if _, err := io.ReadFull(c, hello); err != nil {
		return nil, err
	}
	be := binary.BigEndian
	b := be.AppendUint32(nil, 3)  // fixed newstyle, no zeroes
	b = append(b, "IHAVEOPT"...)  //
	b = be.AppendUint64(b, 1<<32) // NBD_OPT_EXPORT_NAME, of no name
	if _, err := c.Write(b); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, make([]byte, 10)); err != nil {
		return nil, err
	}
	return nbdClient{c}, nil
}

func (n nbdClient) put(v byte) error { return n.call(1, block, bytes.Repeat([]byte{v}, block)) }

func (n nbdClient) write(v byte) error {
	if err := n.put(v); err != nil {
		return err
	}
	return n.call(3, 0, nil)
}

func (n nbdClient) call(cmd uint16, length uint32, data []byte) error {
	be := binary.BigEndian
	b := be.AppendUint32(nil, 0x25609513)
	b = be.AppendUint16(b, 0)
	b = be.AppendUint16(b, cmd)
	b = be.AppendUint64(b, uint64(cmd))
	b = be.AppendUint64(b, 0)
	b = be.AppendUint32(b, length)
	if _, err := n.c.Write(append(b, data...)); err != nil {
		return err
	}
	reply := make([]byte, 16)
	if _, err := io.ReadFull(n.c, reply); err != nil {
		return err
	}
	if be.Uint32(reply) != 0x67446698 || be.Uint32(reply[4:]) != 0 {
		return fmt.Errorf("the reply is % x", reply)
	}
	return nil
}

func (n nbdClient) close() { n.c.Close() }
