package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

var remapScenarios = []Scenario{
	{
		Name: "remap-iser", Class: long, Turn: true, Limit: 20 * time.Minute, Host: both, Script: "remap.sh",
		About:   "a LUN number is given to another volume, at once, with a gap and while the session is lost, below 32 writes of ib_iser: not a byte lands there; without the gate they do",
		Prepare: prepareRemap("iser"), OnHost: hostRemap,
	},
	{
		Name: "remap-tcp", Class: long, Turn: true, Limit: 20 * time.Minute, Host: both, Script: "remap.sh",
		About:   "the same below iscsi_tcp",
		Prepare: prepareRemap("tcp"), OnHost: hostRemap,
	},
}

// remapLie is a target that does not notice that a LUN has come to mean another unit: one unit attention is all that hosts get.
var remapLie = lie{"gateless", "target/scsi/known.go", "i.unknown.Store(true)", "i.unknown.Store(false)"}

func prepareRemap(transport string) func(*Run) error {
	return func(r *Run) error {
		r.Args = []string{transport}
		if err := r.giveLiars("sluiced", remapLie); err != nil {
			return err
		}
		r.Give = nil // the liar runs on the host
		// A volume that is slower than an emulated initiator: the queue is full at each moment.
		t, err := r.serveWith([]string{"limits: {iops: 50}"}, unit{"disk", "file", "64MiB"}, unit{"other", "file", "64MiB"})
		if err != nil {
			return err
		}
		if r.cutter, err = newCutter(r, loopback(t.port)); err != nil {
			return err
		}
		r.Env = append(r.Env, fmt.Sprint("PORT=", r.cutter.ln.Addr().(*net.TCPAddr).Port))
		return nil
	}
}

// hostRemap: fresh, remap step|gap|cut, intact, written, lie, touched.
func hostRemap(r *Run, name string, args []string) (string, error) {
	t := r.target
	switch name {
	case "fresh": // the other volume as it was, and LUN 0 what it was
		return "LUN 0 is disk\n", errors.Join(t.mapTo("disk"), os.WriteFile(r.image("other"), otherBytes(), 0o600))
	case "remap":
		switch args[0] {
		case "cut": // the session's recovery sends again what was in flight
			select {
			case <-r.cutter.arm(0, nil):
			case <-time.After(30 * time.Second):
				return "", errors.New("nothing flows")
			}
		case "gap":
			if err := t.mapTo(""); err != nil {
				return "", err
			}
			time.Sleep(500 * time.Millisecond) // writes meet a LUN that is not there
		}
		return "LUN 0 is other\n", t.mapTo("other")
	case "intact":
		return "", r.otherIs(otherBytes())
	case "written": // what the guest wrote when it knew the disk is there, and nothing else
		want := otherBytes()
		clear(want[:4096])
		return "", r.otherIs(want)
	case "lie":
		t.proc.kill()
		t.binary = filepath.Join(r.Tmp, "sluiced-"+remapLie.name)
		return "sluiced without the gate serves\n", t.start()
	case "touched":
		for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if r.otherIs(otherBytes()) != nil {
				return "the other volume was written to\n", nil
			}
		}
		return "", errors.New("for 90 s the other volume stays as it was even without the gate: the check cannot fail")
	}
	return "", fmt.Errorf("remap has nothing named %q", name)
}

// otherBytes is what the other volume holds.
func otherBytes() []byte {
	b := make([]byte, 64<<20)
	for i := range b {
		b[i] = byte(i>>9*13 + i*5 + 1)
	}
	return b
}

func (r *Run) otherIs(want []byte) error {
	got, err := os.ReadFile(r.image("other"))
	if err != nil {
		return err
	}
	if sha256.Sum256(got) == sha256.Sum256(want) {
		return nil
	}
	n, first := 0, -1
	for at := 0; at+512 <= min(len(got), len(want)); at += 512 {
		if !bytes.Equal(got[at:at+512], want[at:at+512]) {
			if n++; first < 0 {
				first = at
			}
		}
	}
	return fmt.Errorf("the other volume has %d bytes, of %d wanted; %d sectors differ, the first at %d", len(got), len(want), n, first)
}

var lunsOfTarget = regexp.MustCompile(`(?s)    luns:.*$`)

// mapTo makes LUN 0 that volume, or nothing, by an edited configuration and a reload.
func (t *target) mapTo(volume string) error {
	text, err := os.ReadFile(t.file)
	if err != nil {
		return err
	}
	luns := "    luns: []\n"
	if volume != "" {
		luns = fmt.Sprintf("    luns: [{lun: 0, volume: %s}]\n", volume)
	}
	if err := os.WriteFile(t.file, lunsOfTarget.ReplaceAll(text, []byte(luns)), 0o644); err != nil {
		return err
	}
	out, err := t.r.exec("sluice", "reload", "--socket", filepath.Join(t.r.Tmp, "state", "admin.sock"))
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
