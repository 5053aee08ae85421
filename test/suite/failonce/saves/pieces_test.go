package saves

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/lib/proc"
)

// piece is a change that is written down. k is a number of its own for each trial.
type piece struct {
	name  string
	ready func(s *stand, k int) error // what has to be there before, nil for nothing
	do    func(ctx context.Context, s *stand, k int) error
	there func(s *stand, k int) bool // whether it has been made
	// dead is asked in place of there after the restart, before the daemon starts: of what a start forgets. nil for there.
	dead func(s *stand, k int) bool
	// refused is what the operator does before the restart where it was not made, nil for nothing.
	refused func(s *stand, k int)
}

// refused is the answer of a command that was not carried out.
type refused struct{ out string }

func (r *refused) Error() string { return r.out }

// command runs a command of the administrator's.
func (s *stand) command(args ...string) error { return s.say("", args...) }

func (s *stand) say(in string, args ...string) error {
	if out, code := s.d.Say(in, args...); code != 0 {
		return &refused{out}
	}
	return nil
}

// says reports whether the daemon's answer has all the words in one line.
func (s *stand) says(args []string, words ...string) bool {
	s.t.Helper()
	out, code := s.d.Sluice(args...)
	if code != 0 {
		s.t.Fatalf("%v: exit code %d\n%s", args, code, out)
	}
	return slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) })
	})
}

var volumes, targets = []string{"volume", "list"}, []string{"target", "list"}

func volume(k int) string { return fmt.Sprintf("v%dv", k) }
func iqn(k int) string    { return fmt.Sprintf("%s-%dt", target, k) }
func caller(k int) string { return fmt.Sprintf("host%dh", k) }

// withTarget is the operator's file with one more target, withVolume with one more volume, in the directory whose calls fail.
func withTarget(s *stand, k int) string {
	return strings.Replace(s.text, "targets: [", fmt.Sprintf("targets: [{name: %q}, ", iqn(k)), 1)
}

func withVolume(s *stand, k int) string {
	return strings.Replace(s.text, "volumes: [", fmt.Sprintf("volumes: [{name: %s, path: %q}, ", volume(k), filepath.Join(s.fs.Dir, volume(k)+".img")), 1)
}

