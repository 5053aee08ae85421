package wire

import (
	"bufio"
	"encoding/binary"
	"io"
	"sync"
	"time"
)

// Recorder writes TCP connections as a capture, as a listener on the wire would: addresses, ports and sequence numbers are
// made up, the bytes and their order are real. Its methods may be called by any goroutine.
type Recorder struct {
	mu    sync.Mutex
	w     *bufio.Writer
	conns uint16
	err   error
}

// recordSegment is the payload of one made-up TCP segment: Ethernet's.
const recordSegment = 1460

// NewRecorder begins a capture.
func NewRecorder(w io.Writer) *Recorder {
	r := &Recorder{w: bufio.NewWriter(w)}
	var head [24]byte
	binary.LittleEndian.PutUint32(head[0:], pcapMagic)
	binary.LittleEndian.PutUint16(head[4:], 2)
	binary.LittleEndian.PutUint16(head[6:], 4)
	binary.LittleEndian.PutUint32(head[16:], 1<<16)
	binary.LittleEndian.PutUint32(head[20:], linkEthernet)
	_, r.err = r.w.Write(head[:])
	return r
}

// Flush writes what is buffered and returns the first error of all.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.w.Flush(); r.err == nil {
		r.err = err
	}
	return r.err
}

// Recording is one connection of a capture.
type Recording struct {
	r    *Recorder
	port uint16
	to   uint16
	seq  [2]uint32 // of client and server
}

// Connection begins a connection to a server's port with its handshake.
func (r *Recorder) Connection(server uint16) *Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns++
	c := &Recording{r: r, port: 40000 + r.conns, to: server, seq: [2]uint32{1000, 5000}}
	c.segment(true, flagSYN, nil)
	c.segment(false, flagSYN|flagACK, nil)
	c.segment(true, flagACK, nil)
	return c
}

// Data records bytes of one direction.
func (c *Recording) Data(fromClient bool, b []byte) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	for len(b) > 0 {
		n := min(len(b), recordSegment)
		c.segment(fromClient, flagACK|0x08, b[:n])
		b = b[n:]
	}
}

// Close records the end of the connection.
func (c *Recording) Close() {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.segment(true, flagACK|0x01, nil)
	c.segment(false, flagACK|0x01, nil)
	c.segment(true, flagACK, nil)
}

func (c *Recording) segment(fromClient bool, flags byte, data []byte) {
	me, other := 0, 1
	src, dst := c.port, c.to
	if !fromClient {
		me, other, src, dst = 1, 0, c.to, c.port
	}
	b := make([]byte, 54, 54+len(data))
	b[5], b[11] = byte(1+me), byte(1+other) // locally made-up stations
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	ip := b[14:34]
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(40+len(data)))
	copy(ip[12:], []byte{192, 0, 2, byte(1 + me)}) // RFC 5737: for documentation
	copy(ip[16:], []byte{192, 0, 2, byte(1 + other)})
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip)))
	tcp := b[34:54]
	binary.BigEndian.PutUint16(tcp[0:], src)
	binary.BigEndian.PutUint16(tcp[2:], dst)
	binary.BigEndian.PutUint32(tcp[4:], c.seq[me])
	if flags&flagACK != 0 {
		binary.BigEndian.PutUint32(tcp[8:], c.seq[other])
	}
	tcp[12], tcp[13] = 5<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 65535)
	pseudo := sum(ip[12:20]) + 6 + uint32(20+len(data))
	binary.BigEndian.PutUint16(tcp[16:], ^fold(pseudo+sum(tcp)+sum(data)))
	b = append(b, data...)

	now := time.Now()
	var rec [16]byte
	binary.LittleEndian.PutUint32(rec[0:], uint32(now.Unix()))
	binary.LittleEndian.PutUint32(rec[4:], uint32(now.Nanosecond()/1000))
	binary.LittleEndian.PutUint32(rec[8:], uint32(len(b)))
	binary.LittleEndian.PutUint32(rec[12:], uint32(len(b)))
	for _, part := range [][]byte{rec[:], b} {
		if _, err := c.r.w.Write(part); err != nil && c.r.err == nil {
			c.r.err = err
		}
	}
	c.seq[me] += uint32(len(data))
	if flags&(flagSYN|0x01) != 0 {
		c.seq[me]++
	}
}

// sum is the ones' complement sum of RFC 1071, not folded.
func sum(b []byte) (s uint32) {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
