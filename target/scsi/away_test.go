package scsi

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
)

// A medium that is away is asked again, one that has shut this host out is asked by another path, one without room is a thin disk's; none of
// them is a medium error, for which a host gives up data.
func TestWhatAClustersErrorsAreToAHost(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		err error
		key SenseKey
		asc ASC
	}{
		{fmt.Errorf("%w: %w", blockdev.ErrAway, unix.ETIMEDOUT), NotReady, ASCNotReadyBecoming},
		{fmt.Errorf("%w: %w", blockdev.ErrFenced, unix.ESHUTDOWN), NotReady, ASCALUAUnavailable},
		{fmt.Errorf("%w: %w", blockdev.ErrNoSpace, unix.EDQUOT), DataProtect, ASCSpaceAllocationFailed},
		{fmt.Errorf("%w: %w", blockdev.ErrReadOnly, unix.EROFS), DataProtect, ASCWriteProtected},
	} {
		r.disk.fail = func(*blockdev.Request) error { return c.err }
		r.sense(c.key, c.asc, make([]byte, 512), 0, "2a 00 00000000 00 0001 00")
		r.sense(c.key, c.asc, nil, 0, "35 00 00000000 00 0000 00")
		if c.key == NotReady {
			r.sense(c.key, c.asc, nil, 512, "28 00 00000000 00 0001 00")
		}
	}
}

// A device without a volatile cache says so, and a host may still ask for one.
func TestADeviceWithoutACacheHasNoWCE(t *testing.T) {
	d := newDisk(1<<20, 512)
	d.geo.WriteThrough = true
	lu := &LogicalUnit{dev: d}
	if b := cachingPage(lu); b[0]&0x04 != 0 {
		t.Errorf("WCE of a device that writes through: %#x", b[0])
	}
	d.geo.WriteThrough = false
	if b := cachingPage(lu); b[0]&0x04 == 0 {
		t.Errorf("no WCE of a device with a cache: %#x", b[0])
	}
}
