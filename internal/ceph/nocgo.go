//go:build !(ceph && cgo && linux)

package ceph

import (
	"os"
	"time"
)

// Built says whether this binary has the shim.
const Built = false

// Available says that it has not.
func Available() error { return ErrNotBuilt }

// AvailableRBD says so too.
func AvailableRBD() error { return ErrNotBuilt }

// Connect fails: of the types below there is nothing in this binary.
func Connect(Options) (*Cluster, error) { return nil, ErrNotBuilt }

// Cluster is an instance of librados.
type Cluster struct{}

// IoCtx is a pool, or a namespace of it.
type IoCtx struct{}

// Watch is told of the notifications of an object.
type Watch struct{}

// Image is an open image.
type Image struct{}

// Update is a watch of what an image is.
type Update struct{}

// Run is a run of bytes that an image, or its parent, has.
type Run struct{ Offset, Length uint64 }

// The methods are documented where they do something (rados.go, watch.go, image.go).

func (*Cluster) Shutdown()                                {}
func (*Cluster) InstanceID() uint64                       { return 0 }
func (*Cluster) Version() string                          { return "" }
func (*Cluster) Addrs() (string, error)                   { return "", ErrNotBuilt }
func (*Cluster) BlocklistAddrs() ([]string, error)        { return nil, ErrNotBuilt }
func (*Cluster) FSID() (string, error)                    { return "", ErrNotBuilt }
func (*Cluster) MonCommand(any) ([]byte, error)           { return nil, ErrNotBuilt }
func (*Cluster) BlocklistAdd(string, time.Duration) error { return ErrNotBuilt }
func (*Cluster) BlocklistRemove(string) error             { return ErrNotBuilt }
func (*Cluster) WaitForLatestOSDMap() error               { return ErrNotBuilt }
func (*Cluster) Pool(string, string) (*IoCtx, error)      { return nil, ErrNotBuilt }

func (*IoCtx) Close()                                                 {}
func (*IoCtx) Read(string, int) ([]byte, uint64, error)               { return nil, 0, ErrNotBuilt }
func (*IoCtx) Stat(string) (uint64, time.Time, error)                 { return 0, time.Time{}, ErrNotBuilt }
func (*IoCtx) GetXattr(string, string) ([]byte, error)                { return nil, ErrNotBuilt }
func (*IoCtx) OmapGet(string, string, int) (map[string][]byte, error) { return nil, ErrNotBuilt }
func (*IoCtx) Remove(string) error                                    { return ErrNotBuilt }
func (*IoCtx) List(string, int) ([]string, error)                     { return nil, ErrNotBuilt }
func (*IoCtx) Write(string, *WriteOp) (uint64, error)                 { return 0, ErrNotBuilt }
func (*IoCtx) LockExclusive(string, string, string, string, time.Duration, bool) error {
	return ErrNotBuilt
}
func (*IoCtx) Unlock(string, string, string) error            { return ErrNotBuilt }
func (*IoCtx) BreakLock(string, string, string, string) error { return ErrNotBuilt }
func (*IoCtx) Lockers(string, string) ([]Locker, error)       { return nil, ErrNotBuilt }
func (*IoCtx) Watch(string, time.Duration, func(uint64, []byte) []byte, func(error)) (*Watch, error) {
	return nil, ErrNotBuilt
}
func (*IoCtx) Notify(string, []byte, time.Duration) ([]Ack, int, error) { return nil, 0, ErrNotBuilt }
func (*IoCtx) OpenImage(string, string, bool) (*Image, error)           { return nil, ErrNotBuilt }
func (*IoCtx) CreateImage(string, ImageSpec) error                      { return ErrNotBuilt }
func (*IoCtx) CloneImage(*IoCtx, string, string, string) error          { return ErrNotBuilt }
func (*IoCtx) RemoveImage(string) error                                 { return ErrNotBuilt }

func (*Watch) Check() (time.Duration, error) { return 0, ErrNotBuilt }
func (*Watch) Close() error                  { return ErrNotBuilt }

func (*Image) Close() error                                 { return ErrNotBuilt }
func (*Image) Info() (ImageInfo, error)                     { return ImageInfo{}, ErrNotBuilt }
func (*Image) Size() (uint64, error)                        { return 0, ErrNotBuilt }
func (*Image) Resize(uint64) error                          { return ErrNotBuilt }
func (*Image) Option(string) (string, error)                { return "", ErrNotBuilt }
func (*Image) Lock() error                                  { return ErrNotBuilt }
func (*Image) Unlock() error                                { return ErrNotBuilt }
func (*Image) Owns() (bool, error)                          { return false, ErrNotBuilt }
func (*Image) LockOwner() (string, error)                   { return "", ErrNotBuilt }
func (*Image) BreakLock(string) error                       { return ErrNotBuilt }
func (*Image) Invalidate() error                            { return ErrNotBuilt }
func (*Image) CreateSnapshot(string) error                  { return ErrNotBuilt }
func (*Image) RemoveSnapshot(string) error                  { return ErrNotBuilt }
func (*Image) Snapshots() ([]Snapshot, error)               { return nil, ErrNotBuilt }
func (*Image) Allocated(uint64, uint64, []Run) (int, error) { return 0, ErrNotBuilt }
func (*Image) WatchUpdates(func()) (*Update, error)         { return nil, ErrNotBuilt }

func (*Update) Close() error { return ErrNotBuilt }

type rawRing struct{}

func openRawRing(*Image) (rawRing, *ringShared, *os.File, error) {
	return rawRing{}, nil, nil, ErrNotBuilt
}

func (rawRing) submit([]uint16) {}
func (rawRing) signal()         {}
func (rawRing) close()          {}
