package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Messages on the socket, each a packet. All but the bell are little endian.
const (
	msgBell     uint8 = iota // one byte: look at the ring
	msgRequest               // of a dialler, with the file of its region
	msgReply                 // of a listener, likewise
	msgRefusal               // of a listener, instead
	msgSlab                  // a slab's number and size, with its file
	msgWithdraw              // a slab's number: nothing names it any more
)

const (
	slabMsgLen     = 16 // kind, three bytes of zero, number, size
	withdrawMsgLen = 8
	helloLen       = 24
	maxHello       = helloLen + maxPrivate + maxDetail
	version        = 1
)

var helloMagic = [8]byte{'S', 'l', 'u', 'i', 'c', 'e', 's', 'h'}

// hello is a request, reply or refusal.
type hello struct {
	kind              uint8
	readsIn, readsOut uint16
	slots             uint32 // of the sender's ring
	private           []byte
	text              string // a request's: the service that is meant; a reply's: what the listener calls the dialler; a refusal's: why, where it is not the upper protocol's
}

// append encodes h. Its lengths are the caller's to check.
func (h *hello) append(b []byte) []byte {
	b = append(b, helloMagic[:]...)
	b = append(b, h.kind, version)
	b = binary.LittleEndian.AppendUint16(b, h.readsIn)
	b = binary.LittleEndian.AppendUint16(b, h.readsOut)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.private)))
	b = binary.LittleEndian.AppendUint32(b, h.slots)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.text)))
	b = append(b, 0, 0)
	b = append(b, h.private...)
	return append(b, h.text...)
}

var errNoHello = errors.New("shm: the peer does not speak as a Sluice of this host does; is another program at this socket?")

// parse decodes b, which it copies from.
func (h *hello) parse(b []byte) error {
	if len(b) < helloLen || [8]byte(b) != helloMagic {
		return errNoHello
	}
	if b[9] != version {
		return fmt.Errorf("shm: the peer speaks version %d, this side version %d: let both be of one release", b[9], version)
	}
	h.kind = b[8]
	h.readsIn, h.readsOut = binary.LittleEndian.Uint16(b[10:]), binary.LittleEndian.Uint16(b[12:])
	h.slots = binary.LittleEndian.Uint32(b[16:])
	private, text := int(binary.LittleEndian.Uint16(b[14:])), int(binary.LittleEndian.Uint16(b[20:]))
	switch {
	case h.kind < msgRequest || h.kind > msgRefusal || b[22] != 0 || b[23] != 0:
		return errNoHello
	case private > maxPrivate || text > maxDetail || len(b) != helloLen+private+text:
		return fmt.Errorf("shm: a set-up message of %d bytes with %d of private data and %d of text", len(b), private, text)
	case h.kind != msgRefusal && (h.slots < minSlots || h.slots > maxSlots || h.slots&(h.slots-1) != 0):
		return fmt.Errorf("shm: the peer's ring has %d slots; a power of two from %d to %d is taken", h.slots, minSlots, maxSlots)
	}
	h.private = append([]byte(nil), b[helloLen:helloLen+private]...)
	h.text = printable(b[helloLen+private:])
	return nil
}

// printable is text of a peer's that may stand in a log.
func printable(b []byte) string {
	s := make([]rune, 0, len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			r = '?'
		}
		s = append(s, r)
		b = b[n:]
	}
	return string(s)
}

// control is a message of a connection.
type control struct {
	kind uint8
	slab uint32
	size uint64
}

func (c *control) append(b []byte) []byte {
	b = append(b, c.kind, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, c.slab)
	if c.kind == msgSlab {
		b = binary.LittleEndian.AppendUint64(b, c.size)
	}
	return b
}

func (c *control) parse(b []byte) error {
	*c = control{}
	if len(b) == 1 && b[0] == msgBell {
		return nil
	}
	if len(b) < withdrawMsgLen || b[1]|b[2]|b[3] != 0 {
		return fmt.Errorf("a message of %d bytes that is none", len(b))
	}
	c.kind, c.slab = b[0], binary.LittleEndian.Uint32(b[4:])
	switch {
	case c.kind == msgSlab && len(b) == slabMsgLen:
		c.size = binary.LittleEndian.Uint64(b[8:])
	case c.kind == msgWithdraw && len(b) == withdrawMsgLen:
	default:
		return fmt.Errorf("a message of kind %d and %d bytes that is none", c.kind, len(b))
	}
	return nil
}