var pieces = []piece{
	{name: "create a volume",
		do: func(_ context.Context, s *stand, k int) error {
			return s.command("volume", "create", volume(k), "1MiB")
		},
		there: func(s *stand, k int) bool { return s.says(volumes, volume(k)) }},
	{name: "create a target",
		do:    func(_ context.Context, s *stand, k int) error { return s.command("target", "create", iqn(k)) },
		there: func(s *stand, k int) bool { return s.says(targets, iqn(k)) }},
	{name: "map",
		ready: func(s *stand, k int) error { return s.command("volume", "create", volume(k), "1MiB") },
		do: func(_ context.Context, s *stand, k int) error {
			return s.command("target", "map", target, fmt.Sprint(100+k), volume(k))
		},
		there: func(s *stand, k int) bool {
			_, end, err := s.open(context.Background(), "", target, uint16(100+k))
			if err == nil {
				end()
			}
			return err == nil
		}},
	{name: "delete a target",
		ready: func(s *stand, k int) error { return s.command("target", "create", iqn(k)) },
		do:    func(_ context.Context, s *stand, k int) error { return s.command("target", "delete", iqn(k), "--yes") },
		there: func(s *stand, k int) bool { return !s.says(targets, iqn(k)) }},
	{name: "set a secret",
		ready: func(s *stand, k int) error {
			return errors.Join(s.command("volume", "create", volume(k), "1MiB"), s.command("target", "create", iqn(k)), s.command("target", "map", iqn(k), "0", volume(k)))
		},
		do: func(_ context.Context, s *stand, k int) error {
			return s.say("a-secret-of-enough-bytes\n", "target", "secret", iqn(k), "user")
		},
		there: func(s *stand, k int) bool {
			_, end, without := s.open(context.Background(), "", iqn(k), 0)
			if without == nil {
				end()
				return false
			}
			_, end, err := s.open(context.Background(), "user%a-secret-of-enough-bytes@", iqn(k), 0)
			if err != nil {
				s.t.Errorf("login is neither without a secret nor with the one that was set: %v; %v", without, err)
				return false
			}
			end()
			return true
		}},
	{name: "set an access state",
		ready: func(s *stand, k int) error { return s.command("target", "create", iqn(k)) },
		do: func(_ context.Context, s *stand, k int) error {
			return s.command("target", "set-group", iqn(k), "1", "standby")
		},
		there: func(s *stand, k int) bool { return s.says([]string{"target", "groups", iqn(k)}, "standby") }},
	{name: "register a key that lasts",
		do:    func(ctx context.Context, s *stand, k int) error { return s.register(ctx, uint64(k)+1) },
		there: func(s *stand, k int) bool { return slices.Contains(s.keys(), uint64(k)+1) }},
	{name: "a mode page with SP",
		ready: func(s *stand, _ int) error { return s.describe(context.Background(), false, true) },
		do:    func(ctx context.Context, s *stand, _ int) error { return s.describe(ctx, true, true) },
		there: func(s *stand, _ int) bool {
			now, saved := s.described(0), s.described(3)
			if now != saved {
				s.t.Errorf("D_SENSE is %v, and saved as %v", now, saved)
			}
			return now
		}},
	{name: "a mode page without SP", // the same boot: it stays
		ready: func(s *stand, _ int) error { return s.describe(context.Background(), false, true) },
		do:    func(ctx context.Context, s *stand, _ int) error { return s.describe(ctx, true, false) },
		there: func(s *stand, _ int) bool { return s.described(0) }},
	{name: "SANITIZE with IMMED", ready: (*stand).fill,
		do: func(ctx context.Context, s *stand, _ int) error {
			return s.erase(ctx, 0x48, 0xa2, 0, 0, 0, 0, 0, 0, 0, 0)
		},
		there: (*stand).erased},
	{name: "FORMAT UNIT", ready: (*stand).fill,
		do:    func(ctx context.Context, s *stand, _ int) error { return s.erase(ctx, 0x04, 0, 0, 0, 0, 0) },
		there: (*stand).erased},
	{name: "a reload that brings a volume",
		ready: func(s *stand, k int) error {
			f := filepath.Join(s.fs.Below, volume(k)+".img")
			return errors.Join(os.WriteFile(f, nil, 0o600), os.Truncate(f, 1<<20))
		},
		do:      func(_ context.Context, s *stand, k int) error { return s.reload(withVolume(s, k)) },
		there:   func(s *stand, k int) bool { return s.says(volumes, volume(k)) },
		refused: func(s *stand, _ int) { s.operator(s.text) }},
	{name: "a reload that takes a target with LUNs mapped by command away",
		ready: func(s *stand, k int) error {
			return errors.Join(s.reload(withTarget(s, k)), s.command("volume", "create", volume(k), "1MiB"), s.command("target", "map", iqn(k), "0", volume(k)))
		},
		do: func(_ context.Context, s *stand, _ int) error { return s.reload(s.text) },
		there: func(s *stand, k int) bool {
			if s.says(targets, iqn(k)) {
				return false
			}
			// A later target of its name has nothing of it.
			must(s.t, s.reload(withTarget(s, k)))
			mapped := s.says(targets, iqn(k), volume(k))
			must(s.t, s.reload(s.text))
			return !mapped
		},
		refused: func(s *stand, k int) { s.operator(withTarget(s, k)) }},
	{name: "a lock of a client that is new",
		do:    func(ctx context.Context, s *stand, k int) error { return s.lock(ctx, k, caller(k)) },
		there: (*stand).locked,
		dead: func(s *stand, k int) bool { // a start tells those that it finds there, and forgets them after the time of grace
			b, err := os.ReadFile(filepath.Join(s.fs.Below, "nfs", "nlm-state.json"))
			must(s.t, err)
			return strings.Contains(string(b), caller(k))
		}},
}

// operator writes the operator's file.
func (s *stand) operator(text string) {
	must(s.t, os.WriteFile(filepath.Join(s.d.Dir, "sluiced.yaml"), []byte(text), 0o600))
}

func (s *stand) reload(text string) error {
	s.operator(text)
	return s.command("reload")
}

// open logs in to a LUN, as an initiator that is new. who is what a URL has before the host.
func (s *stand) open(ctx context.Context, who, of string, lun uint16) (*block.Volume, func(), error) {
	ini, err := block.New(block.Options{ReconnectLimit: proc.Patience})
	if err != nil {
		return nil, nil, err
	}
	portal, err := s.portal()
	if err != nil {
		return nil, nil, errors.Join(err, ini.Close())
	}
	v, err := ini.Open(ctx, fmt.Sprintf("iscsi://%s%s/%s/%d", who, portal, of, lun))
	if err != nil {
		return nil, nil, errors.Join(err, ini.Close())
	}
	return v, func() { _ = errors.Join(v.Close(), ini.Close()) }, nil // the daemon may be dead
}

