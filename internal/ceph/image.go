//go:build ceph && cgo && linux

package ceph

/*
#include <stdlib.h>
#include "shim.h"

// It runs to its end without coming back to Go, and keeps no pointer.
#cgo noescape cr_ring_submit
#cgo nocallback cr_ring_submit
#cgo nocallback cr_ring_signal
*/
import "C"

import (
	"errors"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// The memory that both sides see has one layout: an index that is not 0 does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(ringOp{})-uintptr(C.sizeof_struct_cr_ring_op)]
	_ = [1]struct{}{}[unsafe.Offsetof(ringOp{}.iovs)-unsafe.Offsetof(C.struct_cr_ring_op{}.iovs)]
	_ = [1]struct{}{}[unsafe.Offsetof(ringOp{}.op)-unsafe.Offsetof(C.struct_cr_ring_op{}.op)]
	_ = [1]struct{}{}[unsafe.Offsetof(ringShared{}.done)-unsafe.Offsetof(C.struct_cr_ring{}.done)]
	_ = [1]struct{}{}[unsafe.Offsetof(ringShared{}.ops)-unsafe.Offsetof(C.struct_cr_ring{}.ops)]
	_ = [1]struct{}{}[Depth-C.CR_DEPTH]
	_ = [1]struct{}{}[Spans-C.CR_SPANS]
	_ = [1]struct{}{}[opRead-C.CR_READ]
	_ = [1]struct{}{}[opZeroThick-C.CR_ZERO_THICK]
)

// Image is an open image. Its methods may be called by any goroutine, until Close.
type Image struct {
	h    C.cr_handle
	name string
}

