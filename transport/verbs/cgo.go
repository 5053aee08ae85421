//go:build verbs && cgo && linux

package verbs

// The table as C calls: Go's arrays go over as they are, and what comes back is flat. cgocm.go has the connections.

/*
#cgo CFLAGS: -Wall -Wextra
#cgo LDFLAGS: -ldl
#include "shim.h"

// These run to their end without coming back to Go, and keep no pointer: their arguments need not move to the heap.
#cgo noescape vb_post_send
#cgo nocallback vb_post_send
#cgo noescape vb_post_recv
#cgo nocallback vb_post_recv
#cgo noescape vb_poll
#cgo nocallback vb_poll
#cgo nocallback vb_arm
#cgo nocallback vb_events
*/
import "C"

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"
)

// Built says whether this binary has the provider.
const Built = true

// The structs that cross as they are have the same layout on both sides: an index that is not 0 does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(sge{})-uintptr(C.sizeof_struct_vb_sge)]
	_ = [1]struct{}{}[unsafe.Sizeof(sendWR{})-uintptr(C.sizeof_struct_vb_send_wr)]
	_ = [1]struct{}{}[unsafe.Offsetof(sendWR{}.RKey)-C.VB_OFF_SEND_RKEY]
	_ = [1]struct{}{}[unsafe.Offsetof(sendWR{}.SGEs)-C.VB_OFF_SEND_SGES]
	_ = [1]struct{}{}[unsafe.Offsetof(sendWR{}.Flags)-C.VB_OFF_SEND_FLAGS]
	_ = [1]struct{}{}[unsafe.Sizeof(recvWR{})-uintptr(C.sizeof_struct_vb_recv_wr)]
	_ = [1]struct{}{}[unsafe.Sizeof(workComp{})-uintptr(C.sizeof_struct_vb_wc)]
	_ = [1]struct{}{}[unsafe.Offsetof(workComp{}.Inv)-C.VB_OFF_WC_INV]
	_ = [1]struct{}{}[unsafe.Offsetof(workComp{}.Recv)-C.VB_OFF_WC_RECV]
	_ = [1]struct{}{}[wrSend-C.VB_SEND]
	_ = [1]struct{}{}[wrLocalInv-C.VB_LOCAL_INV]
	_ = [1]struct{}{}[flagFence-C.VB_FENCE]
	_ = [1]struct{}{}[flagInline-C.VB_INLINE]
)

// library is rdma-core.
type library struct{ version string }

// openTable opens rdma-core, once a process; later calls get the same answer, and the same error.
func openTable() (table, error) { return opened() }

var opened = sync.OnceValues(func() (table, error) {
	var l C.struct_vb_libs
	if C.vb_open(&l) != 0 {
		e := &LibraryError{Library: "libibverbs.so.1", Package: "libibverbs1", Reason: C.GoString(&l.error[0])}
		if l.missing == C.VB_LIB_CM {
			e.Library, e.Package = "librdmacm.so.1", "librdmacm1"
		}
		return nil, e
	}
	return library{fmt.Sprintf("libibverbs %s, librdmacm %s", fileVersion(C.GoString(&l.verbs[0])), fileVersion(C.GoString(&l.cm[0])))}, nil
})

// fileVersion is what the name of a library's file says: 1.14.44.0 of libibverbs.so.1.14.44.0.
func fileVersion(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		path = p
	}
	_, v, _ := strings.Cut(filepath.Base(path), ".so.")
	return v
}

func (l library) Version() string { return l.version }

func (library) Devices() ([]deviceAttr, error) {
	var devs [256]C.uintptr_t
	n := int(C.vb_devices(&devs[0], C.int(len(devs))))
	if n < 0 {
		return nil, failed(libCM, "rdma_get_devices", n)
	}
	attrs := make([]deviceAttr, 0, n)
	for _, dev := range devs[:min(n, len(devs))] {
		var d C.struct_vb_device
		if rc := int(C.vb_device(dev, &d)); rc < 0 {
			return nil, failed(libVerbs, "ibv_query_device", rc)
		}
		a := deviceAttr{
			Dev: handle(dev), Name: C.GoString(&d.name[0]), Firmware: C.GoString(&d.firmware[0]),
			GUID: uint64(d.guid), Vendor: uint32(d.vendor), Part: uint32(d.part), Flags: uint64(d.flags), Ports: int(d.ports),
			MaxQP: int(d.max_qp), MaxQPWR: int(d.max_qp_wr), MaxSGE: int(d.max_sge), MaxReadSGE: int(d.max_sge_rd),
			MaxCQ: int(d.max_cq), MaxCQE: int(d.max_cqe), MaxMR: int(d.max_mr), MaxPD: int(d.max_pd), MaxMW: int(d.max_mw),
			MaxMRSize: uint64(d.max_mr_size), MaxReadIn: int(d.max_read_in), MaxReadOut: int(d.max_read_out),
		}
		switch d.transport { // ibv_transport_type
		case 0:
			a.Kind = kindIB
		case 1:
			a.Kind = kindIWARP
		}
		a.Driver = driverOf(sysRoot, a.Name, a.Vendor)
		attrs = append(attrs, a)
	}
	return attrs, nil
}

