package faults

import (
	"bytes"
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// told logs in by the port of isid and returns what the first command of a LUN is told. The commands after it are GOOD, so
// that the target knows that the report was read.
func told(t *testing.T, d *Daemon, isid iscsi.ISID, lun int) (asc, ascq byte) {
	t.Helper()
	rig := d.Rig
	rig.LUN = uint16(lun)
	s, err := openTCP(context.Background(), &rig)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.isid = isid
	if err := s.login(&rig); err != nil {
		t.Fatal(err)
	}
	for k := range 3 {
		st, err := s.do(&rig, s.command(&rig, cdb(0x00, 0, 0)), nil, iscsi.ISERHeader{})
		if err != nil {
			t.Fatal(err)
		}
		if k == 0 {
			asc, ascq = st.asc, st.ascq
		} else if st.status != 0 {
			t.Fatalf("LUN %d, command %d: %v", lun, k, st)
		}
	}
	return asc, ascq
}

// noted waits until the note that a port has been told is on the disk.
func noted(t *testing.T, d *Daemon, isid iscsi.ISID, luns int) {
	t.Helper()
	dir := filepath.Join(filepath.Dir(d.cmd.Args[len(d.cmd.Args)-1]), "state", "scsi")
	name := []byte("i,0x" + hex.EncodeToString(isid[:]))
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		n := 0
		files, err := filepath.Glob(filepath.Join(dir, "lu-*.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, name) {
				n++
			}
		}
		if n == luns {
			return
		}
		if time.Since(begin) > patience {
			t.Fatalf("%d of %d units have noted who was told", n, luns)
		}
	}
}

// SIGKILL of the daemon loses what lived in its memory, and nothing that the kernel has: POWER ON, RESET, OR BUS DEVICE
// RESET OCCURRED is said of the one and I_T NEXUS LOSS OCCURRED of the other.
func TestAKilledDaemonSaysPowerOnOnlyForWhatItLost(t *testing.T) {
	d := start(t, false)
	isid := newISID()
	want := func(what string, lun int, ascq byte) {
		t.Helper()
		if asc, q := told(t, d, isid, lun); asc != 0x29 || q != ascq {
			t.Errorf("%s, LUN %d: %02x/%02x, want 29/%02x", what, lun, asc, q, ascq)
		}
	}
	want("first start", victimLUN, 0)
	want("first start", memoryLUN, 0)
	noted(t, d, isid, 1)
	for range 2 {
		want("another login", victimLUN, 7)
		want("another login", memoryLUN, 7)
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		want("killed", victimLUN, 7)
		want("killed", memoryLUN, 0)
	}
}
