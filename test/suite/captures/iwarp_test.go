package captures

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/wire"
)

// The names of RFC 5040 section 4.1.
const (
	opWrite     = 0
	opReadReq   = 1
	opReadResp  = 2
	opSend      = 3
	opSendInv   = 4
	opSendSE    = 5
	opSendSEInv = 6
	opTerminate = 7
)

// fpdu is one frame of a capture, taken apart by code that shares nothing with the product's.
type fpdu struct {
	index      int // in session.fpdus
	fromClient bool
	raw        []byte // all of it, length and CRC included
	op         byte
	tagged     bool
	last       bool
	stag       uint32 // tagged: the sink; untagged: what a Send invalidates
	to         uint64
	qn, msn    uint32
	mo         uint32
	payload    []byte // of a Read Request: its RDMAP header
	crc        uint32
}

func parseFPDU(b []byte) (f fpdu, n int, err error) {
	if len(b) < 2 {
		return f, 0, nil
	}
	size := int(binary.BigEndian.Uint16(b))
	n = 2 + size + (-(2 + size) & 3) + 4
	if len(b) < n {
		return f, 0, nil
	}
	f.raw = b[:n]
	f.crc = binary.LittleEndian.Uint32(b[n-4:])
	u := b[2 : 2+size]
	if size < 14 {
		return f, 0, fmt.Errorf("an FPDU of %d bytes", size)
	}
	if u[0]&3 != 1 || u[1]>>6 != 1 {
		return f, 0, fmt.Errorf("versions of DDP and RDMAP: % x", u[:2])
	}
	f.tagged, f.last, f.op = u[0]&0x80 != 0, u[0]&0x40 != 0, u[1]&15
	f.stag = binary.BigEndian.Uint32(u[2:])
	if f.tagged {
		f.to, f.payload = binary.BigEndian.Uint64(u[6:]), u[14:]
		return f, n, nil
	}
	if size < 18 {
		return f, 0, fmt.Errorf("an untagged FPDU of %d bytes", size)
	}
	f.qn, f.msn, f.mo = binary.BigEndian.Uint32(u[6:]), binary.BigEndian.Uint32(u[10:]), binary.BigEndian.Uint32(u[14:])
	f.payload = u[18:]
	return f, n, nil
}

// readReq is the RDMAP header of an RDMA Read Request.
type readReq struct {
	sinkSTag uint32
	sinkTO   uint64
	size     uint32
	srcSTag  uint32
	srcTO    uint64
}

func parseReadReq(b []byte) readReq {
	return readReq{
		sinkSTag: binary.BigEndian.Uint32(b), sinkTO: binary.BigEndian.Uint64(b[4:]), size: binary.BigEndian.Uint32(b[12:]),
		srcSTag: binary.BigEndian.Uint32(b[16:]), srcTO: binary.BigEndian.Uint64(b[20:]),
	}
}

// session is the iWARP connection of a capture.
type session struct {
	request, reply []byte        // MPA frames
	fpdus          []fpdu        // in the order in which the one who captured saw their ends
	lives          map[int]*life // of frames, by their index
}

const mpaHeader = 20

// mpaLen is the length of the MPA frame that b begins with, 0 if it is not all there.
func mpaLen(b []byte) int {
	if len(b) < mpaHeader {
		return 0
	}
	if n := mpaHeader + int(binary.BigEndian.Uint16(b[18:])); len(b) >= n {
		return n
	}
	return 0
}

// load finds the connection of a capture that begins with an MPA Request.
func load(t *testing.T, name string) *session {
	t.Helper()
	packets, err := wire.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	convs, err := wire.Conversations(packets)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range convs {
		if bytes.HasPrefix(c.Stream(true), []byte("MPA ID Req Frame")) {
			return split(t, c)
		}
	}
	t.Fatalf("%s: no connection begins with an MPA Request", name)
	return nil
}

func split(t *testing.T, c *wire.Conversation) *session {
	t.Helper()
	s := &session{}
	var rest [2][]byte
	for _, k := range c.Chunks {
		i, mpa := 0, &s.request
		if !k.FromClient {
			i, mpa = 1, &s.reply
		}
		b := append(rest[i], k.Data...)
		if *mpa == nil {
			n := mpaLen(b)
			*mpa, b = b[:n:n], b[n:]
			if n == 0 {
				*mpa = nil
			}
		}
		for *mpa != nil {
			f, n, err := parseFPDU(b)
			if err != nil {
				t.Fatalf("frame %d: %v", len(s.fpdus), err)
			}
			if n == 0 {
				break
			}
			f.fromClient, f.index = k.FromClient, len(s.fpdus)
			s.fpdus = append(s.fpdus, f)
			b = b[n:]
		}
		rest[i] = b
	}
	if len(rest[0])+len(rest[1]) > 0 {
		t.Fatalf("%d and %d bytes are left at the end of the streams", len(rest[0]), len(rest[1]))
	}
	return s
}

// message is one RDMAP message, put together from its segments.
type message struct {
	fpdu
	data   []byte
	frames []fpdu
	life   *life // what memory of the client's it is about
}