func (library) Port(dev handle, port int) (portAttr, error) {
	var p C.struct_vb_port
	if rc := int(C.vb_port(C.uintptr_t(dev), C.int(port), &p)); rc < 0 {
		return portAttr{}, failed(libVerbs, "ibv_query_port", rc)
	}
	return portAttr{
		State: portState(p.state), Link: linkLayer(p.link), ActiveMTU: int(p.active_mtu), MaxMTU: int(p.max_mtu), MaxMessage: uint32(p.max_message),
		GIDs: int(p.gids), PKeys: int(p.pkeys), LID: uint16(p.lid), Width: uint8(p.width), Speed: uint8(p.speed),
	}, nil
}

// GIDs asks the library, which asks the kernel once; libraries before rdma-core 32 cannot, and the table is in sysfs too.
func (l library) GIDs(dev handle, port int) ([]gidEntry, error) {
	var d C.struct_vb_device
	if rc := int(C.vb_device(C.uintptr_t(dev), &d)); rc < 0 {
		return nil, failed(libVerbs, "ibv_query_device", rc)
	}
	room := 0
	for p := 1; p <= int(d.ports); p++ { // one table for all ports
		a, err := l.Port(dev, p)
		if err != nil {
			return nil, err
		}
		room += a.GIDs
	}
	table := make([]C.struct_vb_gid, max(room, 1))
	n := int(C.vb_gids(C.uintptr_t(dev), &table[0], C.int(len(table))))
	if err := failed(libVerbs, "ibv_query_gid_table", n); err != nil {
		if isUnsupported(err) {
			return readGIDs(sysRoot, C.GoString(&d.name[0]), port)
		}
		return nil, err
	}
	var got []gidEntry
	for _, g := range table[:min(n, len(table))] {
		if int(g.port) != port {
			continue
		}
		e := gidEntry{Index: int(g.index), Kind: gidKind(g._type), GID: *(*[16]byte)(unsafe.Pointer(&g.gid))}
		if i, err := net.InterfaceByIndex(int(g.ifindex)); g.ifindex != 0 && err == nil {
			e.Netdev = i.Name
		}
		got = append(got, e)
	}
	return got, nil
}

func (library) AsyncFD(dev handle) int { return int(C.vb_async_fd(C.uintptr_t(dev))) }

func (library) Async(dev handle) (asyncEvent, bool, error) {
	var a C.struct_vb_async
	if rc := int(C.vb_async(C.uintptr_t(dev), &a)); rc < 0 {
		return asyncEvent{}, false, unlessEmpty(failed(libVerbs, "ibv_get_async_event", rc))
	}
	return asyncEvent{Kind: asyncKindOf(int(a.code)), Code: int(a.code), Text: C.GoString(a.text), Port: int(a.port), QP: handle(a.qp), CQ: handle(a.cq)}, true, nil
}

func (library) AllocPD(dev handle) (handle, error) {
	var pd C.uintptr_t
	rc := C.vb_alloc_pd(C.uintptr_t(dev), &pd)
	return handle(pd), failed(libVerbs, "ibv_alloc_pd", int(rc))
}

func (library) DeallocPD(pd handle) error {
	return failed(libVerbs, "ibv_dealloc_pd", int(C.vb_dealloc_pd(C.uintptr_t(pd))))
}

func (library) RegMR(pd handle, addr uintptr, length uint64, a access) (handle, uint32, uint32, error) {
	var mr C.uintptr_t
	var lkey, rkey C.uint32_t
	rc := C.vb_reg_mr(C.uintptr_t(pd), C.uintptr_t(addr), C.uint64_t(length), C.uint32_t(a), &mr, &lkey, &rkey)
	return handle(mr), uint32(lkey), uint32(rkey), failed(libVerbs, "ibv_reg_mr", int(rc))
}

func (library) DeregMR(mr handle) error {
	return failed(libVerbs, "ibv_dereg_mr", int(C.vb_dereg_mr(C.uintptr_t(mr))))
}

