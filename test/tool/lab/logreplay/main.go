// Command logreplay checks what a power failure could have left behind. It reads the log that dm-log-writes kept of a
// block device, applies it to an empty image entry by entry, and after each entry compares what had been promised by
// then.
//
// A promise is a mark in the log, "durable N": the client put it there when the target had acknowledged step N as
// durable. Step N is SIZE bytes at N*SIZE, filled with the pattern that -write N makes. dm-log-writes logs a write
// when a flush completes that covers it, or at once if it has FUA: a target that acknowledged without one leaves the
// mark before the data.
//
//	logreplay -write N -size BYTES > FILE
//	logreplay -log DEVICE -bytes DEVICE-SIZE -size BYTES -steps STEPS
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// The format of drivers/md/dm-log-writes.c, little endian.
const (
	magic   = 0x6a736677736872
	version = 1
	sector  = 512

	flagFlush    = 1 << 0
	flagFUA      = 1 << 1
	flagDiscard  = 1 << 2
	flagMark     = 1 << 3
	maxEntrySize = 64 << 20
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "logreplay:", err)
		os.Exit(1)
	}
}

func run() error {
	write := flag.Int("write", -1, "print the pattern of this step")
	size := flag.Int("size", 64<<10, "bytes of a step")
	log := flag.String("log", "", "the log device")
	total := flag.Int64("bytes", 0, "bytes of the logged device")
	steps := flag.Int("steps", 0, "steps that must have been promised by the end")
	flag.Parse()
	if *write >= 0 {
		_, err := os.Stdout.Write(pattern(*write, *size))
		return err
	}
	f, err := os.Open(*log)
	if err != nil {
		return err
	}
	defer f.Close()
	r := &replay{image: make([]byte, *total), size: *size}
	if err := r.all(f); err != nil {
		return err
	}
	if r.promised != *steps {
		return fmt.Errorf("%d steps were promised in the log, not %d", r.promised, *steps)
	}
	fmt.Printf("logreplay: %d entries, %d flushes, %d promises; %d prefixes hold all that was promised\n", r.entries, r.flushes, r.promised, r.checked)
	return nil
}

// pattern is unlike that of every other step in every 8 bytes.
func pattern(step, size int) []byte {
	b := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(step+1)<<32|uint64(i)*0x9e3779b1>>3&0xffffffff)
	}
	return b
}

type replay struct {
	image                               []byte
	size                                int
	entries, flushes, promised, checked int
}

func (r *replay) all(f io.ReaderAt) error {
	head := make([]byte, sector)
	if _, err := f.ReadAt(head, 0); err != nil {
		return err
	}
	le := binary.LittleEndian
	if m, v := le.Uint64(head), le.Uint64(head[8:]); m != magic || v != version {
		return fmt.Errorf("no log of dm-log-writes: magic %x, version %d", m, v)
	}
	n, block := le.Uint64(head[16:]), int64(le.Uint32(head[24:]))
	if block < sector || block > 1<<16 {
		return fmt.Errorf("blocks of %d bytes", block)
	}
	entry := make([]byte, block)
	at := block
	for range n {
		if _, err := f.ReadAt(entry, at); err != nil {
			return fmt.Errorf("entry %d: %w", r.entries, err)
		}
		at += block
		where, count, flags, datalen := int64(le.Uint64(entry)), int64(le.Uint64(entry[8:])), le.Uint64(entry[16:]), le.Uint64(entry[24:])
		if flags&flagFlush != 0 {
			r.flushes++
		}
		if flags&flagMark != 0 {
			if datalen > uint64(block)-32 {
				return fmt.Errorf("a mark of %d bytes", datalen)
			}
			r.mark(entry[32 : 32+datalen])
		} else if err := r.apply(f, &at, where*block, count*block, flags); err != nil {
			return fmt.Errorf("entry %d: %w", r.entries, err)
		}
		r.entries++
		if err := r.check(); err != nil {
			return err
		}
	}
	return nil
}

func (r *replay) apply(f io.ReaderAt, at *int64, off, n int64, flags uint64) error {
	if n == 0 {
		return nil
	}
	if off < 0 || n < 0 || n > maxEntrySize || off+n > int64(len(r.image)) {
		return fmt.Errorf("%d bytes at %d of a device of %d", n, off, len(r.image))
	}
	if flags&flagDiscard != 0 {
		clear(r.image[off : off+n])
		return nil
	}
	_, err := f.ReadAt(r.image[off:off+n], *at)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	*at += n
	return err
}

// mark takes "durable N". The client writes them in order.
func (r *replay) mark(b []byte) {
	var n int
	if _, err := fmt.Sscanf(string(bytes.TrimRight(b, "\x00")), "durable-%d", &n); err == nil {
		r.promised = n + 1
	}
}

func (r *replay) check() error {
	if r.promised == 0 {
		return nil
	}
	r.checked++
	for s := range r.promised {
		got, want := r.image[s*r.size:(s+1)*r.size], pattern(s, r.size)
		if !bytes.Equal(got, want) {
			return fmt.Errorf("after entry %d, with step %d promised, step %d is not there: power lost here would break the promise", r.entries, r.promised-1, s)
		}
	}
	return nil
}
