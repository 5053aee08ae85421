package nbdlink

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Lines that Linux 6.1 wrote, with four connections of nbd0 of which two were received on.
var threads = map[string]string{
	"2":   "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 0",
	"220": "220 (nbd0-recv+nbd0-recv) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 0 -20 1 0 4000",
	"67":  "67 (kworker/u5:0+nbd0-recv) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 0 -20 1 0 4000",
	"68":  "68 (kworker/u5:1-nbd0-recv) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 0 -20 1 0 4000",
	"221": "221 (nbd1-recv) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 0 -20 1 0 4000",
	"300": "300 (a) (+nbd0-recv) S 1 300 300 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4000", // a program of that name
}

func proc(t *testing.T, lines map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for pid, l := range lines {
		if err := os.Mkdir(filepath.Join(dir, pid), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, pid, "stat"), []byte(l+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Receivers are workers at work for the device's queue: not those that were, not another device's, not a program that
// calls itself so.
func TestReceivers(t *testing.T) {
	got, err := receivers(proc(t, threads), 0)
	if want := (Receivers{Busy: 2, Rescuer: true}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	got, err = receivers(proc(t, threads), 1)
	if want := (Receivers{}); err != nil || got != want {
		t.Errorf("of another device: %+v, %v; want %+v", got, err, want)
	}
	got, err = receivers(proc(t, map[string]string{"300": threads["300"]}), 0)
	if want := (Receivers{Hidden: true}); err != nil || got != want {
		t.Errorf("in a container: %+v, %v; want %+v", got, err, want)
	}
}

// All receivers are waited for; one that the rescuer keeps others from is not waited for long.
func TestAwaitReceivers(t *testing.T) {
	for name, c := range map[string]struct {
		seen    []Receivers // one a look; the last stays
		ok      bool
		at, end time.Duration
	}{
		"at once":              {[]Receivers{{Busy: 4}}, true, 0, 0},
		"one by one":           {[]Receivers{{}, {Busy: 1}, {Busy: 3}, {Busy: 4}}, true, 3 * receiverPoll, 3 * receiverPoll},
		"the rescuer has all":  {[]Receivers{{Busy: 1}, {Busy: 2, Rescuer: true}}, false, rescuerPatient, rescuerPatient + 3*receiverPoll},
		"the rescuer has one":  {[]Receivers{{Busy: 2, Rescuer: true}, {Busy: 3, Rescuer: true}, {Busy: 4, Rescuer: true}}, true, 2 * receiverPoll, 2 * receiverPoll},
		"they never all begin": {[]Receivers{{Busy: 3}}, false, receiverLimit, receiverLimit + 2*receiverPoll},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, looks := time.Now(), 0
				ok, err := awaitReceivers(func() (Receivers, error) {
					r := c.seen[min(looks, len(c.seen)-1)]
					looks++
					return r, nil
				}, 4)
				if took := time.Since(begin); err != nil || ok != c.ok || took < c.at || took > c.end {
					t.Errorf("%v, %v after %v; want %v between %v and %v", ok, err, took, c.ok, c.at, c.end)
				}
			})
		})
	}
}

func FuzzParseStat(f *testing.F) {
	for _, l := range threads {
		f.Add(l)
	}
	f.Add("1 (")
	f.Fuzz(func(t *testing.T, s string) {
		if name, kernel := parseStat(s); kernel && !strings.Contains(s, "("+name+")") {
			t.Errorf("%q is not in %q", name, s)
		}
	})
}
