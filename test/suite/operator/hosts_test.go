package operator

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"pgregory.net/rapid"
)

// written is a write of a host at any place, of any length.
type written struct {
	name, host string // of the target, and whose write it is
	lun, at    int
	v          string // the volume; empty where the host sees none
	data       []byte
	t          *target
	ok         bool
}

func (o *operator) drawWrite() *written {
	w := &written{name: o.anyTarget(), host: one(o, "host", hosts...)}
	if w.t = o.m.targets[w.name]; w.t == nil {
		return nil
	}
	w.lun = likely(o, "lun", slices.DeleteFunc(slices.Clone(luns), func(l int) bool { return w.t.sees(w.host, l) == "" }), luns...)
	w.v = w.t.sees(w.host, w.lun)
	n := rapid.IntRange(1, 70000).Draw(o.t, "bytes")
	w.at = rapid.IntRange(0, mib).Draw(o.t, "at")
	w.data = bytes.Repeat([]byte(fmt.Sprintf("%s %d %d.", w.v, w.at, n)), n)[:n]
	w.ok = w.v != "" && w.t.ready() && !o.m.volumes[w.v].readOnly && w.at+n <= o.m.size(w.v)
	return w
}

func (o *operator) args(w *written) []string {
	return []string{"write", o.url(w.t, w.name, w.host, w.lun), "--initiator", w.host, "--offset", strconv.Itoa(w.at)}
}

// holds puts content at the place of a write in all models.
func (o *operator) holds(w *written, content []byte) {
	for _, m := range o.may {
		file := m.volumes[w.v].file
		b := slices.Clone(m.files[file])
		copy(b[w.at:], content)
		m.files[file] = b
	}
}

// write changes some bytes of what a host sees; a LUN that it does not see, or that is read-only, it cannot change. Where the
// daemon is killed meanwhile, an acknowledged write is whole, and another has touched no byte beside its place.
func (o *operator) write() {
	w := o.drawWrite()
	if w == nil || len(o.may) > 1 { // which secret counts may not be known
		return
	}
	if w.ok && o.chance("kill", 1) {
		o.killedWrite(w)
		return
	}
	var err error
	o.measure("write", func() { _, err = o.sluice(w.data, o.args(w)...) })
	if w.ok != (err == nil) {
		o.t.Fatalf("a write of %d bytes at %d to LUN %d of %s (volume %q) as %s: %v", len(w.data), w.at, w.lun, w.name, w.v, w.host, err)
	}
	if w.ok {
		o.holds(w, w.data)
	}
	o.settle(o.may, false, "a write")
}

func (o *operator) killedWrite(w *written) {
	result := make(chan error, 1)
	before := o.n.midst.Load()
	answered, err := o.shoot(o.aim("write"), result, false, func() {
		go func() {
			_, err := o.sluice(w.data, o.args(w)...)
			result <- err
		}()
	})
	if !answered {
		o.n.inWrite.Add(o.n.midst.Load() - before)
	}
	o.rise()
	if !answered {
		err = <-result // the initiator finds the daemon again, or gives up
	}
	if err == nil {
		o.holds(w, w.data)
	} else {
		b, rerr := os.ReadFile(filepath.Join(o.dir, o.m.volumes[w.v].file))
		o.must(rerr)
		old := o.m.files[o.m.volumes[w.v].file]
		o.must(equal(o.m.volumes[w.v].file, b[:min(w.at, len(b))], old[:w.at]))
		for i := range w.data {
			if c := b[w.at+i]; c != w.data[i] && c != old[w.at+i] {
				o.t.Fatalf("byte %d of volume %s is neither the old nor the new one after a write that was killed", w.at+i, w.v)
			}
		}
		o.holds(w, b[w.at:w.at+len(w.data)])
	}
	o.settle(o.may, true, fmt.Sprintf("a write, killed in the middle (%v)", err))
}

