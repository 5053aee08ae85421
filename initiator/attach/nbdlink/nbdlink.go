// Package nbdlink makes /dev/nbdN devices over sockets, by the kernel's generic netlink interface (Linux
// include/uapi/linux/nbd-netlink.h): the kernel picks a free device, and the process that asked need not stay for it.
package nbdlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	cmdConnect     = 1
	cmdDisconnect  = 2
	cmdReconfigure = 3

	attrIndex       = 1
	attrSize        = 2
	attrBlock       = 3
	attrTimeout     = 4
	attrServerFlags = 5
	attrSockets     = 7
	attrBackend     = 10
	sockItem        = 1
	sockFD          = 1

	nested = unix.NLA_F_NESTED
)

// ErrNoNBD says that the kernel has no nbd driver loaded.
var ErrNoNBD = errors.New("nbdlink: the kernel has no nbd driver; load it with: modprobe nbd")

// Config describes a device.
type Config struct {
	Sockets []*os.File // the kernel's end of each connection; Connect's caller closes its copies afterwards
	Size    int64      // bytes
	Block   int        // logical block in bytes
	Flags   uint16     // transmission flags of the NBD protocol
	Timeout time.Duration
	Backend string // names the owner, for Backend; may be empty
}

func family() (uint16, error) {
	f, err := netlink.GenlFamilyGet("nbd")
	if err != nil {
		return 0, fmt.Errorf("%w (%w)", ErrNoNBD, err)
	}
	return f.ID, nil
}

func request(cmd uint8) (*nl.NetlinkRequest, error) {
	id, err := family()
	if err != nil {
		return nil, err
	}
	req := nl.NewNetlinkRequest(int(id), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: cmd, Version: 1})
	return req, nil
}

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// Connect makes a device of a free index and returns the index. Open does more.
func Connect(c Config) (int, error) {
	req, err := request(cmdConnect)
	if err != nil {
		return 0, err
	}
	req.AddData(nl.NewRtAttr(attrSize, u64(uint64(c.Size))))
	req.AddData(nl.NewRtAttr(attrBlock, u64(uint64(c.Block))))
	req.AddData(nl.NewRtAttr(attrServerFlags, u64(uint64(c.Flags))))
	if c.Timeout > 0 {
		req.AddData(nl.NewRtAttr(attrTimeout, u64(uint64(c.Timeout.Seconds()))))
	}
	if c.Backend != "" {
		req.AddData(nl.NewRtAttr(attrBackend, nl.ZeroTerminated(c.Backend)))
	}
	req.AddData(sockets(c.Sockets))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, fmt.Errorf("nbdlink: connect: %w", err)
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttrAsMap(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, fmt.Errorf("nbdlink: the kernel's answer: %w", err)
		}
		if a, ok := attrs[attrIndex]; ok && len(a.Value) >= 4 {
			return int(binary.NativeEndian.Uint32(a.Value)), nil
		}
	}
	return 0, errors.New("nbdlink: the kernel's answer names no device")
}

func sockets(fs []*os.File) *nl.RtAttr {
	list := nl.NewRtAttr(attrSockets|nested, nil)
	for _, f := range fs {
		item := list.AddRtAttr(sockItem|nested, nil)
		item.AddRtAttr(sockFD, u32(uint32(f.Fd())))
	}
	return list
}

// Backend is what the owner of a device called itself when it made it, or nothing (Linux 5.14).
func Backend(index int) string {
	b, err := os.ReadFile(fmt.Sprintf("/sys/block/nbd%d/backend", index))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Owned are the devices that were made in a name.
func Owned(backend string) []int {
	var out []int
	dirs, _ := filepath.Glob("/sys/block/nbd*") // the pattern is well-formed
	for _, d := range dirs {
		if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(d), "nbd")); err == nil && backend != "" && Backend(n) == backend {
			out = append(out, n)
		}
	}
	return out
}

// Resize tells the kernel another size of a device; backend is what it was made with.
func Resize(index int, size int64, backend string) error {
	req, err := request(cmdReconfigure)
	if err != nil {
		return err
	}
	req.AddData(nl.NewRtAttr(attrIndex, u32(uint32(index))))
	req.AddData(nl.NewRtAttr(attrSize, u64(uint64(size))))
	if backend != "" {
		req.AddData(nl.NewRtAttr(attrBackend, nl.ZeroTerminated(backend)))
	}
	if _, err := req.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		return fmt.Errorf("nbdlink: resize /dev/nbd%d: %w", index, err)
	}
	return nil
}

// DisconnectOwn is Disconnect of a device that is still the owner's: the kernel gives a number out again when its device has ended.
// Kernels before 5.14 do not say whose a device is.
func DisconnectOwn(index int, backend string) error {
	if b := Backend(index); backend != "" && b != "" && b != backend {
		return nil
	}
	return Disconnect(index)
}

// Disconnect ends a device: what is cached for it is lost unless it was flushed.
func Disconnect(index int) error {
	req, err := request(cmdDisconnect)
	if err != nil {
		return err
	}
	req.AddData(nl.NewRtAttr(attrIndex, u32(uint32(index))))
	if _, err := req.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		return fmt.Errorf("nbdlink: disconnect /dev/nbd%d: %w", index, err)
	}
	return nil
}
