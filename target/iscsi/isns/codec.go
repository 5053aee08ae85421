package isns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

const (
	headerLen = 12
	version   = 1

	// maxPayload is the longest payload of one PDU that is a multiple of four (RFC 4171 section 5.1.3).
	maxPayload = 65532
	// maxAnswer bounds an answer of several PDUs: thousands of targets.
	maxAnswer = 1 << 20
	// nodesPerMessage keeps a registration well below maxPayload: a name of 223 bytes, an alias of 255 and 16 portals
	// are below 1 KiB.
	nodesPerMessage = 32
)

// Functions (RFC 4171 section 4).
const (
	fnRegister   uint16 = 0x0001
	fnQuery      uint16 = 0x0002
	fnDeregister uint16 = 0x0004
	fnResponse   uint16 = 0x8000
)

// Flags (section 5.1.4).
const (
	flagClient  uint16 = 0x8000
	flagReplace uint16 = 0x1000
	flagLast    uint16 = 0x0800
	flagFirst   uint16 = 0x0400
)

// Attribute tags (section 6.1).
const (
	tagDelimiter uint32 = 0
	tagEntity    uint32 = 1
	tagProtocol  uint32 = 2
	tagPeriod    uint32 = 6
	tagPortalIP  uint32 = 16
	tagPort      uint32 = 17
	tagName      uint32 = 32
	tagNodeType  uint32 = 33
	tagAlias     uint32 = 34
	tagPGPortal  uint32 = 49
	tagPGPort    uint32 = 50
	tagPGT       uint32 = 51

	protocolISCSI uint32 = 2
	nodeTarget    uint32 = 1
)

type header struct {
	function, flags, xid, seq uint16
	length                    int
}

func appendPDU(b []byte, fn, flags, xid uint16, payload []byte) []byte {
	for _, v := range []uint16{version, fn, uint16(len(payload)), flags, xid, 0} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return append(b, payload...)
}

func parseHeader(b []byte) (header, error) {
	u := func(i int) uint16 { return binary.BigEndian.Uint16(b[i:]) }
	h := header{function: u(2), length: int(u(4)), flags: u(6), xid: u(8), seq: u(10)}
	if u(0) != version {
		return h, fmt.Errorf("isns: the server speaks version %d (RFC 4171 section 5.1.1)", u(0))
	}
	if h.length%4 != 0 {
		return h, fmt.Errorf("isns: a payload of %d bytes (RFC 4171 section 5.1.3)", h.length)
	}
	return h, nil
}

// attr is one attribute of an answer.
type attr struct {
	tag   uint32
	value []byte
}

func (a attr) text() string { return strings.TrimRight(string(a.value), "\x00") }

func appendAttr(b []byte, tag uint32, v []byte) []byte {
	pad := -len(v) & 3
	b = binary.BigEndian.AppendUint32(b, tag)
	b = binary.BigEndian.AppendUint32(b, uint32(len(v)+pad))
	b = append(b, v...)
	return append(b, 0, 0, 0)[:len(b)+pad]
}

// appendText appends a string with its NUL (section 6: variable-length text is NUL-terminated and padded).
func appendText(b []byte, tag uint32, s string) []byte {
	return appendAttr(b, tag, append([]byte(s), 0))
}

func append32(b []byte, tag, v uint32) []byte {
	return appendAttr(b, tag, binary.BigEndian.AppendUint32(nil, v))
}

func appendAddr(b []byte, ipTag, portTag uint32, a netip.AddrPort) []byte {
	ip := a.Addr().As16() // IPv4 is mapped (section 6.3.1)
	b = appendAttr(b, ipTag, ip[:])
	return append32(b, portTag, uint32(a.Port())) // bit 16 clear: TCP
}

func parseAnswer(b []byte) (status uint32, attrs []attr, err error) {
	if len(b) < 4 {
		return 0, nil, errors.New("isns: an answer without a status")
	}
	status, b = binary.BigEndian.Uint32(b), b[4:]
	for len(b) > 0 {
		if len(b) < 8 {
			return 0, nil, errors.New("isns: an answer that ends within an attribute")
		}
		tag, n := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		b = b[8:]
		if n%4 != 0 || uint64(n) > uint64(len(b)) {
			return 0, nil, fmt.Errorf("isns: attribute %d of %d bytes lies in %d", tag, n, len(b))
		}
		attrs = append(attrs, attr{tag, b[:n]})
		b = b[n:]
	}
	return status, attrs, nil
}

// registerMessages builds the payloads that register r: the first with the entity and its portals, each with a number of
// nodes (section 5.6.5.1).
func registerMessages(entity string, r Registration, period uint32) [][]byte {
	var all [][]byte
	for i := 0; i < len(r.Targets); i += nodesPerMessage {
		var b []byte
		b = appendText(b, tagName, r.Targets[0].Name)
		b = appendText(b, tagEntity, entity)
		b = appendAttr(b, tagDelimiter, nil)
		b = appendText(b, tagEntity, entity)
		if i == 0 {
			b = append32(b, tagProtocol, protocolISCSI)
			b = append32(b, tagPeriod, period)
			for _, p := range r.Portals {
				b = appendAddr(b, tagPortalIP, tagPort, p.Addr)
			}
		}
		for _, t := range r.Targets[i:min(i+nodesPerMessage, len(r.Targets))] {
			b = appendText(b, tagName, t.Name)
			b = append32(b, tagNodeType, nodeTarget)
			if t.Alias != "" {
				b = appendText(b, tagAlias, t.Alias)
			}
			for _, p := range r.Portals {
				b = append32(b, tagPGT, uint32(p.Group))
				b = appendAddr(b, tagPGPortal, tagPGPort, p.Addr)
			}
		}
		all = append(all, b)
	}
	return all
}
