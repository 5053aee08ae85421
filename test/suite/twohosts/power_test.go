package twohosts

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
)

var bootOf = regexp.MustCompile(`"boot": "[^"]*"`)

// power takes the power from the medium and the daemon, in the middle of whatever they do; the next start is another boot's.
func (r *round) power() {
	if r.fs == nil {
		r.kill()
		return
	}
	o := op{host: -1, kind: crash, call: r.now()}
	if r.rnd.IntN(2) == 0 { // the medium goes first: commands end with errors
		r.fs.Cut(r.rnd.Uint64())
		r.pause(20 * time.Millisecond)
		r.Kill()
	} else {
		r.Kill()
		r.fs.Cut(r.rnd.Uint64())
	}
	files, err := filepath.Glob(filepath.Join(r.State, "scsi", "lu-*.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(f, bootOf.ReplaceAll(b, []byte(`"boot": "`+rand.Text()+`"`)), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	r.fs.Restore()
	o.ret = r.now()
	r.add(o)
	r.counts["power cuts"]++
	r.up()
}

// content is what the volume's file holds. Another process reads it: this one may serve the file system.
func (r *round) content() []byte {
	r.t.Helper()
	b, err := exec.Command("cat", r.file).Output()
	if err != nil || len(b) != size {
		r.t.Fatalf("the volume's file has %d bytes: %v", len(b), err)
	}
	return b
}

// told holds that a host with unflushed acknowledged writes has a flush fail after a loss of power, before one is done.
func told(ops []op) (heard int, err error) {
	byHost := map[int][]op{}
	var crashes []op
	for _, o := range ops {
		switch {
		case o.kind == crash:
			crashes = append(crashes, o)
		case o.host == 0 || o.host == 1:
			byHost[o.host] = append(byHost[o.host], o)
		}
	}
	for _, c := range crashes {
		for host, l := range byHost {
			var flushes []op
			last := op{ret: -1} // the newest write that was at stake
			for _, o := range l {
				if o.kind == flush {
					flushes = append(flushes, o)
				}
				if (o.kind == write || o.kind == swap) && o.fate == done && !o.fua && o.ret < c.call && o.ret > last.ret {
					last = o
				}
			}
			saved := func(f op) bool { return f.fate == done && f.call > last.ret && f.call < c.ret }
			if last.ret < 0 || slices.ContainsFunc(flushes, saved) {
				continue
			}
			says := func(f op) bool {
				return f.ret > c.call && (strings.Contains(f.err, block.ErrPowerLost.Error()) || strings.Contains(f.err, "MEDIUM ERROR"))
			}
			if slices.ContainsFunc(flushes, says) {
				heard++
			}
			for _, f := range flushes {
				if f.fate == done && f.call > c.ret && !slices.ContainsFunc(flushes, func(g op) bool { return says(g) && g.call < f.ret }) {
					return heard, fmt.Errorf("host %d has not heard of a loss of power (%v), which it had unflushed writes at (%v), and a flush is done: %v", host, c, last, f)
				}
			}
		}
	}
	return heard, nil
}
