package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// "Raw pread" is what this machine can do at best with the same bytes over TCP: a request of 48 bytes, as long as a
// basic header segment, an answer of 48 bytes and the payload, by pread from the page cache or by pwrite into it. Both
// ends take what the socket has, do it all, and answer with one writev. No protocol, no check, no goroutine switch.
const (
	rawHeader = 48
	rawRead   = 1
	rawWrite  = 2
	rawBuffer = 4 << 20
	rawSlots  = 64
	rawData   = 8 << 20 // what a client writes: all the requests of any line at once
)

// rawServerMain is the other process: argv is the backing file; it prints its port and serves one connection.
func rawServerMain(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	c, err := l.Accept()
	if err != nil {
		return err
	}
	fd, err := blocking(c)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	return errors.Join(rawServe(fd, int(f.Fd())), f.Close())
}

// blocking takes the descriptor of c out of the runtime's hands.
func blocking(c net.Conn) (int, error) {
	t := c.(*net.TCPConn)
	if err := t.SetNoDelay(true); err != nil {
		return -1, err
	}
	f, err := t.File()
	if err != nil {
		return -1, err
	}
	if err := t.Close(); err != nil {
		return -1, err
	}
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		return -1, err
	}
	if err := f.Close(); err != nil {
		return -1, err
	}
	return fd, unix.SetNonblock(fd, false)
}

func rawServe(sock, file int) error {
	in := make([]byte, rawBuffer)
	payload := make([]byte, rawBuffer)
	heads := make([]byte, rawSlots*rawHeader)
	var iov [][]byte
	head, tail := 0, 0
	for {
		if head == tail {
			head, tail = 0, 0
		} else if len(in)-tail < 1<<20 {
			tail = copy(in, in[head:tail])
			head = 0
		}
		n, err := read(sock, in[tail:])
		if err != nil || n == 0 {
			return ignoreReset(err)
		}
		tail += n
		for {
			iov = iov[:0]
			used, count := 0, 0
			for count < rawSlots && tail-head >= rawHeader {
				h := in[head : head+rawHeader]
				size := int(binary.LittleEndian.Uint32(h[4:]))
				off := int64(binary.LittleEndian.Uint64(h[8:]))
				answer := heads[count*rawHeader:][:rawHeader]
				copy(answer, h)
				if h[0] == rawWrite {
					if tail-head < rawHeader+size {
						break
					}
					if _, err := unix.Pwrite(file, in[head+rawHeader:][:size], off); err != nil {
						return err
					}
					head += rawHeader + size
					iov = append(iov, answer)
				} else {
					if used+size > len(payload) {
						break
					}
					p := payload[used:][:size]
					if k, err := unix.Pread(file, p, off); err != nil || k != size {
						return fmt.Errorf("pread gave %d of %d bytes: %w", k, size, err)
					}
					used += size
					head += rawHeader
					iov = append(iov, answer, p)
				}
				count++
			}
			if count == 0 {
				break
			}
			if err := writeAll(sock, iov); err != nil {
				return ignoreReset(err)
			}
		}
	}
}

func read(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func ignoreReset(err error) error {
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

func writeAll(fd int, iov [][]byte) error {
	for len(iov) > 0 {
		n, err := unix.Writev(fd, iov[:min(len(iov), 1024)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		for n > 0 && n >= len(iov[0]) {
			n -= len(iov[0])
			iov = iov[1:]
		}
		if n > 0 {
			iov[0] = iov[0][n:]
		}
	}
	return nil
}

// rawPeer is a running raw server and the connection to it.
type rawPeer struct {
	cmd  *exec.Cmd
	sock int
	in   []byte
	data []byte
	out  []byte
}

func startRaw(path string) (*rawPeer, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), rawEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var port int
	if _, err := fmt.Fscanln(out, &port); err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	fd, err := blocking(c)
	return &rawPeer{cmd: cmd, sock: fd, in: make([]byte, rawBuffer), data: make([]byte, rawData), out: make([]byte, rawSlots*rawHeader)}, err
}

func (p *rawPeer) close() error {
	return errors.Join(unix.Close(p.sock), p.cmd.Wait())
}

func (p *rawPeer) pids() []int { return []int{os.Getpid(), p.cmd.Process.Pid} }

// run keeps depth requests under way for about d and returns how many were answered, and in what time.
func (p *rawPeer) run(w work, d time.Duration) (int, time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var iov [][]byte
	sent, done, stop := 0, 0, false
	send := func(n int) error {
		iov = iov[:0]
		for i := range n {
			h := p.out[i*rawHeader:][:rawHeader]
			h[0] = rawRead
			if w.write {
				h[0] = rawWrite
			}
			binary.LittleEndian.PutUint32(h[4:], uint32(w.size))
			binary.LittleEndian.PutUint64(h[8:], uint64(w.offset(sent+i)))
			iov = append(iov, h)
			if w.write {
				// Each request under way has its own buffer, as any client's has: one that never leaves the processor's
				// cache would be no peer to compare with.
				iov = append(iov, p.data[(sent+i)%w.depth*w.size:][:w.size])
			}
		}
		sent += n
		return writeAll(p.sock, iov)
	}
	answer := rawHeader
	if !w.write {
		answer += w.size
	}
	start := time.Now()
	if err := send(w.depth); err != nil {
		return 0, 0, err
	}
	have := 0 // bytes of the answer under way
	for done < sent {
		n, err := read(p.sock, p.in)
		if err != nil || n == 0 {
			return 0, 0, fmt.Errorf("the raw server went away: %w", err)
		}
		have += n
		finished := have / answer
		have %= answer
		done += finished
		if stop = stop || time.Since(start) >= d; !stop && finished > 0 {
			if err := send(finished); err != nil {
				return 0, 0, err
			}
		}
	}
	return done, time.Since(start), nil
}
