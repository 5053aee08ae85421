package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-storage/sluice/target/daemon"
)

// target is sluiced on the host, with a configuration in the scenario's temporary directory.
type target struct {
	r    *Run
	port int
	file string
	proc *process

	binary string // the whole path of another than sluiced
}

// iqn is the target name that scenarios use.
const iqn = "iqn.2026-11.io.sluice:lab"

// unit is one volume, in the order of the LUNs. A path is in the scenario's temporary directory.
type unit struct{ name, engine, size string }

// serve starts sluiced with one target and tells the guest where it is: PORT and TARGET.
func (r *Run) serve(units ...unit) (*target, error) { return r.serveWith(nil, units...) }

// serveWith does the same with more keys for every volume, as "key: value".
func (r *Run) serveWith(keys []string, units ...unit) (*target, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	t := &target{r: r, port: port, file: filepath.Join(r.Tmp, "sluiced.yaml")}
	var b strings.Builder
	// The guest's connections come from QEMU on this machine, and QEMU cuts TCP into segments of its own: stock siw cannot take a CRC
	// that lies in two segments, so it is not asked for here. CRC is for the scenarios on a veth pair.
	fmt.Fprintf(&b, "state_dir: %s\nmemory: 128MiB\nfabric:\n  crc: peer\nportals:\n  - address: %s\nvolumes:\n", filepath.Join(r.Tmp, "state"), loopback(port))
	for _, u := range units {
		fmt.Fprintf(&b, "  - name: %s\n    engine: %s\n    size: %s\n", u.name, u.engine, u.size)
		if u.engine == "file" {
			fmt.Fprintf(&b, "    path: %s\n", r.image(u.name))
			if err := makeImage(r.image(u.name), u.size); err != nil {
				return nil, err
			}
		}
		for _, k := range keys {
			fmt.Fprintf(&b, "    %s\n", k)
		}
	}
	fmt.Fprintf(&b, "targets:\n  - name: %s\n    luns:\n", iqn)
	for i, u := range units {
		fmt.Fprintf(&b, "      - lun: %d\n        volume: %s\n", i, u.name)
	}
	if err := os.MkdirAll(filepath.Join(r.Tmp, "state"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(t.file, []byte(b.String()), 0o644); err != nil {
		return nil, err
	}
	r.Env = append(r.Env, fmt.Sprint("PORT=", port), "TARGET="+iqn)
	r.target = t
	return t, t.start()
}

func (t *target) start() (err error) {
	if t.proc, err = t.r.start(cmp.Or(t.binary, "sluiced"), "--config", t.file); err != nil {
		return err
	}
	return t.proc.listening(t.port)
}

// makeImage makes an empty backing file, unless it is there: the daemon makes none by itself.
func makeImage(path, size string) error {
	n, err := daemon.ParseSize(size)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if fi, serr := f.Stat(); serr == nil && fi.Size() < n {
		err = f.Truncate(n)
	}
	return errors.Join(err, f.Close())
}

// image is the backing file of a volume.
func (r *Run) image(name string) string { return filepath.Join(r.Tmp, name+".img") }

// fsck stops the target in good order and checks the file systems in backing files, read only.
func (r *Run) fsck(tool string, images ...string) error {
	if err := r.target.proc.stop(); err != nil {
		return fmt.Errorf("stop sluiced: %w", err)
	}
	for _, i := range images {
		args := map[string][]string{"e2fsck": {"-fn", r.image(i)}, "xfs_repair": {"-n", "-f", r.image(i)}}[tool]
		out, err := r.tool(tool, args...)
		r.Logf("%s", strings.ReplaceAll(strings.TrimSpace(out), "\n", "\n         "))
		if err != nil {
			return fmt.Errorf("the backing file %s: %w", i, err)
		}
	}
	return nil
}
