package verbs

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sysRoot is where the machine's /sys and /dev are; tests have others.
const sysRoot = "/"

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

// whyNone says why the library lists no adapter, and what to do.
func whyNone(root string) string {
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
		if _, err := os.Stat(filepath.Join(root, "dev/infiniband", n)); err != nil {
			return has + ", but this process does not see /dev/infiniband/" + n + ": a unit wants PrivateDevices=no and DeviceAllow=char-infiniband_verbs rw"
		}
	}
	return has + ", but no library for it: install ibverbs-providers"
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
