package shm

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// inbox receives from the socket without an allocation, for the owner.
type inbox struct {
	hdr unix.Msghdr
	iov unix.Iovec
	buf [64]byte // longer than any message of a connection
	oob [64]byte // more than one file
	n   int      // bytes of the message that is here
	err unix.Errno
	has bool // there is a message, or the end, that has not been looked at
}

// receive takes one message, if there is one. False means that there is none.
func (in *inbox) receive(fd uintptr) bool {
	in.iov.Base = &in.buf[0]
	in.iov.SetLen(len(in.buf))
	for {
		in.hdr = unix.Msghdr{Iov: &in.iov, Control: &in.oob[0]}
		in.hdr.SetIovlen(1)
		in.hdr.SetControllen(len(in.oob))
		n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&in.hdr)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if e == unix.EINTR {
			continue
		}
		in.n, in.err, in.has = int(n), e, e != unix.EAGAIN
		return in.has
	}
}

// bell reports whether the message is a bell and nothing else, and is done with it then.
func (in *inbox) bell() bool {
	if in.err == 0 && in.n == 1 && in.buf[0] == msgBell && in.hdr.Controllen == 0 && in.hdr.Flags&^unix.MSG_CMSG_CLOEXEC == 0 {
		in.has = false
	}
	return !in.has
}

// files are the descriptors that came with the message. They are the caller's.
func (in *inbox) files() []int {
	return filesOf(in.oob[:min(int(in.hdr.Controllen), len(in.oob))])
}

// filesOf reads control messages; there are none but of files, for nothing else is asked for.
func filesOf(oob []byte) (fds []int) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		l, err := unix.ParseUnixRights(&msgs[i])
		if err == nil {
			fds = append(fds, l...)
		}
	}
	return fds
}

// closeAll closes files of peers' without waiting. The close of one that is no memory may wait for the peer, as with FUSE (its FLUSH) and a socket
// that lingers (SO_LINGER): all such are closed by one goroutine, so that they hold one thread, and no owner or listener.
func closeAll(fds []int) {
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil {
			_ = unix.Close(fd) // it was the peer's
			continue
		}
		strange.Lock()
		if strange.fds = append(strange.fds, fd); !strange.closing {
			strange.closing = true
			go closeStrange()
		}
		strange.Unlock()
	}
}

// strange are files of peers' that are no memory, and are to be closed.
var strange struct {
	sync.Mutex
	fds     []int
	closing bool // a goroutine is at it
}

func closeStrange() {
	for {
		strange.Lock()
		if len(strange.fds) == 0 {
			strange.fds, strange.closing = nil, false
			strange.Unlock()
			return
		}
		fd := strange.fds[0]
		strange.fds = strange.fds[1:]
		strange.Unlock()
		_ = unix.Close(fd) // it was the peer's
	}
}

// ErrFiles is why a message is refused that comes with another number of files than it should, or with files that this process had no
// room for.
var ErrFiles = errors.New("shm: a message without exactly one file")

// oneFile is the file that a message came with. flags are those of its receipt.
func oneFile(fds []int, flags int) (int, error) {
	if len(fds) == 1 && flags&unix.MSG_CTRUNC == 0 {
		return fds[0], nil
	}
	closeAll(fds)
	if flags&unix.MSG_CTRUNC != 0 {
		return -1, fmt.Errorf("%w: some were cut off; has this process reached its limit of open files?", ErrFiles)
	}
	return -1, fmt.Errorf("%w: %d came", ErrFiles, len(fds))
}

// sendHello sends a message of the set-up with a file, or with none where fd is negative. It waits, as the connection's deadline says.
func sendHello(c *net.UnixConn, h *hello, fd int) error {
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	_, _, err := c.WriteMsgUnix(h.append(nil), oob, nil)
	return err
}

// packet is a message of the set-up as it came.
type packet struct {
	b     []byte
	fds   []int
	flags int
}

func readPacket(c *net.UnixConn) (packet, error) {
	buf, oob := make([]byte, maxHello+1), make([]byte, 64)
	n, on, flags, _, err := c.ReadMsgUnix(buf, oob)
	return packet{buf[:max(n, 0)], filesOf(oob[:max(on, 0)]), flags}, err
}

// open decodes a packet and maps the region that comes with it; a refusal has none.
func (p *packet) open() (h hello, b []byte, err error) {
	if p.flags&unix.MSG_TRUNC != 0 {
		err = errNoHello
	} else {
		err = h.parse(p.b)
	}
	if err != nil || h.kind == msgRefusal {
		closeAll(p.fds)
		return h, nil, err
	}
	fd, err := oneFile(p.fds, p.flags)
	if err != nil {
		return h, nil, err
	}
	b, err = mapSealed(fd, uint64(regionSize(int(h.slots))))
	return h, b, err
}

func readHello(c *net.UnixConn) (h hello, b []byte, err error) {
	p, err := readPacket(c)
	if err != nil {
		closeAll(p.fds)
		return h, nil, err
	}
	return p.open()
}

// processOf is who is at the other end of a socket.
func processOf(c *net.UnixConn) (*transport.Process, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &transport.Process{}
	var e error
	if err := raw.Control(func(fd uintptr) {
		var u *unix.Ucred
		if u, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); e == nil {
			p.PID, p.UID, p.GID = int(u.Pid), u.Uid, u.Gid
			p.Groups, e = peerGroups(fd)
		}
	}); err != nil {
		return nil, err
	}
	return p, e
}

// peerGroups are the supplementary groups of the process at the other end; a kernel before 4.13 does not tell.
func peerGroups(fd uintptr) ([]uint32, error) {
	l := make([]uint32, 64)
	for {
		n := uint32(4 * len(l))
		_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(unsafe.SliceData(l))), uintptr(unsafe.Pointer(&n)), 0)
		switch e {
		case 0:
			return l[:n/4], nil
		case unix.ERANGE:
			if n > 4*maxGroups {
				return nil, e
			}
			l = make([]uint32, n/4)
		case unix.ENOPROTOOPT:
			return nil, nil
		default:
			return nil, e
		}
	}
}

// Addr is a listener, by its socket's path.
type Addr string

// Network is "shm".
func (Addr) Network() string { return Name }

func (a Addr) String() string { return string(a) }

// Dialler is a process that has connected. It has the form of host and port: connections of one user are of one host to who counts them.
type Dialler struct {
	name string
	who  *transport.Process // nil at the dialler itself, which is told its name
}

// Network is "shm".
func (*Dialler) Network() string { return Name }

func (d *Dialler) String() string { return d.name }

// Process is transport.ProcessAddr.
func (d *Dialler) Process() *transport.Process { return d.who }