// OpenImage opens an image, or a snapshot of it, which is read-only.
func (x *IoCtx) OpenImage(name, snapshot string, readOnly bool) (*Image, error) {
	if err := errors.Join(openRBD(), checkName(name), checkName(snapshot)); err != nil {
		return nil, err
	}
	n := cstr(name)
	var s *C.char
	if snapshot != "" {
		s = cstr(snapshot)
		name += "@" + snapshot
	}
	defer free(n, s)
	i := &Image{name: name}
	if err := failed("open image", name, int(C.cr_image_open(x.h, n, s, cbool(readOnly), &i.h))); err != nil {
		return nil, err
	}
	return i, nil
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Close closes the image, behind its rings and watches. What its cache holds is written first.
func (i *Image) Close() error { return failed("close image", i.name, int(C.cr_image_close(i.h))) }

// Info is what the image is.
func (i *Image) Info() (ImageInfo, error) {
	var c C.struct_cr_info
	err := failed("look at image", i.name, int(C.cr_image_info(i.h, &c)))
	return ImageInfo{
		ID: C.GoString(&c.id[0]), Size: uint64(c.size), ObjectSize: uint64(c.object_size), StripeUnit: uint64(c.stripe_unit),
		StripeCount: uint64(c.stripe_count), Features: uint64(c.features),
	}, err
}

// Size is the image's size now.
func (i *Image) Size() (uint64, error) {
	var n C.uint64_t
	err := failed("ask for the size of image", i.name, int(C.cr_image_size(i.h, &n)))
	return uint64(n), err
}

// Resize makes the image size bytes long. What is cut off is lost.
func (i *Image) Resize(size uint64) error {
	return failed("resize image", i.name, int(C.cr_image_resize(i.h, C.uint64_t(size))))
}

// Option is the value that one of librbd's options has for this image: of its own, of its pool, or of the client.
func (i *Image) Option(name string) (string, error) {
	n := cstr(name)
	defer free(n)
	var b [256]C.char
	err := failed("ask for option "+name+" of image", i.name, int(C.cr_image_option(i.h, n, &b[0], C.size_t(len(b)))))
	return C.GoString(&b[0]), err
}

// Lock takes the image's exclusive lock and keeps it: no other client gets it by asking. EBUSY or EROFS say that another has it.
func (i *Image) Lock() error { return failed("lock image", i.name, int(C.cr_image_lock(i.h))) }

// Unlock gives the exclusive lock back.
func (i *Image) Unlock() error { return failed("unlock image", i.name, int(C.cr_image_unlock(i.h))) }

// Owns reports whether this client has the exclusive lock.
func (i *Image) Owns() (bool, error) {
	rc := int(C.cr_image_owns(i.h))
	return rc > 0, failed("ask for the lock of image", i.name, rc)
}

// LockOwner is who has the exclusive lock, an address as BreakLock wants it; ENOENT where no client has it.
func (i *Image) LockOwner() (string, error) {
	var b [512]C.char
	err := failed("ask who has locked image", i.name, int(C.cr_image_owner(i.h, &b[0], C.size_t(len(b)))))
	return C.GoString(&b[0]), err
}

// BreakLock takes the exclusive lock from its owner, which it blocklists first.
func (i *Image) BreakLock(owner string) error {
	o := cstr(owner)
	defer free(o)
	return failed("break the lock of image", i.name, int(C.cr_image_break_lock(i.h, o)))
}

// Invalidate drops what the cache holds and has written.
func (i *Image) Invalidate() error {
	return failed("drop the cache of image", i.name, int(C.cr_image_invalidate(i.h)))
}

// CreateSnapshot makes a snapshot of what the image holds now.
func (i *Image) CreateSnapshot(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	n := cstr(name)
	defer free(n)
	return failed("make snapshot "+name+" of image", i.name, int(C.cr_snap_create(i.h, n)))
}

// RemoveSnapshot removes a snapshot. One with clones of the second format goes to the image's trash until they are gone.
func (i *Image) RemoveSnapshot(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	n := cstr(name)
	defer free(n)
	return failed("remove snapshot "+name+" of image", i.name, int(C.cr_snap_remove(i.h, n)))
}

// Snapshots are the image's.
func (i *Image) Snapshots() ([]Snapshot, error) {
	list := make([]C.struct_cr_snap, 512) // librbd's own default limit is none; what is beyond is left out
	n := int(C.cr_snaps(i.h, &list[0], C.int(len(list))))
	if err := failed("list the snapshots of image", i.name, n); err != nil {
		return nil, err
	}
	var l []Snapshot
	for k := range list[:min(n, len(list))] {
		l = append(l, Snapshot{ID: uint64(list[k].id), Size: uint64(list[k].size), Name: C.GoString(&list[k].name[0])})
	}
	return l, nil
}

// Run is a run of bytes that an image, or its parent, has.
type Run struct{ Offset, Length uint64 }

// Allocated fills runs with what is there from offset on, and returns how many there are, at most len(runs).
func (i *Image) Allocated(offset, length uint64, runs []Run) (int, error) {
	if len(runs) == 0 {
		return 0, nil
	}
	n := int(C.cr_image_diff(i.h, C.uint64_t(offset), C.uint64_t(length), (*C.struct_cr_extent)(unsafe.Pointer(&runs[0])), C.int(len(runs))))
	return max(n, 0), failed("ask what is there of image", i.name, n)
}

// CreateImage makes an image; EEXIST where there is one of that name.
func (x *IoCtx) CreateImage(name string, s ImageSpec) error {
	if err := errors.Join(openRBD(), checkName(name), checkName(s.DataPool)); err != nil {
		return err
	}
	order := 0
	if s.ObjectSize != 0 {
		order = bits.TrailingZeros64(s.ObjectSize)
	}
	n, p := cstr(name), cstr(s.DataPool)
	defer free(n, p)
	return failed("create image", name, int(C.cr_image_create(x.h, n, C.uint64_t(s.Size), C.int(order), p)))
}

// CloneImage makes an image that shares what a snapshot of another one holds.
func (x *IoCtx) CloneImage(parent *IoCtx, image, snapshot, name string) error {
	if err := errors.Join(openRBD(), checkName(image), checkName(snapshot), checkName(name)); err != nil {
		return err
	}
	p, s, n := cstr(image), cstr(snapshot), cstr(name)
	defer free(p, s, n)
	return failed("clone "+image+"@"+snapshot+" to image", name, int(C.cr_image_clone(parent.h, p, s, x.h, n)))
}

// RemoveImage removes an image and all that it holds. EBUSY says that a client has it open, ENOTEMPTY that it has snapshots.
func (x *IoCtx) RemoveImage(name string) error {
	if err := errors.Join(openRBD(), checkName(name)); err != nil {
		return err
	}
	n := cstr(name)
	defer free(n)
	return failed("remove image", name, int(C.cr_image_remove(x.h, n)))
}

// Update is a watch of what an image is: its size, its snapshots, its features.
type Update struct {
	i       *Image
	h       *C.struct_cr_update
	event   *os.File
	closing atomic.Bool
	running sync.WaitGroup
}

// WatchUpdates calls changed after each change of what the image is, on one goroutine; several changes may be one call.
func (i *Image) WatchUpdates(changed func()) (*Update, error) {
	u := &Update{i: i}
	var fd C.int
	if err := failed("watch image", i.name, int(C.cr_image_watch(i.h, &u.h, &fd))); err != nil {
		return nil, err
	}
	u.event = os.NewFile(uintptr(fd), "updates of "+i.name)
	u.running.Go(func() {
		var count [8]byte
		for {
			if _, err := u.event.Read(count[:]); err != nil || u.closing.Load() {
				return
			}
			changed()
		}
	})
	return u, nil
}

// Close ends the watch, and returns when changed runs no more.
func (u *Update) Close() error {
	u.closing.Store(true)
	if err := u.event.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	u.running.Wait()
	err := failed("end the watch of image", u.i.name, int(C.cr_image_unwatch(u.i.h, u.h)))
	return errors.Join(err, u.event.Close())
}

// rawRing is the ring as C has it.
type rawRing struct{ h *C.struct_cr_ring }

func openRawRing(i *Image) (rawRing, *ringShared, *os.File, error) {
	var r rawRing
	var fd C.int
	if err := failed("make a queue for image", i.name, int(C.cr_ring_open(i.h, &r.h, &fd))); err != nil {
		return r, nil, nil, err
	}
	return r, (*ringShared)(unsafe.Pointer(r.h)), os.NewFile(uintptr(fd), "completions of "+i.name), nil
}

func (r rawRing) submit(slots []uint16) {
	C.cr_ring_submit(r.h, (*C.uint16_t)(unsafe.Pointer(&slots[0])), C.int(len(slots)))
}

func (r rawRing) signal() { C.cr_ring_signal(r.h) }
func (r rawRing) close()  { C.cr_ring_close(r.h) }