// raw has a LUN of the target execute a command.
func (s *stand) raw(ctx context.Context, lun uint16, cdb, b []byte, in bool) (int, error) {
	v, end, err := s.open(ctx, "", target, lun)
	if err != nil {
		return 0, err
	}
	defer end()
	return v.Raw(ctx, cdb, b, in)
}

// register is PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY with APTPL (SPC-4 section 6.16).
func (s *stand) register(ctx context.Context, key uint64) error {
	b := make([]byte, 24)
	for i := range 8 {
		b[8+i] = byte(key >> (56 - 8*i))
	}
	b[20] = 1
	_, err := s.raw(ctx, 0, []byte{0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0}, b, false)
	return err
}

// keys are those that are registered.
func (s *stand) keys() []uint64 {
	s.t.Helper()
	b := make([]byte, 4096)
	n, err := s.raw(context.Background(), 0, []byte{0x5e, 0, 0, 0, 0, 0, 0, 16, 0, 0}, b, true)
	must(s.t, err)
	var l []uint64
	for k := b[8:max(n, 8)]; len(k) >= 8; k = k[8:] {
		var x uint64
		for _, c := range k[:8] {
			x = x<<8 | uint64(c)
		}
		l = append(l, x)
	}
	return l
}

const descriptors = 0x04 // D_SENSE in the control mode page (SPC-4 section 7.5.8)

// controlPage is what MODE SENSE(6) returns of the control mode page, with its header: control 0 for the current values, 3 for the saved ones.
func (s *stand) controlPage(ctx context.Context, control byte) ([]byte, error) {
	b := make([]byte, 4+12)
	n, err := s.raw(ctx, 0, []byte{0x1a, 8, control<<6 | 0x0a, 0, byte(len(b)), 0}, b, true)
	if err == nil && n != len(b) {
		err = fmt.Errorf("a control mode page of %d bytes", n)
	}
	return b, err
}

// describe sets D_SENSE, which saves the page too if it is to.
func (s *stand) describe(ctx context.Context, on, save bool) error {
	b, err := s.controlPage(ctx, 0)
	if err != nil {
		return err
	}
	clear(b[:4])
	b[4] &= 0x3f // PS
	if b[6] &^= descriptors; on {
		b[6] |= descriptors
	}
	cdb := []byte{0x15, 0x10, 0, 0, byte(len(b)), 0}
	if save {
		cdb[1] |= 1
	}
	_, err = s.raw(ctx, 0, cdb, b, false)
	return err
}

func (s *stand) described(control byte) bool {
	s.t.Helper()
	b, err := s.controlPage(context.Background(), control)
	must(s.t, err)
	return b[6]&descriptors != 0
}

// fill gives the volume that is to be erased a content.
func (s *stand) fill(int) error {
	v, end, err := s.open(context.Background(), "", target, erasable)
	if err != nil {
		return err
	}
	defer end()
	_, err = v.WriteAt(bytes.Repeat([]byte{0xa5}, size), 0)
	return errors.Join(err, v.Flush(context.Background()))
}

func (s *stand) erase(ctx context.Context, cdb ...byte) error {
	_, err := s.raw(ctx, erasable, cdb, nil, false)
	return err
}

// erased looks at the content when the volume is ready. A part of it is never left.
func (s *stand) erased(int) bool {
	s.t.Helper()
	b := make([]byte, size)
	for end := time.Now().Add(proc.Patience); ; time.Sleep(10 * time.Millisecond) { // it is NOT READY, and no event tells when it is over
		err := func() error {
			v, end, err := s.open(context.Background(), "", target, erasable)
			if err != nil {
				return err
			}
			defer end()
			_, err = v.ReadAt(b, 0)
			return err
		}()
		if err == nil {
			break
		}
		var sense *block.SenseError
		if !errors.As(err, &sense) || sense.Key != 2 || time.Now().After(end) {
			s.t.Fatalf("the volume that is erased: %v", err)
		}
	}
	switch {
	case bytes.Equal(b, make([]byte, size)):
		return true
	case !bytes.Equal(b, bytes.Repeat([]byte{0xa5}, size)):
		s.t.Error("a part of the volume is erased")
	}
	return false
}
