//go:build ceph && cgo && linux

package ceph

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watch is told of the notifications of an object.
type Watch struct {
	x       *IoCtx
	h       *C.struct_cr_watch
	object  string
	event   *os.File
	closing atomic.Bool
	running sync.WaitGroup
}

// Watch watches an object, which has to be there. handler is called for one notification after another, and what it returns is the
// acknowledgement's payload. lost is called once, where the watch is broken: no more comes then until Close and another Watch. timeout is
// how long the OSD keeps a watch of a client that it does not hear.
func (x *IoCtx) Watch(object string, timeout time.Duration, handler func(notifier uint64, payload []byte) []byte, lost func(error)) (*Watch, error) {
	if err := checkName(object); err != nil {
		return nil, err
	}
	o := cstr(object)
	defer free(o)
	w := &Watch{x: x, object: object}
	var fd C.int
	rc := C.cr_watch(x.h, o, C.uint32_t((timeout+time.Second-1)/time.Second), maxPayload, maxQueued, &w.h, &fd)
	if err := failed("watch object", object, int(rc)); err != nil {
		return nil, err
	}
	w.event = os.NewFile(uintptr(fd), "watch of "+object)
	w.running.Go(func() { w.run(handler, lost) })
	return w, nil
}

func (w *Watch) run(handler func(uint64, []byte) []byte, lost func(error)) {
	told := false
	var count [8]byte
	for {
		if _, err := w.event.Read(count[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
			return
		}
		for !w.closing.Load() {
			var n C.struct_cr_note
			kind := C.cr_watch_next(w.h, &n)
			if kind == C.CR_BROKEN && !told {
				told = true
				lost(&Error{Op: "watch object", Object: w.object, Errno: unix.Errno(-n.error)})
			}
			if kind != C.CR_NOTE {
				break
			}
			payload := C.GoBytes(unsafe.Pointer(n.data), C.int(n.len))
			C.free(unsafe.Pointer(n.data))
			reply := handler(uint64(n.notifier), payload)
			// Where it cannot be acknowledged the notifier waits for its own time-out, and says so.
			C.cr_watch_ack(w.h, n.id, bytesOf(reply), C.int(len(reply)))
		}
		if w.closing.Load() {
			return
		}
	}
}

// Check says how long ago the OSD confirmed the watch, or why it is broken.
func (w *Watch) Check() (time.Duration, error) {
	ms := int(C.cr_watch_check(w.h))
	return time.Duration(max(ms, 0)) * time.Millisecond, failed("check the watch of", w.object, ms)
}

// Close ends the watch, and returns when handler and lost run no more; they must not call it.
func (w *Watch) Close() error {
	w.closing.Store(true)
	if err := w.event.SetReadDeadline(time.Unix(1, 0)); err != nil { // the goroutine leaves its Read
		return err
	}
	w.running.Wait()
	err := failed("end the watch of", w.object, int(C.cr_watch_close(w.x.c.h, w.h)))
	return errors.Join(err, w.event.Close())
}

// Notify tells all who watch an object, and waits until each has answered, for at most timeout. Where missed is not 0 the error is
// ETIMEDOUT, and acks are those of the others.
func (x *IoCtx) Notify(object string, payload []byte, timeout time.Duration) (acks []Ack, missed int, err error) {
	if err := checkName(object); err != nil {
		return nil, 0, err
	}
	o := cstr(object)
	defer free(o)
	var r C.struct_cr_reply
	rc := C.cr_notify(x.h, o, bytesOf(payload), C.int(len(payload)), C.uint64_t(timeout.Milliseconds()), &r)
	for _, a := range unsafe.Slice(r.acks, int(r.n_acks)) {
		acks = append(acks, Ack{Client: uint64(a.notifier_id), Cookie: uint64(a.cookie), Payload: C.GoBytes(unsafe.Pointer(a.payload), C.int(a.payload_len))})
	}
	missed = int(r.n_missed)
	C.cr_reply_free(&r)
	return acks, missed, failed("notify the watchers of", object, int(rc))
}
