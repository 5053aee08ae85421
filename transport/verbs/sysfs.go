package verbs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sysRoot is where the machine's /sys and /dev are; tests have others.
var sysRoot = "/"

// driverOf names the kernel's driver of an adapter. The soft devices have no hardware below them whose driver could be read, or
// that of their network interface: their vendor numbers tell.
func driverOf(root, device string, vendor uint32) string {
	switch vendor {
	case 0xffffff:
		return "rdma_rxe"
	case 0x626d74:
		return "siw"
	}
	target, err := os.Readlink(filepath.Join(root, "sys/class/infiniband", device, "device/driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// readGIDs is a port's GID table as sysfs has it: a file an entry, empty ones all zeroes.
func readGIDs(root, device string, port int) ([]gidEntry, error) {
	dir := filepath.Join(root, "sys/class/infiniband", device, "ports", strconv.Itoa(port))
	files, err := os.ReadDir(filepath.Join(dir, "gids"))
	if err != nil {
		return nil, fmt.Errorf("GIDs of %s: %w", device, err)
	}
	var got []gidEntry
	for _, f := range files {
		var e gidEntry
		if e.Index, err = strconv.Atoi(f.Name()); err != nil {
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(readLine(dir, "gids", f.Name()), ":", ""))
		if err != nil || len(b) != len(e.GID) || [16]byte(b) == e.GID {
			continue
		}
		e.GID = [16]byte(b)
		e.Netdev = readLine(dir, "gid_attrs/ndevs", f.Name())
		switch kind := readLine(dir, "gid_attrs/types", f.Name()); { // "RoCE v2", or "IB/RoCE v1" for both of those
		case strings.Contains(kind, "v2"):
			e.Kind = gidRoCEv2
		case e.Netdev != "":
			e.Kind = gidRoCEv1
		}
		got = append(got, e)
	}
	slices.SortFunc(got, func(a, b gidEntry) int { return a.Index - b.Index })
	return got, nil
}

func readLine(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// tryNode opens a device's node as the library does.
func tryNode(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// unseen is what a unit's sandbox takes from a process, and what a user may not do: whyNone and whyNoManager say it of their nodes.
const (
	unseen  = "but this process does not see /dev/infiniband/%[1]s: a unit with PrivateDevices=yes wants BindPaths=/dev/infiniband and DeviceAllow=%[2]s rw"
	refused = "but this process may not open /dev/infiniband/%[1]s: run it as root or as a user that owns the node, or, in a unit, with DeviceAllow=%[2]s rw"
)

// whyNone says why the library lists no adapter, and what to do. try opens a node.
func whyNone(root string, try func(path string) error) string {
	adapters := names(root, "sys/class/infiniband")
	if len(adapters) == 0 {
		return "this machine has no RDMA adapter, or the kernel's driver of it is not loaded"
	}
	has := "the kernel has " + strings.Join(adapters, ", ")
	uverbs := slices.DeleteFunc(names(root, "sys/class/infiniband_verbs"), func(n string) bool { return !strings.HasPrefix(n, "uverbs") })
	if len(uverbs) == 0 {
		return has + ", but no module ib_uverbs, which gives adapters to programs: modprobe -a ib_uverbs rdma_ucm"
	}
	for _, n := range uverbs {
		const class = "char-infiniband_verbs"
		switch err := try(filepath.Join(root, "dev/infiniband", n)); {
		case errors.Is(err, fs.ErrNotExist):
			return has + ", " + fmt.Sprintf(unseen, n, class)
		case errors.Is(err, fs.ErrPermission):
			return has + ", " + fmt.Sprintf(refused, n, class)
		case err != nil:
			return has + ", but " + err.Error() + ": the kernel's log (dmesg) says what is wrong with it"
		}
	}
	return has + ", but this machine has no library for its driver: install ibverbs-providers"
}

// whyNoManager says why the connection manager's node could not be opened, and what to do.
func whyNoManager(root string, err error) string {
	const node = "/dev/infiniband/rdma_cm"
	loaded := len(names(root, "sys/class/misc/rdma_cm")) > 0
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "the kernel has it, " + fmt.Sprintf(refused, "rdma_cm", node)
	case loaded && errors.Is(err, fs.ErrNotExist):
		return "the kernel has it, " + fmt.Sprintf(unseen, "rdma_cm", node)
	case !loaded:
		return "the kernel's module rdma_ucm, which makes " + node + ", is not loaded: modprobe rdma_ucm, and a line in /etc/modules-load.d for the next start"
	}
	return node + " does not answer"
}

func names(elem ...string) []string {
	files, err := os.ReadDir(filepath.Join(elem...))
	if err != nil {
		return nil
	}
	var got []string
	for _, f := range files {
		got = append(got, f.Name())
	}
	return got
}

// asyncKindOf sorts ibv_event_type.
func asyncKindOf(code int) asyncKind {
	switch code {
	case 0: // CQ_ERR
		return asyncCQError
	case 1, 2, 3: // QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR
		return asyncQPFatal
	case 8:
		return asyncDeviceFatal
	case 9:
		return asyncPortActive
	case 10:
		return asyncPortError
	case 18:
		return asyncGIDChange
	}
	return asyncOther
}
