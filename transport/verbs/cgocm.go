//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"unsafe"
)

func (library) CreateEventChannel() (handle, int, error) {
	var ch C.uintptr_t
	var fd C.int
	rc := C.vb_create_event_channel(&ch, &fd)
	return handle(ch), int(fd), failed(libCM, "rdma_create_event_channel", int(rc))
}

func (library) DestroyEventChannel(ch handle) { C.vb_destroy_event_channel(C.uintptr_t(ch)) }

func (library) CMEvent(ch handle) (cmEvent, bool, error) {
	var c C.struct_vb_cm_event
	if rc := int(C.vb_cm_event(C.uintptr_t(ch), &c)); rc < 0 {
		return cmEvent{}, false, unlessEmpty(failed(libCM, "rdma_get_cm_event", rc))
	}
	e := cmEvent{
		Kind: cmKind(c.kind), ID: handle(c.id), Listener: handle(c.listener), Status: int(c.status), Text: C.GoString(c.text),
		ResponderResources: uint8(c.responder_resources), InitiatorDepth: uint8(c.initiator_depth),
	}
	if c.private_len > 0 {
		e.Private = slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&c.private_data)), int(c.private_len)))
	}
	return e, true, nil
}

func (library) CreateID(ch handle) (handle, error) {
	var id C.uintptr_t
	rc := C.vb_create_id(C.uintptr_t(ch), &id)
	return handle(id), failed(libCM, "rdma_create_id", int(rc))
}

func (library) DestroyID(id handle) error {
	return failed(libCM, "rdma_destroy_id", int(C.vb_destroy_id(C.uintptr_t(id))))
}

func (library) MoveID(id, ch handle) error {
	return failed(libCM, "rdma_migrate_id", int(C.vb_move_id(C.uintptr_t(id), C.uintptr_t(ch))))
}

func (library) BindAddr(id handle, a netip.AddrPort) error {
	c := toC(a)
	return failed(libCM, "rdma_bind_addr", int(C.vb_bind_addr(C.uintptr_t(id), &c)))
}

func (library) SetToS(id handle, tos uint8) error {
	return failed(libCM, "rdma_set_option", int(C.vb_set_tos(C.uintptr_t(id), C.uint8_t(tos))))
}

func (library) SetAckTimeout(id handle, power uint8) error {
	return failed(libCM, "rdma_set_option", int(C.vb_set_ack_timeout(C.uintptr_t(id), C.uint8_t(power))))
}

func (library) ResolveAddr(id handle, src, dst netip.AddrPort, timeoutMS int) error {
	s, d := toC(src), toC(dst)
	return failed(libCM, "rdma_resolve_addr", int(C.vb_resolve_addr(C.uintptr_t(id), &s, &d, C.int(timeoutMS))))
}

func (library) ResolveRoute(id handle, timeoutMS int) error {
	return failed(libCM, "rdma_resolve_route", int(C.vb_resolve_route(C.uintptr_t(id), C.int(timeoutMS))))
}

func (library) Listen(id handle, backlog int) error {
	return failed(libCM, "rdma_listen", int(C.vb_listen(C.uintptr_t(id), C.int(backlog))))
}

func (library) Connect(id handle, p connParam) error {
	return connection("rdma_connect", p, func(c *C.struct_vb_param, private *C.uint8_t, n C.int) C.int {
		return C.vb_connect(C.uintptr_t(id), c, private, n)
	})
}

func (library) Accept(id handle, p connParam) error {
	return connection("rdma_accept", p, func(c *C.struct_vb_param, private *C.uint8_t, n C.int) C.int {
		return C.vb_accept(C.uintptr_t(id), c, private, n)
	})
}

func connection(call string, p connParam, do func(*C.struct_vb_param, *C.uint8_t, C.int) C.int) error {
	private, err := privateData(call, p.Private)
	if err != nil {
		return err
	}
	c := C.struct_vb_param{
		responder_resources: C.uint8_t(p.ResponderResources), initiator_depth: C.uint8_t(p.InitiatorDepth), retry: C.uint8_t(p.Retry), rnr_retry: C.uint8_t(p.RNRRetry),
	}
	if p.FlowControl {
		c.flow_control = 1
	}
	return failed(libCM, call, int(do(&c, private, C.int(len(p.Private)))))
}

// privateData refuses what a byte cannot count; what a fabric cannot carry the kernel refuses.
func privateData(call string, b []byte) (*C.uint8_t, error) {
	if len(b) > 255 {
		return nil, failed(libCM, call, -int(syscall.EINVAL))
	}
	return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

func (library) Reject(id handle, private []byte) error {
	p, err := privateData("rdma_reject", private)
	if err != nil {
		return err
	}
	return failed(libCM, "rdma_reject", int(C.vb_reject(C.uintptr_t(id), p, C.int(len(private)))))
}

func (library) Disconnect(id handle) error {
	return failed(libCM, "rdma_disconnect", int(C.vb_disconnect(C.uintptr_t(id))))
}

func (library) Where(id handle) (where, error) {
	var w C.struct_vb_where
	if rc := int(C.vb_where(C.uintptr_t(id), &w)); rc < 0 {
		return where{}, failed(libCM, "rdma_cm_id", rc)
	}
	return where{
		Dev: handle(w.dev), Port: int(w.port), Local: fromC(&w.local), Remote: fromC(&w.remote), GID: *(*[16]byte)(unsafe.Pointer(&w.gid)),
		PKey: uint16(w.pkey), SL: uint8(w.sl), TClass: uint8(w.tclass), MTU: int(w.mtu),
	}, nil
}

func toC(a netip.AddrPort) C.struct_vb_addr {
	var c C.struct_vb_addr
	if !a.Addr().IsValid() {
		return c
	}
	c.port = C.uint16_t(a.Port())
	ip := a.Addr().Unmap()
	to := (*[16]byte)(unsafe.Pointer(&c.ip))
	if ip.Is4() {
		c.family = 4
		v4 := ip.As4()
		copy(to[:], v4[:])
		return c
	}
	c.family = 6
	*to = ip.As16()
	if zone := ip.Zone(); zone != "" {
		if n, err := strconv.Atoi(zone); err == nil {
			c.scope = C.uint32_t(n)
		} else if i, err := net.InterfaceByName(zone); err == nil {
			c.scope = C.uint32_t(i.Index)
		}
	}
	return c
}

func fromC(c *C.struct_vb_addr) netip.AddrPort {
	b := *(*[16]byte)(unsafe.Pointer(&c.ip))
	switch c.family {
	case 4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[:4])), uint16(c.port))
	case 6:
		ip := netip.AddrFrom16(b)
		if c.scope != 0 {
			zone := strconv.Itoa(int(c.scope))
			if i, err := net.InterfaceByIndex(int(c.scope)); err == nil {
				zone = i.Name
			}
			ip = ip.WithZone(zone)
		}
		return netip.AddrPortFrom(ip, uint16(c.port))
	}
	return netip.AddrPort{}
}

func isUnsupported(err error) bool { return errors.Is(err, errNotSupported) }

// unlessEmpty is nil where a channel has nothing to read.
func unlessEmpty(err error) error {
	if errors.Is(err, syscall.EAGAIN) {
		return nil
	}
	return err
}
