package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

var initiatorScenarios = []Scenario{
	{
		// Not short: with Debian's 6.1 a guest died once in siw_pbl_alloc (a corrupted slab, met by isert while it took a
		// connection right after another had closed). The gate must not hang on that kernel's luck.
		Name: "lio-iser", Class: long, Limit: 10 * time.Minute, Host: []string{"sluice"}, Script: "lio-serve.sh",
		About:   "our initiator over iSER against LIO's ib_isert: discover, inquiry, cp, write, read, compare",
		Prepare: prepareServe("iser", 3260), OnHost: hostCopy("iser", "iqn.2024-01.lab:lio", 0),
	},
	{
		Name: "lio-tcp", Class: long, Turn: true, Limit: 10 * time.Minute, Host: []string{"sluice"}, Script: "lio-serve.sh",
		About:   "the same over iSCSI/TCP",
		Prepare: prepareServe("tcp", 3260), OnHost: hostCopy("iscsi", "iqn.2024-01.lab:lio", 0),
	},
	{
		Name: "tgt-tcp", Class: long, Turn: true, Limit: 10 * time.Minute, Host: []string{"sluice"}, Script: "tgt-serve.sh",
		About:   "the same against tgt",
		Prepare: prepareServe("tcp", 3260), OnHost: hostCopy("iscsi", "iqn.2024-01.lab:tgt", 1),
	},
	{
		Name: "nbd", Class: long, Turn: true, Limit: 10 * time.Minute, Host: []string{"sluiced"}, Files: []string{"sluice"},
		About: "sluice attach and sluice mount: a volume over iSER as the guest kernel's nbd device, ext4, fsck on the host",
		Prepare: func(r *Run) error {
			_, err := r.serve(unit{"disk", "file", "256MiB"})
			return err
		},
		Finish: func(r *Run) error { return r.fsck("e2fsck", "disk") },
	},
	{
		Name: "fstab", Class: long, Limit: 15 * time.Minute, Host: []string{"sluiced"}, Files: []string{"sluice"}, Systemd: true,
		About: "volumes at boot: /etc/sluicetab and /etc/fstab under systemd, /dev/nbdN, ext4, shut down and boot again, a killed helper",
		Prepare: func(r *Run) error {
			if _, err := r.serve(unit{"disk", "file", "256MiB"}, unit{"raw", "file", "64MiB"}); err != nil {
				return err
			}
			return r.give("configs/systemd/sluice-map.service", "configs/systemd/sluice-attach@.service")
		},
		Finish: func(r *Run) error { return r.fsck("e2fsck", "disk") },
	},
	{
		Name: "ublk", Class: long, Kernel: "6.12", Limit: 20 * time.Minute, Files: []string{"sluice", "sluiced"},
		About: "a volume over iSER as /dev/ublkbN: ext4, fio verify, restart of the target, kill -9 of the helper",
	},
	{
		Name: "libiscsi-iser", Class: long, Limit: 60 * time.Minute, Host: []string{"sluiced"},
		About: "libiscsi's own iSER over siw: every SCSI test of its suite, and iscsi-perf",
		Prepare: func(r *Run) error {
			r.Args = []string{"siw"}
			r.Env = append(r.Env, "FAMILIES="+getenv("LAB_FAMILIES", "[A-Za-z0-9]+")) // e.g. LAB_FAMILIES='Read16|Write16'
			// As in test/tool/conformance: GetLBAStatus.UnmapSingle asks for block N+1 and wants the answer for N plus the blocks of
			// a physical block, which is the same for one only.
			_, err := r.serveWith([]string{"physical: 512", "erase: true"}, unit{"disk", "file", "64MiB"})
			return err
		},
	},
}

// prepareServe opens a way from the host to a target in the guest.
func prepareServe(transport string, port int) func(*Run) error {
	return func(r *Run) error {
		host, err := freePort()
		if err != nil {
			return err
		}
		r.port = host
		r.Args = []string{transport}
		r.Forward = []string{fmt.Sprintf("%d:%d", host, port)}
		return nil
	}
}

// hostName is who our commands on the host log in as; lio-serve.sh knows it.
const hostName = "iqn.2026-11.io.sluice:host"

// hostCopy: copy. Moves an image to the guest's target and back with our commands, and compares.
func hostCopy(scheme, target string, lun int) func(*Run, string, []string) (string, error) {
	return func(r *Run, _ string, _ []string) (string, error) {
		url := fmt.Sprintf("%s://%s/%s/%d", scheme, loopback(r.port), target, lun)
		image, back := filepath.Join(r.Tmp, "image"), filepath.Join(r.Tmp, "back")
		const size = 16 << 20
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i*7 + i>>9*13 + i>>17)
		}
		if err := os.WriteFile(image, data, 0o644); err != nil {
			return "", err
		}
		piece := filepath.Join(r.Tmp, "piece")
		if err := os.WriteFile(piece, data[:1<<20], 0o644); err != nil {
			return "", err
		}
		var log strings.Builder
		for _, args := range [][]string{
			{"discover", fmt.Sprintf("%s://%s", scheme, loopback(r.port))},
			{"inquiry", url},
			{"cp", "--quiet", image, url},
			{"read", url, back, "--length", "16MiB"},
			{"write", url, piece, "--offset", "20MiB"},
			{"read", url, back + "2", "--offset", "20MiB", "--length", "1MiB"},
		} {
			out, err := r.exec("sluice", append(args, "--initiator", hostName)...)
			log.WriteString(out)
			if err != nil {
				return log.String(), err
			}
		}
		for file, want := range map[string][]byte{back: data, back + "2": data[:1<<20]} {
			got, err := os.ReadFile(file)
			if err != nil {
				return log.String(), err
			}
			if sha256.Sum256(got) != sha256.Sum256(want) {
				return log.String(), fmt.Errorf("%s of %d bytes differs from what was written", filepath.Base(file), len(got))
			}
		}
		fmt.Fprintf(&log, "read back and compared: %d bytes\n", size+1<<20)
		return log.String(), nil
	}
}
