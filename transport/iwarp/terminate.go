package iwarp

import (
	"encoding/binary"
	"fmt"

	"github.com/sluice-storage/sluice/transport"
)

// Error types and codes of Terminate messages.
const (
	rdmapLocal      = 0 // RFC 5040 section 4.8
	rdmapProtection = 1
	rdmapOperation  = 2

	rdmapSTag        = 0x00
	rdmapBounds      = 0x01
	rdmapAccess      = 0x02
	rdmapWrap        = 0x04
	rdmapVersion     = 0x05
	rdmapOpcode      = 0x06
	rdmapStream      = 0x07
	rdmapCannotInv   = 0x09
	rdmapUnspecified = 0xff

	ddpTagged   = 1 // RFC 5041 section 7.2
	ddpUntagged = 2

	ddpTagSTag    = 0x00
	ddpTagBounds  = 0x01
	ddpTagWrap    = 0x03
	ddpTagVersion = 0x04

	ddpQN         = 0x01
	ddpNoBuffer   = 0x02
	ddpMSN        = 0x03
	ddpMO         = 0x04
	ddpTooLong    = 0x05
	ddpUntVersion = 0x06

	llpCRC    = 2 // RFC 5044 section 8
	llpMarker = 3
	llpLocal  = 5 // RFC 6581 section 10
	llpIRD    = 6
	llpRTR    = 7
)

// Header control bits, as they stand in byte 2 of the Terminate header.
const (
	termM = 0x80 // DDP segment length valid
	termD = 0x40 // DDP header included
	termR = 0x20 // RDMAP header included
)

// maxTerminate is the longest Terminate payload: control, segment length, untagged DDP header, Read Request.
const maxTerminate = 4 + 2 + 18 + readReqLen

// appendTerminate encodes the payload of a Terminate message. hdr is the offending segment's header from its ULPDU
// length on, nil where RFC 5040 figure 10 wants none; readReq bytes behind an untagged header are included.
func appendTerminate(b []byte, t *transport.TerminateError, hdr []byte) []byte {
	var ctl byte
	if t.Layer == transport.LayerLLP || t.Layer == transport.LayerRDMAP && t.Type == rdmapLocal {
		hdr = nil
	}
	var rd []byte
	if len(hdr) > 0 {
		n := headerLen(hdr)
		ctl |= termM | termD
		// Figure 10: the RDMAP header comes with remote protection errors, and it is a Read Request's only.
		if len(hdr) == n+readReqLen && t.Layer == transport.LayerRDMAP && t.Type == rdmapProtection {
			ctl |= termR
			rd = hdr[n:]
		}
		hdr = hdr[:n]
	}
	b = append(b, uint8(t.Layer)<<4|t.Type&0xf, t.Code, ctl, 0)
	if len(hdr) > 0 {
		b = append(b, hdr...) // the ULPDU length is the DDP segment length
		b = append(b, rd...)
	}
	return b
}

// parseTerminate reads the payload of a Terminate message in RFC 5040's nibble order or in siw's, whose bit-fields put
// layer and type the other way round and the header control bits at the low end of their byte.
func parseTerminate(b []byte) *transport.TerminateError {
	t := &transport.TerminateError{Remote: true, Raw: append([]byte(nil), b[:min(len(b), 64)]...)}
	if len(b) < 4 {
		t.Type, t.Code = rdmapOperation, rdmapUnspecified
		t.Detail = fmt.Sprintf("a Terminate message of %d bytes, too short to say why (% x)", len(b), b)
		return t
	}
	hi, lo := b[0]>>4, b[0]&0xf
	swapped := false
	switch {
	case b[2]&0xe0 != 0:
	case b[2]&0x07 != 0:
		swapped = true
	case !termDefined(hi, lo, b[1]) && termDefined(lo, hi, b[1]):
		swapped = true
	}
	if swapped {
		hi, lo = lo, hi
	}
	t.Layer, t.Type, t.Code = transport.Layer(hi), lo, b[1]
	t.Detail = fmt.Sprintf("%s (Terminate % x)", termName(t.Layer, t.Type, t.Code), t.Raw)
	return t
}

type termKey struct {
	layer     transport.Layer
	typ, code uint8
}