func (m *message) String() string {
	names := [...]string{"Write", "ReadReq", "ReadResp", "Send", "SendInv", "SendSE", "SendSEInv", "Terminate"}
	who := "server"
	if m.fromClient {
		who = "client"
	}
	return fmt.Sprintf("%s of the %s, %d bytes, STag %08x, QN %d MSN %d", names[m.op&7], who, len(m.data), m.stag, m.qn, m.msn)
}

// join puts messages together. RFC 5041 section 5.2 lets a tagged and an untagged message interleave in one direction.
type join struct {
	open [2][2]*message
}

func (j *join) add(f fpdu) (*message, error) {
	dir, kind := 0, 0
	if f.fromClient {
		dir = 1
	}
	if f.tagged {
		kind = 1
	}
	m := j.open[dir][kind]
	if m == nil {
		m = &message{fpdu: f}
		j.open[dir][kind] = m
	} else {
		switch {
		case m.op != f.op || m.stag != f.stag || m.msn != f.msn || m.qn != f.qn:
			return nil, fmt.Errorf("a segment of another message within %v", m)
		case f.tagged && f.to != m.to+uint64(len(m.data)) || !f.tagged && f.mo != uint32(len(m.data)):
			return nil, fmt.Errorf("a segment out of place in %v", m)
		}
	}
	m.data = append(m.data, f.payload...)
	m.frames = append(m.frames, f)
	if !f.last {
		return nil, nil
	}
	j.open[dir][kind] = nil
	return m, nil
}

// life is memory that the client exposes, from its first use to its invalidation.
type life struct {
	stag     uint32
	low, end uint64
	before   []byte // what Read Requests find there
	after    []byte // what is there in the end
	new      []bool // bytes of after that the capture shows
}

// messages returns the messages of a session, each with the memory it is about.
func (s *session) messages(t *testing.T) ([]*message, []*life) {
	t.Helper()
	var j join
	var all []*message
	lives, current := []*life(nil), make(map[uint32]*life)
	touch := func(stag uint32, to uint64, n int) *life {
		l := current[stag]
		if l == nil {
			l = &life{stag: stag, low: to, end: to + uint64(n)}
			current[stag] = l
			lives = append(lives, l)
		}
		l.low, l.end = min(l.low, to), max(l.end, to+uint64(n))
		return l
	}
	var reads []*message
	for _, f := range s.fpdus {
		m, err := j.add(f)
		if err != nil {
			t.Fatal(err)
		}
		if m == nil {
			continue
		}
		all = append(all, m)
		switch {
		case m.fromClient && m.op == opReadResp:
			r := parseReadReq(reads[0].data)
			if r.sinkSTag != m.stag || r.sinkTO != m.to || int(r.size) != len(m.data) {
				t.Fatalf("%v does not answer the oldest Read Request", m)
			}
			m.life = reads[0].life
			reads = reads[1:]
		case !m.fromClient && m.op == opWrite && len(m.data) > 0:
			m.life = touch(m.stag, m.to, len(m.data))
		case !m.fromClient && m.op == opReadReq:
			r := parseReadReq(m.data)
			m.life = touch(r.srcSTag, r.srcTO, int(r.size))
			reads = append(reads, m)
		case !m.fromClient && (m.op == opSendInv || m.op == opSendSEInv):
			m.life = current[m.stag]
			if m.life == nil { // memory that was advertised and not used
				m.life = touch(m.stag, 0, 1)
			}
			delete(current, m.stag)
		}
	}
	for _, l := range lives {
		n := l.end - l.low
		if n > 1<<20 {
			t.Fatalf("STag %08x stands for %d bytes", l.stag, n)
		}
		l.before, l.after, l.new = make([]byte, n), make([]byte, n), make([]bool, n)
	}
	s.lives = make(map[int]*life)
	for _, m := range all {
		for _, f := range m.frames {
			s.lives[f.index] = m.life
		}
	}
	var sources []readReq
	for _, m := range all {
		switch {
		case !m.fromClient && m.op == opReadReq:
			sources = append(sources, parseReadReq(m.data))
		case m.fromClient && m.op == opReadResp:
			at := sources[0].srcTO - m.life.low
			copy(m.life.before[at:], m.data)
			sources = sources[1:]
		case !m.fromClient && m.op == opWrite && m.life != nil:
			at := m.to - m.life.low
			copy(m.life.after[at:], m.data)
			for i := range m.data {
				m.life.new[at+uint64(i)] = true
			}
		}
	}
	return all, lives
}

// What the captures hold, so that a reader that loses half of one is noticed. Both end in the middle of a transfer.
func TestCapturesHoldWhatTheyShould(t *testing.T) {
	for name, want := range map[string]map[byte]int{
		"iser-siw-lio.pcap":   {opWrite: 19, opReadReq: 8, opReadResp: 4, opSend: 37, opSendInv: 23},
		"nfs3-siw-knfsd.pcap": {opWrite: 1, opReadReq: 4, opReadResp: 1, opSend: 33},
	} {
		s := load(t, name)
		all, _ := s.messages(t)
		got := make(map[byte]int)
		for _, m := range all {
			got[m.op]++
			for _, f := range m.frames {
				if f.crc != 0 {
					t.Fatalf("%v: CRC %08x on a connection without", m, f.crc)
				}
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%s: messages by operation %v, want %v", name, got, want)
		}
	}
}
