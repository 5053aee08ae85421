package twohosts

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// strangerHost is the stranger's number in a history.
const strangerHost = 7

// stranger is qemu-io, whose iSCSI is libiscsi's. It writes blocks of one byte, each value once to a block.
type stranger struct {
	*history
	url string

	gate sync.Mutex // held while it does something, and by who wants it away
	used [blocks]byte
	// wrote: it has written since it began, or since its last flush.
	wrote bool

	mu    sync.Mutex
	ended bool
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
}

const prompt = "qemu-io> "

var (
	errAway    = errors.New("qemu-io has ended")
	errRefused = errors.New("qemu-io says that it has failed")
)

// start runs it, unless it runs or the round has ended.
func (s *stranger) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errAway
	}
	if s.cmd != nil {
		return nil
	}
	c := exec.Command("qemu-io", "-f", "raw", "-t", "writeback", s.url)
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	s.cmd, s.in, s.out, s.wrote = c, in, bufio.NewReader(out), false
	return nil
}

// kill ends the process, whatever it does.
func (s *stranger) kill(last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = s.ended || last
	if s.cmd != nil {
		_ = s.cmd.Process.Kill() // it may have ended
	}
}

// gone collects a process that has ended.
func (s *stranger) gone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait() // it was killed
		s.cmd = nil
	}
}

// says reads until the next prompt.
func (s *stranger) says() (string, error) {
	var b strings.Builder
	for !strings.HasSuffix(b.String(), prompt) {
		c, err := s.out.ReadByte()
		if err != nil {
			return b.String(), errAway
		}
		b.WriteByte(c)
	}
	return strings.TrimSuffix(b.String(), prompt), nil
}

func (s *stranger) do(line string) (string, error) {
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		return "", errAway
	}
	return s.says()
}

func (s *stranger) work(rnd *rand.Rand) {
	defer s.gone()
	for !s.stop.Load() {
		s.gate.Lock()
		fresh := s.cmd == nil
		if err := s.start(); err != nil {
			s.gate.Unlock()
			return
		}
		var err error
		if fresh {
			_, err = s.says()
		}
		if err == nil {
			err = s.one(rnd)
		}
		if err != nil && !errors.Is(err, errRefused) {
			s.gone()
		}
		s.gate.Unlock()
		if err != nil {
			time.Sleep(20 * time.Millisecond) // the target may be away, and a process costs more than an attempt
		}
	}
}

func (s *stranger) one(rnd *rand.Rand) error {
	o := op{host: strangerHost, block: rnd.IntN(blocks)}
	d := rnd.IntN(20)
	line := ""
	switch {
	case d == 0 && s.wrote: // QEMU sends no flush of a device that it has not written to since the last
		o.kind, line = flush, "flush"
		s.wrote = false
	case d < 11 && s.used[o.block] < 255:
		s.used[o.block]++
		o.kind, o.fua = write, rnd.IntN(4) == 0
		s.wrote = true
		p := s.used[o.block]
		o.value = uint64(p) * 0x0101010101010101
		line = fmt.Sprintf("write -P %d %d %d", p, o.block*bs, bs)
		if o.fua {
			line = strings.Replace(line, "write", "write -f", 1)
		}
	default:
		o.kind, line = read, fmt.Sprintf("read -v %d %d", o.block*bs, bs)
	}
	o.call = s.now()
	out, err := s.do(line)
	o.ret = s.now()
	switch {
	case err != nil:
		o.fate, o.err = open, err.Error()
	case strings.Contains(out, "failed"):
		o.fate, o.err = maybe, strings.TrimSpace(out)
	case o.kind != flush && !strings.Contains(out, fmt.Sprintf("%d/%d bytes", bs, bs)):
		return fmt.Errorf("qemu-io answers %q", out)
	case o.kind == read:
		b := dump(out)
		if len(b) != bs {
			return fmt.Errorf("qemu-io reads %d bytes: %q", len(b), out)
		}
		if o.value = binary.BigEndian.Uint64(b); !s.whole(o, b) {
			return nil
		}
	}
	s.add(o)
	if err == nil && o.fate != done {
		return errRefused
	}
	if err == nil {
		s.theirs.Add(1)
	}
	return err
}

// dump reads what "read -v" prints.
func dump(out string) (b []byte) {
	for _, line := range strings.Split(out, "\n") {
		at, rest, ok := strings.Cut(line, ":  ")
		if !ok || len(at) != 8 {
			continue
		}
		digits, _, _ := strings.Cut(rest, "  ")
		part, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			return nil
		}
		b = append(b, part...)
	}
	return b
}