func (library) AllocMW(pd handle) (handle, uint32, error) {
	var mw C.uintptr_t
	var rkey C.uint32_t
	rc := C.vb_alloc_mw(C.uintptr_t(pd), &mw, &rkey)
	return handle(mw), uint32(rkey), failed(libVerbs, "ibv_alloc_mw", int(rc))
}

func (library) DeallocMW(mw handle) error {
	return failed(libVerbs, "ibv_dealloc_mw", int(C.vb_dealloc_mw(C.uintptr_t(mw))))
}

func (library) CreateChannel(dev handle) (handle, int, error) {
	var ch C.uintptr_t
	var fd C.int
	rc := C.vb_create_channel(C.uintptr_t(dev), &ch, &fd)
	return handle(ch), int(fd), failed(libVerbs, "ibv_create_comp_channel", int(rc))
}

func (library) DestroyChannel(ch handle) error {
	return failed(libVerbs, "ibv_destroy_comp_channel", int(C.vb_destroy_channel(C.uintptr_t(ch))))
}

func (library) CreateCQ(dev handle, entries int, ch handle) (handle, int, error) {
	var cq C.uintptr_t
	var size C.int
	rc := C.vb_create_cq(C.uintptr_t(dev), C.int(entries), C.uintptr_t(ch), &cq, &size)
	return handle(cq), int(size), failed(libVerbs, "ibv_create_cq", int(rc))
}

func (library) DestroyCQ(cq handle) error {
	return failed(libVerbs, "ibv_destroy_cq", int(C.vb_destroy_cq(C.uintptr_t(cq))))
}

func (library) Arm(cq handle) error {
	return failed(libVerbs, "ibv_req_notify_cq", int(C.vb_arm(C.uintptr_t(cq))))
}

func (library) Events(ch handle) (int, error) {
	n := int(C.vb_events(C.uintptr_t(ch)))
	return max(n, 0), failed(libVerbs, "ibv_get_cq_event", n)
}

func (library) Poll(cq handle, wc []workComp) (int, error) {
	if len(wc) == 0 {
		return 0, nil
	}
	n := int(C.vb_poll(C.uintptr_t(cq), (*C.struct_vb_wc)(unsafe.Pointer(&wc[0])), C.int(len(wc))))
	return max(n, 0), failed(libVerbs, "ibv_poll_cq", n)
}

func (library) CreateQP(id, pd, cq handle, want qpCaps) (handle, qpCaps, uint32, error) {
	c := C.struct_vb_caps{
		sends: C.uint32_t(want.Sends), recvs: C.uint32_t(want.Recvs), send_sge: C.uint32_t(want.SendSGE), recv_sge: C.uint32_t(want.RecvSGE),
		inline_data: C.uint32_t(want.Inline),
	}
	var qp C.uintptr_t
	var num C.uint32_t
	rc := C.vb_create_qp(C.uintptr_t(id), C.uintptr_t(pd), C.uintptr_t(cq), &c, &qp, &num)
	got := qpCaps{Sends: int(c.sends), Recvs: int(c.recvs), SendSGE: int(c.send_sge), RecvSGE: int(c.recv_sge), Inline: int(c.inline_data)}
	return handle(qp), got, uint32(num), failed(libCM, "rdma_create_qp", int(rc))
}

func (library) ErrorQP(qp handle) error {
	return failed(libVerbs, "ibv_modify_qp", int(C.vb_error_qp(C.uintptr_t(qp))))
}

func (library) DestroyQP(id handle) error {
	return failed(libVerbs, "ibv_destroy_qp", int(C.vb_destroy_qp(C.uintptr_t(id))))
}

func (library) PostSend(qp handle, wrs []sendWR, sges []sge) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	done := C.vb_post_send(C.uintptr_t(qp), (*C.struct_vb_send_wr)(unsafe.Pointer(&wrs[0])), C.int(len(wrs)), first(sges), C.int(len(sges)))
	return int(done.n), failed(libVerbs, "ibv_post_send", -int(done.error))
}

func (library) PostRecv(qp handle, wrs []recvWR, sges []sge) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	done := C.vb_post_recv(C.uintptr_t(qp), (*C.struct_vb_recv_wr)(unsafe.Pointer(&wrs[0])), C.int(len(wrs)), first(sges), C.int(len(sges)))
	return int(done.n), failed(libVerbs, "ibv_post_recv", -int(done.error))
}

func first(s []sge) *C.struct_vb_sge { return (*C.struct_vb_sge)(unsafe.Pointer(unsafe.SliceData(s))) }
