//go:build ceph && cgo && linux

package ceph

/*
#cgo CFLAGS: -Wall -Wextra
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Built says whether this binary has the shim.
const Built = true

// version is librados', once it is open.
var openRados = sync.OnceValues(func() (version string, err error) {
	var l C.struct_cr_libs
	if C.cr_open_rados(&l) != 0 {
		return "", &LibraryError{Library: "librados.so.2", Package: "librados2", Reason: C.GoString(&l.error[0])}
	}
	return C.GoString(&l.version[0]), nil
})

var openRBD = sync.OnceValue(func() error {
	if _, err := openRados(); err != nil {
		return err
	}
	var l C.struct_cr_libs
	if C.cr_open_rbd(&l) != 0 {
		return &LibraryError{Library: "librbd.so.1", Package: "librbd1", Reason: C.GoString(&l.error[0])}
	}
	return nil
})

// Available is nil where librados can be opened. It asks once a process.
func Available() error {
	_, err := openRados()
	return err
}

// AvailableRBD is nil where librbd can be opened as well.
func AvailableRBD() error { return openRBD() }

// Cluster is an instance of librados: a client with an address of its own, which is what a blocklist names. Its methods may be called by any
// goroutine, until Shutdown.
type Cluster struct {
	h       C.cr_handle
	version string
}

// cstr copies s for C. free gives it back.
func cstr(s string) *C.char { return C.CString(s) }

func free(l ...*C.char) {
	for _, p := range l {
		C.free(unsafe.Pointer(p))
	}
}

// bytesOf is the address of b's bytes, which C does not keep.
func bytesOf(b []byte) *C.char { return (*C.char)(unsafe.Pointer(unsafe.SliceData(b))) }

// Connect makes an instance and connects it. It fails with ErrNotBuilt, a *LibraryError, or an *Error.
func Connect(o Options) (*Cluster, error) {
	version, err := openRados()
	if err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	user := cstr(o.user())
	var conf *C.char
	if o.Conf != "" {
		conf = cstr(o.Conf)
	}
	defer free(user, conf)
	c := &Cluster{version: version}
	what := "read the configuration"
	if err := failed(what, o.Conf, int(C.cr_create(user, conf, &c.h))); err != nil {
		return nil, err
	}
	for _, kv := range o.settings() {
		k, v := cstr(kv[0]), cstr(kv[1])
		err = failed("set option "+kv[0]+" to", kv[1], int(C.cr_conf_set(c.h, k, v)))
		free(k, v)
		if err != nil {
			C.cr_shutdown(c.h)
			return nil, err
		}
	}
	if err := failed("connect as", o.user(), int(C.cr_connect(c.h))); err != nil {
		C.cr_shutdown(c.h)
		return nil, err
	}
	return c, nil
}

// Shutdown ends the instance, behind all that was opened of it.
func (c *Cluster) Shutdown() { C.cr_shutdown(c.h) }

// InstanceID is the number of the client: 4123 of client.4123.
func (c *Cluster) InstanceID() uint64 { return uint64(C.cr_instance_id(c.h)) }

// Version is librados'.
func (c *Cluster) Version() string { return c.version }

// Addrs is what librados says of the instance's addresses.
func (c *Cluster) Addrs() (string, error) {
	var b [4096]C.char
	err := failed("ask for the addresses of this client", "", int(C.cr_addrs(c.h, &b[0], C.size_t(len(b)))))
	return C.GoString(&b[0]), err
}

// BlocklistAddrs are the instance's addresses in the form that a blocklist takes.
func (c *Cluster) BlocklistAddrs() ([]string, error) {
	a, err := c.Addrs()
	if err != nil {
		return nil, err
	}
	return blocklistForm(a), nil
}

// FSID is the cluster's own name for itself.
func (c *Cluster) FSID() (string, error) {
	var b [64]C.char
	err := failed("ask for the fsid", "", int(C.cr_fsid(c.h, &b[0], C.size_t(len(b)))))
	return C.GoString(&b[0]), err
}

// MonCommand has the monitors do what cmd says, which becomes JSON: {"prefix": "osd blocklist", ...}.
func (c *Cluster) MonCommand(cmd any) ([]byte, error) {
	js, err := json.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("ceph: command for the monitors: %w", err)
	}
	text := cstr(string(js))
	defer free(text)
	var out, status *C.char
	var outLen, statusLen C.size_t
	rc := int(C.cr_mon_command(c.h, text, &out, &outLen, &status, &statusLen))
	var got []byte
	var words string
	if out != nil {
		got = C.GoBytes(unsafe.Pointer(out), C.int(outLen))
		C.cr_free(out)
	}
	if status != nil {
		words = C.GoStringN(status, C.int(statusLen))
		C.cr_free(status)
	}
	if rc < 0 {
		return got, &Error{Op: "ask the monitors", Object: string(js), Errno: unix.Errno(-rc), Status: words}
	}
	return got, nil
}

// BlocklistAdd shuts a client out by its address for d. The monitors have it in a map when this returns; an OSD learns of it with the map, and a
// client that knows the map brings it along (WaitForLatestOSDMap).
func (c *Cluster) BlocklistAdd(addr string, d time.Duration) error {
	expire := json.RawMessage(fmt.Sprintf("%.3f", d.Seconds())) // the monitors take no whole number for it
	_, err := c.MonCommand(map[string]any{"prefix": "osd blocklist", "blocklistop": "add", "addr": addr, "expire": expire})
	return err
}

// BlocklistRemove lets a client in again.
func (c *Cluster) BlocklistRemove(addr string) error {
	_, err := c.MonCommand(map[string]any{"prefix": "osd blocklist", "blocklistop": "rm", "addr": addr})
	return err
}

// WaitForLatestOSDMap waits until this instance has the newest map. What it asks of an OSD later, that OSD does in that map or a newer one.
func (c *Cluster) WaitForLatestOSDMap() error {
	return failed("wait for the OSD map", "", int(C.cr_wait_osdmap(c.h)))
}

// IoCtx is a pool, or a namespace of it. Its methods may be called by any goroutine.
type IoCtx struct {
	c *Cluster
	h C.cr_handle
}

// Pool opens a pool; namespace "" is the default one.
func (c *Cluster) Pool(pool, namespace string) (*IoCtx, error) {
	if err := errors.Join(checkName(pool), checkName(namespace)); err != nil {
		return nil, err
	}
	p, n := cstr(pool), cstr(namespace)
	defer free(p, n)
	x := &IoCtx{c: c}
	if err := failed("open pool", pool, int(C.cr_pool(c.h, p, n, &x.h))); err != nil {
		return nil, err
	}
	return x, nil
}

// Close ends the use of a pool, behind all that was opened of it.
func (x *IoCtx) Close() { C.cr_pool_close(x.h) }

// Read reads a whole object of at most limit bytes; EFBIG where it has more. The version is the object's when it was read.
func (x *IoCtx) Read(object string, limit int) ([]byte, uint64, error) {
	if err := checkName(object); err != nil {
		return nil, 0, err
	}
	o := cstr(object)
	defer free(o)
	limit = min(max(limit, 0), maxObject)
	b := make([]byte, limit+1)
	var version C.uint64_t
	n := int(C.cr_read(x.h, o, bytesOf(b), C.size_t(len(b)), &version))
	if err := failed("read object", object, n); err != nil {
		return nil, 0, err
	}
	if n > limit {
		return nil, 0, &Error{Op: "read object", Object: object, Errno: unix.EFBIG}
	}
	return b[:n:n], uint64(version), nil
}

// Stat is an object's size, and when it was written last.
func (x *IoCtx) Stat(object string) (uint64, time.Time, error) {
	if err := checkName(object); err != nil {
		return 0, time.Time{}, err
	}
	o := cstr(object)
	defer free(o)
	var size C.uint64_t
	var mtime C.int64_t
	err := failed("look at object", object, int(C.cr_stat(x.h, o, &size, &mtime)))
	return uint64(size), time.Unix(int64(mtime), 0), err
}

// GetXattr reads an extended attribute; ENODATA where there is none.
func (x *IoCtx) GetXattr(object, name string) ([]byte, error) {
	if err := errors.Join(checkName(object), checkName(name)); err != nil {
		return nil, err
	}
	o, n := cstr(object), cstr(name)
	defer free(o, n)
	b := make([]byte, maxPayload)
	got := int(C.cr_getxattr(x.h, o, n, bytesOf(b), C.size_t(len(b))))
	if err := failed("read attribute "+name+" of", object, got); err != nil {
		return nil, err
	}
	return b[:got:got], nil
}

// OmapGet reads the pairs whose keys begin with prefix, at most limit of them in the order of keys.
func (x *IoCtx) OmapGet(object, prefix string, limit int) (map[string][]byte, error) {
	if err := errors.Join(checkName(object), checkName(prefix)); err != nil {
		return nil, err
	}
	o, p := cstr(object), cstr(prefix)
	defer free(o, p)
	got := map[string][]byte{}
	after := ""
	for len(got) < limit {
		a := cstr(after)
		var iter C.cr_handle
		var more C.int
		err := failed("read the map of", object, int(C.cr_omap_get(x.h, o, a, p, C.uint64_t(limit-len(got)), &iter, &more)))
		free(a)
		if err != nil {
			return nil, err
		}
		was := len(got)
		for {
			var k, v *C.char
			var kn, vn C.size_t
			rc := int(C.cr_omap_next(iter, &k, &kn, &v, &vn))
			if rc <= 0 {
				err = failed("read the map of", object, rc)
				break
			}
			after = C.GoStringN(k, C.int(kn))
			got[after] = C.GoBytes(unsafe.Pointer(v), C.int(vn))
		}
		C.cr_omap_end(iter)
		if err != nil {
			return nil, err
		}
		if more == 0 || len(got) == was {
			break
		}
	}
	return got, nil
}

// Remove removes an object; ENOENT where there is none.
func (x *IoCtx) Remove(object string) error {
	_, err := x.Write(object, &WriteOp{Remove: true})
	return err
}

// List is the names of objects that begin with prefix, at most limit, in no order. It asks all placement groups of the pool.
func (x *IoCtx) List(prefix string, limit int) ([]string, error) {
	var list C.cr_handle
	if err := failed("list objects", prefix, int(C.cr_list_open(x.h, &list))); err != nil {
		return nil, err
	}
	defer C.cr_list_close(list)
	var l []string
	for len(l) < limit {
		var name *C.char
		rc := int(C.cr_list_next(list, &name))
		if rc == -int(unix.ENOENT) {
			break
		}
		if err := failed("list objects", prefix, rc); err != nil {
			return nil, err
		}
		if s := C.GoString(name); strings.HasPrefix(s, prefix) {
			l = append(l, s)
		}
	}
	return l, nil
}

// Write does all that op says, or nothing, and returns the object's new version.
func (x *IoCtx) Write(object string, op *WriteOp) (uint64, error) {
	if err := checkName(object); err != nil {
		return 0, err
	}
	o := cstr(object)
	defer free(o)
	h := C.cr_op_new()
	defer C.cr_op_free(h)
	if op.CreateExclusive {
		C.cr_op_create_exclusive(h)
	}
	if op.AssertExists {
		C.cr_op_assert_exists(h)
	}
	if op.AssertVersion != 0 {
		C.cr_op_assert_version(h, C.uint64_t(op.AssertVersion))
	}
	attributes := func(l []Xattr, step func(name *C.char, v []byte)) error {
		for _, a := range l {
			if err := checkName(a.Name); err != nil {
				return err
			}
			n := cstr(a.Name)
			step(n, a.Value)
			free(n)
		}
		return nil
	}
	if err := attributes(op.CompareXattrs, func(n *C.char, v []byte) { C.cr_op_cmpxattr(h, n, bytesOf(v), C.size_t(len(v))) }); err != nil {
		return 0, err
	}
	if op.WriteFull != nil {
		C.cr_op_write_full(h, bytesOf(op.WriteFull), C.size_t(len(op.WriteFull)))
	}
	if err := attributes(op.SetXattrs, func(n *C.char, v []byte) { C.cr_op_setxattr(h, n, bytesOf(v), C.size_t(len(v))) }); err != nil {
		return 0, err
	}
	for k, v := range op.OmapSet {
		C.cr_op_omap_set(h, bytesOf([]byte(k)), C.size_t(len(k)), bytesOf(v), C.size_t(len(v)))
	}
	for _, k := range op.OmapRemove {
		C.cr_op_omap_rm(h, bytesOf([]byte(k)), C.size_t(len(k)))
	}
	if op.Remove {
		C.cr_op_remove(h)
	}
	var version C.uint64_t
	err := failed("write object", object, int(C.cr_op_run(h, x.h, o, &version)))
	return uint64(version), err
}

// LockExclusive takes a lock of an object, for d, or for good where d is 0. EBUSY says that another has it; EEXIST that this client has it
// with that cookie, and renew is false.
func (x *IoCtx) LockExclusive(object, name, cookie, description string, d time.Duration, renew bool) error {
	if err := errors.Join(checkName(object), checkName(name), checkName(cookie), checkName(description)); err != nil {
		return err
	}
	o, n, k, t := cstr(object), cstr(name), cstr(cookie), cstr(description)
	defer free(o, n, k, t)
	r := C.int(0)
	if renew {
		r = 1
	}
	return failed("lock", object, int(C.cr_lock_exclusive(x.h, o, n, k, t, C.int64_t(d.Microseconds()), r)))
}

// Unlock gives a lock back.
func (x *IoCtx) Unlock(object, name, cookie string) error {
	if err := errors.Join(checkName(object), checkName(name), checkName(cookie)); err != nil {
		return err
	}
	o, n, k := cstr(object), cstr(name), cstr(cookie)
	defer free(o, n, k)
	return failed("unlock", object, int(C.cr_unlock(x.h, o, n, k)))
}

// BreakLock takes a lock from another client, which Lockers names. It shuts nothing out: that is BlocklistAdd's.
func (x *IoCtx) BreakLock(object, name, client, cookie string) error {
	if err := errors.Join(checkName(object), checkName(name), checkName(client), checkName(cookie)); err != nil {
		return err
	}
	o, n, who, k := cstr(object), cstr(name), cstr(client), cstr(cookie)
	defer free(o, n, who, k)
	return failed("break the lock of", object, int(C.cr_break_lock(x.h, o, n, who, k)))
}

// Lockers are who holds a lock; there are none of an object that is not there.
func (x *IoCtx) Lockers(object, name string) ([]Locker, error) {
	if err := errors.Join(checkName(object), checkName(name)); err != nil {
		return nil, err
	}
	o, n := cstr(object), cstr(name)
	defer free(o, n)
	var b [3][]byte
	for i := range b {
		b[i] = make([]byte, maxLockers)
	}
	got := int(C.cr_lockers(x.h, o, n, bytesOf(b[0]), bytesOf(b[1]), bytesOf(b[2]), maxLockers))
	if got == -int(unix.ENOENT) {
		return nil, nil
	}
	if err := failed("ask for the holders of a lock of", object, got); err != nil {
		return nil, err
	}
	l := make([]Locker, got)
	for i := range l {
		var s [3]string
		for j := range s {
			text, rest, _ := strings.Cut(string(b[j]), "\x00")
			s[j], b[j] = text, []byte(rest)
		}
		l[i] = Locker{Client: s[0], Cookie: s[1], Address: s[2]}
	}
	return l, nil
}
