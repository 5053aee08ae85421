package shm

import (
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
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

func closeAll(fds []int) {
	for _, fd := range fds {
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

// Credentials are the kernel's word on who is at the other end of a socket (SO_PEERCRED in unix(7)).
type Credentials struct {
	PID int // as this process sees it: 0 for one of another namespace
	UID uint32
	GID uint32
}

func credentials(c *net.UnixConn) (Credentials, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Credentials{}, err
	}
	var u *unix.Ucred
	var e error
	if err := raw.Control(func(fd uintptr) { u, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return Credentials{}, err
	}
	if e != nil {
		return Credentials{}, e
	}
	return Credentials{PID: int(u.Pid), UID: u.Uid, GID: u.Gid}, nil
}

// Addr is an end of a connection, or a listener.
type Addr struct {
	Path string       // of the listener's socket; empty for a dialler
	Name string       // what the listener calls a dialler
	Peer *Credentials // of a dialler, at the listener
}

// Network is "shm".
func (a *Addr) Network() string { return "shm" }

func (a *Addr) String() string {
	if a.Path != "" {
		return a.Path
	}
	return a.Name
}
