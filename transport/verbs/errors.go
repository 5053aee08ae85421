package verbs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// ErrNotBuilt is what a binary without the provider says of it.
var ErrNotBuilt = errors.New("this binary was built without RDMA adapters (the verbs provider): use the packages, or build with cgo, a C compiler " +
	"and the headers of rdma-core (Debian: libibverbs-dev, librdmacm-dev) by make build")

// errNotSupported is what a callError is where the adapter, its driver or its library has no such thing.
var errNotSupported = errors.New("not supported")

// A LibraryError says that rdma-core is not on this machine, or is not complete.
type LibraryError struct {
	Library string // libibverbs.so.1
	Package string // Debian's
	Reason  string // the dynamic linker's
}

func (e *LibraryError) Error() string {
	return fmt.Sprintf("%s cannot be opened: install rdma-core (Debian packages %s, rdma-core and ibverbs-providers): %s", e.Library, e.Package, e.Reason)
}

// A CallError is a call of rdma-core that failed.
type CallError struct {
	Library, Call string
	Errno         syscall.Errno
	Hint          string // what to do, where it is known
	unsupported   bool
}

func (e *CallError) Error() string {
	s := fmt.Sprintf("%s of %s: %s", e.Call, e.Library, e.Errno.Error())
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// Unwrap makes errors.Is(err, syscall.ENOMEM) work.
func (e *CallError) Unwrap() error { return e.Errno }

// Is makes errors.Is(err, errNotSupported) work.
func (e *CallError) Is(target error) bool { return target == errNotSupported && e.unsupported }

// A ManagerError says that the kernel's connection manager cannot be used, without which an adapter has no connections.
type ManagerError struct {
	Reason string // one sentence, with what to do
	Err    error
}

func (e *ManagerError) Error() string {
	return fmt.Sprintf("verbs: the RDMA connection manager cannot be used, and with it no RDMA device: %s (%s)", e.Reason, e.Err)
}

func (e *ManagerError) Unwrap() error { return e.Err }

func noManager(err error) error { return &ManagerError{Reason: whyNoManager(sysRoot, err), Err: err} }

// oneLine are errors in one line, for logs.
type oneLine []error

// inOneLine is errors.Join in one line.
func inOneLine(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return oneLine(errs)
}

func (j oneLine) Error() string {
	l := make([]string, len(j))
	for i, err := range j {
		l[i] = err.Error()
	}
	return strings.Join(l, "; ")
}

func (j oneLine) Unwrap() []error { return j }

const (
	libVerbs = "libibverbs"
	libCM    = "librdmacm"
)

// failed makes the error of a call that gave a negative errno, and nil of others.
func failed(library, call string, rc int) error {
	if rc >= 0 {
		return nil
	}
	no := syscall.Errno(-rc)
	e := &CallError{Library: library, Call: call, Errno: no, Hint: hint(call, no)}
	switch no {
	case syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.EPROTONOSUPPORT:
		e.unsupported = true
	case syscall.EINVAL:
		// A driver that has windows, but not of this type, says so. There is nothing else to be wrong in this call.
		e.unsupported = call == "ibv_alloc_mw"
	}
	return e
}

// hint is what an operator can do about an error; it is empty where the error speaks for itself.
func hint(call string, no syscall.Errno) string {
	switch {
	case call == "ibv_reg_mr" && (no == syscall.ENOMEM || no == syscall.EAGAIN):
		return "memory for the adapter is locked: raise LimitMEMLOCK= of the unit (ulimit -l), or give less memory to the process (memory: in its configuration)"
	case call == "ibv_reg_mr" && no == syscall.EFAULT:
		return "the memory is of a kind that the kernel cannot pin"
	case no == syscall.ENOMEM && (call == "rdma_create_qp" || call == "ibv_create_cq"):
		return "the adapter, or locked memory (LimitMEMLOCK=, ulimit -l), is used up: fewer connections, or shorter queues"
	case call == "rdma_create_event_channel": // ManagerError says it
		return ""
	case no == syscall.EACCES || no == syscall.EPERM:
		return "the process may not use /dev/infiniband: see PrivateDevices= and DeviceAllow= of the unit, and the owner of the nodes"
	case no == syscall.ENODEV && (call == "rdma_resolve_addr" || call == "rdma_bind_addr"):
		return "no RDMA adapter has this address"
	case no == syscall.EADDRNOTAVAIL:
		return "no interface of this machine has this address"
	case no == syscall.EADDRINUSE:
		return "another program listens on this port by RDMA"
	}
	return ""
}
