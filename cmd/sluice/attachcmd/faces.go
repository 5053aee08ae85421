package attachcmd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/sluice-storage/sluice/cmd/sluice/attachcmd/sluicetab"
	"github.com/sluice-storage/sluice/initiator/attach/ublk"
)

// The faces of a volume.
const (
	faceAuto   = "auto"
	faceUblk   = "ublk"      // /dev/ublkbN
	faceDevice = "device"    // /dev/nbdN
	faceFile   = "file"      // one file, by FUSE
	faceSocket = "socket"    // the NBD protocol on a unix socket
	faceDir    = "directory" // an NFS export, by FUSE; not to be chosen
)

var faces = []string{faceAuto, faceUblk, faceDevice, faceFile, faceSocket}

// machine is what this machine offers to this user; nil means that it is there.
type machine struct {
	root            bool
	ublk, nbd, fuse error
}

var (
	errNoNBD      = errors.New("the kernel has no nbd driver loaded (modprobe nbd)")
	errNoUblk     = errors.New("the kernel has no ublk driver loaded (modprobe ublk_drv, Linux 6.0 or later)")
	errNoFUSE     = errors.New("there is no /dev/fuse (modprobe fuse; a container has to be given it)")
	errFUSEDenied = errors.New("this user may not open /dev/fuse")
	errNoHelper   = errors.New("there is no fusermount3 (package fuse3)")
)

// probe asks the machine. It opens nothing that would change anything.
func probe() machine {
	m := machine{root: os.Geteuid() == 0, nbd: errNoNBD, ublk: errNoUblk, fuse: fuseUsable()}
	if _, err := os.Stat("/sys/module/nbd"); err == nil {
		m.nbd = nil
	}
	switch err := ublk.Available(); {
	case err == nil:
		m.ublk = nil
	case !errors.Is(err, ublk.ErrNoDriver) || !m.root:
		m.ublk = err
	}
	return m
}

// fuseUsable says why FUSE cannot be used. An ordinary user has to be allowed to open the device: fusermount3 does that with
// their rights, and only the mount with root's.
func fuseUsable() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errNoFUSE
	case errors.Is(err, os.ErrPermission):
		return errFUSEDenied
	case err != nil:
		return fmt.Errorf("/dev/fuse cannot be used: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	if _, err := exec.LookPath("fusermount3"); err != nil && os.Geteuid() != 0 {
		return errNoHelper
	}
	return nil
}

// choose picks a face and says why: for auto the first that the machine and the user can have, with what is missing for those
// before it. A face that was asked for and cannot be had is refused now, in one sentence, and not by some step on the way.
func (m machine) choose(face string) (string, string, error) {
	if f, ok := sluicetab.Face(face); ok {
		face = f
	}
	need := map[string]error{faceUblk: m.ublk, faceDevice: m.nbd, faceFile: m.fuse, faceSocket: nil}
	if face != faceAuto {
		missing, ok := need[face]
		switch {
		case !ok:
			return "", "", fmt.Errorf("--face %q is none of auto, ublk, device, file, socket", face)
		case !m.root && (face == faceUblk || face == faceDevice):
			return "", "", refused("a block device needs root; --face file or --face socket work without")
		case missing != nil:
			return "", "", refused("--face %s is not possible here: %w; --face auto takes what is", face, missing)
		}
		return face, "asked for", nil
	}
	var why string
	if !m.root {
		why = "only root can make block devices; "
	} else {
		if m.ublk == nil {
			return faceUblk, "the kernel has ublk", nil
		}
		why = m.ublk.Error() + "; "
		if m.nbd == nil {
			return faceDevice, why + "it has nbd", nil
		}
		why += m.nbd.Error() + "; "
	}
	if m.fuse == nil {
		return faceFile, why + "/dev/fuse is usable", nil
	}
	return faceSocket, why + m.fuse.Error() + "; a socket needs nothing", nil
}