var termNames = map[termKey]string{
	{transport.LayerRDMAP, rdmapProtection, rdmapSTag}:        "invalid STag",
	{transport.LayerRDMAP, rdmapProtection, rdmapBounds}:      "base or bounds violation",
	{transport.LayerRDMAP, rdmapProtection, rdmapAccess}:      "access rights violation",
	{transport.LayerRDMAP, rdmapProtection, 0x03}:             "STag not associated with the stream",
	{transport.LayerRDMAP, rdmapProtection, rdmapWrap}:        "tagged offset wrap",
	{transport.LayerRDMAP, rdmapProtection, rdmapCannotInv}:   "STag cannot be invalidated",
	{transport.LayerRDMAP, rdmapProtection, rdmapUnspecified}: "unspecified protection error",
	{transport.LayerRDMAP, rdmapOperation, rdmapVersion}:      "invalid RDMAP version",
	{transport.LayerRDMAP, rdmapOperation, rdmapOpcode}:       "unexpected opcode",
	{transport.LayerRDMAP, rdmapOperation, rdmapStream}:       "catastrophic error of the stream",
	{transport.LayerRDMAP, rdmapOperation, 0x08}:              "catastrophic error, global",
	{transport.LayerRDMAP, rdmapOperation, rdmapCannotInv}:    "STag cannot be invalidated",
	{transport.LayerRDMAP, rdmapOperation, rdmapUnspecified}:  "unspecified error",
	{transport.LayerDDP, ddpTagged, ddpTagSTag}:               "invalid STag",
	{transport.LayerDDP, ddpTagged, ddpTagBounds}:             "base or bounds violation",
	{transport.LayerDDP, ddpTagged, 0x02}:                     "STag not associated with the stream",
	{transport.LayerDDP, ddpTagged, ddpTagWrap}:               "tagged offset wrap",
	{transport.LayerDDP, ddpTagged, ddpTagVersion}:            "invalid DDP version",
	{transport.LayerDDP, ddpUntagged, ddpQN}:                  "invalid queue number",
	{transport.LayerDDP, ddpUntagged, ddpNoBuffer}:            "no buffer for this message",
	{transport.LayerDDP, ddpUntagged, ddpMSN}:                 "message sequence number out of range",
	{transport.LayerDDP, ddpUntagged, ddpMO}:                  "invalid message offset",
	{transport.LayerDDP, ddpUntagged, ddpTooLong}:             "message too long for its buffer",
	{transport.LayerDDP, ddpUntagged, ddpUntVersion}:          "invalid DDP version",
	{transport.LayerLLP, 0, 1}:                                "TCP connection lost",
	{transport.LayerLLP, 0, llpCRC}:                           "CRC error",
	{transport.LayerLLP, 0, llpMarker}:                        "marker and ULPDU length disagree",
	{transport.LayerLLP, 0, 4}:                                "invalid MPA frame",
	{transport.LayerLLP, 0, llpLocal}:                         "local catastrophic error",
	{transport.LayerLLP, 0, llpIRD}:                           "insufficient IRD",
	{transport.LayerLLP, 0, llpRTR}:                           "no ready-to-receive type in common",
}

func termDefined(layer, typ, code uint8) bool {
	if layer == uint8(transport.LayerRDMAP) && typ == rdmapLocal || layer == uint8(transport.LayerDDP) && typ == 0 {
		return true // local catastrophic: any code
	}
	_, ok := termNames[termKey{transport.Layer(layer), typ, code}]
	return ok
}

func termName(layer transport.Layer, typ, code uint8) string {
	if n, ok := termNames[termKey{layer, typ, code}]; ok {
		return n
	}
	if typ == rdmapLocal && layer != transport.LayerLLP {
		return "local catastrophic error"
	}
	return "unknown reason"
}

// violation is an error found in what the peer sent.
func violation(layer transport.Layer, typ, code uint8, clause, format string, args ...any) *transport.TerminateError {
	return &transport.TerminateError{Layer: layer, Type: typ, Code: code, Clause: clause, Detail: fmt.Sprintf(format, args...)}
}

// terminateFPDU encodes a whole Terminate message.
func terminateFPDU(t *transport.TerminateError, hdr []byte, crc bool) []byte {
	body := appendTerminate(make([]byte, 0, maxTerminate), t, hdr)
	b := make([]byte, untaggedLen, untaggedLen+len(body)+8)
	putUntagged(b, len(body), ctrlLast|ctrlV1|opTerminate, 0, qnTerminate, 1, 0)
	b = append(b, body...)
	b = append(b, make([]byte, fpduPad(len(b)-2))...)
	var sum uint32
	if crc {
		sum = crcAdd(0, b)
	}
	return binary.LittleEndian.AppendUint32(b, sum) // RFC 5044 section 4.4 and RFC 3385: least significant byte first
}
