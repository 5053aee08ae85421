package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Conversation is one TCP connection of a capture. Chunks are in the order in which they were new to the one who
// captured; together those of one direction are its stream.
type Conversation struct {
	Client, Server netip.AddrPort
	Chunks         []Chunk
}

// Chunk is some bytes of one direction.
type Chunk struct {
	FromClient bool
	Time       time.Time
	Data       []byte
}

// Stream is all that one direction carried.
func (c *Conversation) Stream(fromClient bool) []byte {
	var b []byte
	for _, k := range c.Chunks {
		if k.FromClient == fromClient {
			b = append(b, k.Data...)
		}
	}
	return b
}

const (
	flagSYN = 0x02
	flagACK = 0x10
)

type segmentKey struct{ src, dst netip.AddrPort }

// half is one direction while it is put together.
type half struct {
	conv    *Conversation
	client  bool
	next    uint32 // sequence number expected
	pending []heldSegment
}

type heldSegment struct {
	seq  uint32
	at   time.Time
	data []byte
}

// Conversations puts the TCP connections of a capture together. A connection counts from its SYN on; bytes that the
// capture lost are an error, for what follows them has no place.
func Conversations(packets []Packet) ([]*Conversation, error) {
	halves := make(map[segmentKey]*half)
	var all []*Conversation
	for _, p := range packets {
		key, seq, flags, data, ok := parseTCP(p.Data)
		if !ok {
			continue
		}
		switch {
		case flags&(flagSYN|flagACK) == flagSYN:
			c := &Conversation{Client: key.src, Server: key.dst}
			all = append(all, c)
			halves[key] = &half{conv: c, client: true, next: seq + 1}
			delete(halves, segmentKey{key.dst, key.src})
			continue
		case flags&flagSYN != 0:
			if other := halves[segmentKey{key.dst, key.src}]; other != nil {
				halves[key] = &half{conv: other.conv, next: seq + 1}
			}
			continue
		}
		if h := halves[key]; h != nil && len(data) > 0 {
			h.add(seq, p.Time, data)
		}
	}
	for key, h := range halves {
		if len(h.pending) > 0 {
			return nil, fmt.Errorf("wire: the capture lost bytes of %v to %v before sequence number %d", key.src, key.dst, h.pending[0].seq)
		}
	}
	return all, nil
}

func (h *half) add(seq uint32, at time.Time, data []byte) {
	h.pending = append(h.pending, heldSegment{seq, at, data})
	slices.SortStableFunc(h.pending, func(a, b heldSegment) int { return int(int32(a.seq - b.seq)) })
	for len(h.pending) > 0 {
		s := h.pending[0]
		ahead := int32(s.seq - h.next)
		if ahead > 0 {
			return
		}
		h.pending = h.pending[1:]
		// Minus the smallest int32 is itself: the distance is taken as an int.
		if skip := -int(ahead); skip < len(s.data) { // the rest was seen before: a retransmission
			s.data = s.data[skip:]
			h.next += uint32(len(s.data))
			h.conv.Chunks = append(h.conv.Chunks, Chunk{FromClient: h.client, Time: s.at, Data: s.data})
		}
	}
}

// parseTCP takes an Ethernet frame apart, without IP options of version 6 and without fragments.
func parseTCP(b []byte) (key segmentKey, seq uint32, flags byte, data []byte, ok bool) {
	if len(b) < 14 {
		return
	}
	var src, dst netip.Addr
	ip := b[14:]
	switch binary.BigEndian.Uint16(b[12:]) {
	case 0x0800:
		if len(ip) < 20 || ip[9] != 6 {
			return
		}
		head, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if total == 0 {
			total = len(ip) // segmentation offload
		}
		if head < 20 || total > len(ip) || head > total {
			return
		}
		src, dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		ip = ip[head:total]
	case 0x86dd:
		if len(ip) < 40 || ip[6] != 6 {
			return
		}
		total := 40 + int(binary.BigEndian.Uint16(ip[4:]))
		if total > len(ip) {
			return
		}
		src, dst = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
		ip = ip[40:total]
	default:
		return
	}
	if len(ip) < 20 {
		return
	}
	head := int(ip[12]>>4) * 4
	if head < 20 || head > len(ip) {
		return
	}
	key.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(ip))
	key.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ip[2:]))
	return key, binary.BigEndian.Uint32(ip[4:]), ip[13], ip[head:], true
}