// opening is what our initiator says where it did not come to the write.
var opening = regexp.MustCompile(`: (login|TEST UNIT READY|INQUIRY|READ CAPACITY|MODE SENSE|REPORT LUNS|REPORT TARGET PORT GROUPS)\b`)

// session ends a host's session while it writes: the host logs in again and goes on.
func (o *operator) session() {
	w := o.drawWrite()
	if w == nil || !w.ok || len(o.may) > 1 {
		_, err := o.sluice(nil, "session", "close", "60000")
		if f := (*failure)(nil); !errors.As(err, &f) || f.code != 4 {
			o.t.Fatalf("session close of none: %v", err)
		}
		return
	}
	c := exec.Command(filepath.Join(built, "sluice"), o.args(w)...)
	var says bytes.Buffer
	c.Stderr = &says
	in, err := c.StdinPipe()
	o.must(err)
	o.must(c.Start())
	defer func() {
		if c.ProcessState == nil {
			o.must(errors.Join(c.Process.Kill(), in.Close()))
			_ = c.Wait() // killed
		}
	}()
	var id string
	for deadline := time.Now().Add(wait); id == ""; time.Sleep(2 * time.Millisecond) {
		var l []struct{ ID, Initiator, Target string }
		o.must(o.get("/v1/sessions", &l))
		for _, s := range l {
			if s.Initiator == w.host && s.Target == w.name {
				id = s.ID
			}
		}
		if time.Now().After(deadline) {
			o.t.Fatal("the session of a write is not listed")
		}
	}
	half := len(w.data) / 2
	_, err = in.Write(w.data[:half]) // fails where the host has given up, which its end tells
	if _, err := o.sluice(nil, "session", "close", id); err != nil {
		o.t.Fatalf("session close: %v", err)
	}
	_, werr := in.Write(w.data[half:])
	err = errors.Join(err, werr, in.Close())
	if err := c.Wait(); err != nil {
		if opening.MatchString(says.String()) { // a host that is not through with opening gives up, and has written nothing
			o.settle(o.may, false, "a session that was ended before the write")
			return
		}
		o.t.Fatalf("a write whose session was ended: %v: %s", err, says.String())
	}
	o.must(err)
	o.holds(w, w.data)
	o.settle(o.may, false, "a write whose session was ended")
}

// away starts the daemon without a volume's file: nothing is made in its place, its LUN is not ready, and all others are served.
// Then the file comes back, or the operator has a new one made.
func (o *operator) away() {
	v := one(o, "volume", sorted(keys(o.m.volumes))...)
	file := o.m.volumes[v].file
	path, aside := filepath.Join(o.dir, file), filepath.Join(o.dir, "aside")
	o.must(o.down(syscall.SIGTERM))
	o.must(os.Rename(path, aside))
	o.rise()
	could := make([]*model, 0, len(o.may))
	for _, m := range o.may {
		m = m.clone()
		delete(m.files, file)
		if m.away = v; errors.Join(o.checkFiles(m), o.checkSeen(m)) == nil {
			could = append(could, m)
		}
	}
	if len(could) == 0 {
		m := o.m.clone()
		delete(m.files, file)
		m.away = v
		o.must(errors.Join(o.checkFiles(m), o.checkSeen(m)))
	}
	if rapid.Bool().Draw(o.t, "again") && !o.m.volumes[v].readOnly {
		args, size := []string{"volume", "create", v}, o.m.known(v)
		if size == 0 {
			size = 2 * mib
			args = append(args, "2MiB")
		}
		if _, err := o.sluice(nil, args...); err != nil {
			o.t.Fatalf("%v, whose file is not there: %v", args, err)
		}
		for _, m := range o.may {
			m.files[file] = make([]byte, size)
			m.volumes[v].serial = "" // another disk
		}
		o.must(os.Remove(aside))
		o.settle(o.may, true, "a new file for a volume")
		return
	}
	o.must(o.down(syscall.SIGKILL))
	o.n.kills.Add(1)
	o.must(os.Rename(aside, path))
	o.rise()
	o.settle(o.may, true, "a volume's file is there again")
}
