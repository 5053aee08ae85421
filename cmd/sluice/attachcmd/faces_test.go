package attachcmd

import (
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// The choice of a face takes the first that there is, and says what those before it lack; what was asked for and cannot be had
// is refused with what to do.
func TestTheFaceIsChosenAndExplained(t *testing.T) {
	denied := machine{ublk: errNoUblk, nbd: errNoNBD, fuse: errFUSEDenied}
	for _, tc := range []struct {
		m               machine
		ask, face, says string
		code            int
	}{
		{machine{root: true}, "auto", faceUblk, "the kernel has ublk", 0},
		{machine{root: true, ublk: errNoUblk}, "auto", faceDevice, "the kernel has no ublk driver loaded (modprobe ublk_drv, Linux 6.0 or later); it has nbd", 0},
		{machine{root: true, ublk: errNoUblk, nbd: errNoNBD}, "auto", faceFile,
			"the kernel has no ublk driver loaded (modprobe ublk_drv, Linux 6.0 or later); the kernel has no nbd driver loaded (modprobe nbd); /dev/fuse is usable", 0},
		{machine{ublk: errNoUblk}, "auto", faceFile, "only root can make block devices; /dev/fuse is usable", 0},
		{denied, "auto", faceSocket, "only root can make block devices; this user may not open /dev/fuse; a socket needs nothing", 0},
		{machine{fuse: errNoHelper}, "auto", faceSocket, "only root can make block devices; there is no fusermount3 (package fuse3); a socket needs nothing", 0},
		{denied, "socket", faceSocket, "asked for", 0},
		{machine{root: true}, "nbd", faceDevice, "asked for", 0},
		{machine{root: true}, "fuse", faceFile, "asked for", 0},
		{machine{}, "device", "", "a block device needs root; --face file or --face socket work without", ui.CodeRefused},
		{machine{}, "ublk", "", "a block device needs root; --face file or --face socket work without", ui.CodeRefused},
		{machine{root: true, nbd: errNoNBD}, "device", "", "--face device is not possible here: the kernel has no nbd driver loaded (modprobe nbd); --face auto takes what is", ui.CodeRefused},
		{denied, "file", "", "--face file is not possible here: this user may not open /dev/fuse; --face auto takes what is", ui.CodeRefused},
		{machine{root: true}, "disk", "", `--face "disk" is none of auto, ublk, device, file, socket`, -1},
		{machine{root: true}, faceDir, "", `--face "directory" is none of auto, ublk, device, file, socket`, -1},
	} {
		face, why, err := tc.m.choose(tc.ask)
		if tc.code == 0 {
			if err != nil || face != tc.face || why != tc.says {
				t.Errorf("%s: %q, %q, %v; want %q, %q", tc.ask, face, why, err, tc.face, tc.says)
			}
			continue
		}
		var code ui.ExitError
		if err == nil || err.Error() != tc.says || errors.As(err, &code) != (tc.code > 0) || tc.code > 0 && code.Code != tc.code {
			t.Errorf("%s: %v; want %q with code %d", tc.ask, err, tc.says, tc.code)
		}
	}
}
