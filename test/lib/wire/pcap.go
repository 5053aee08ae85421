// Package wire is what tests need to look at a wire: reading captures, putting TCP streams together again, writing
// captures without any privilege, and a proxy that sees and may spoil every byte. It is small on purpose and made for
// files that are in the repository, not for the Internet.
package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Packet is one captured frame, from the Ethernet header on.
type Packet struct {
	Time time.Time
	Data []byte
}

const (
	pcapMagic     = 0xa1b2c3d4
	pcapngSection = 0x0a0d0d0a
	pcapngOrder   = 0x1a2b3c4d

	blockInterface = 1
	blockSimple    = 3
	blockEnhanced  = 6

	linkEthernet = 1
	maxBlock     = 1 << 20 // no capture of ours has a larger frame
)

// ReadFile reads a capture in either format, pcap or pcapng.
func ReadFile(name string) ([]Packet, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	p, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// Read reads a capture in either format. Only little-endian Ethernet captures are understood.
func Read(r io.Reader) ([]Packet, error) {
	br := bufio.NewReader(r)
	magic, err := br.Peek(4)
	if err != nil {
		return nil, err
	}
	switch binary.LittleEndian.Uint32(magic) {
	case pcapMagic:
		return readPcap(br)
	case pcapngSection:
		return readPcapng(br)
	}
	return nil, fmt.Errorf("wire: neither pcap nor pcapng: % x", magic)
}

func readPcap(r io.Reader) ([]Packet, error) {
	var head [24]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	if link := binary.LittleEndian.Uint32(head[20:]); link != linkEthernet {
		return nil, fmt.Errorf("wire: link type %d, want Ethernet", link)
	}
	var packets []Packet
	for {
		var rec [16]byte
		if _, err := io.ReadFull(r, rec[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return packets, nil
			}
			return nil, err
		}
		n := binary.LittleEndian.Uint32(rec[8:])
		if n > maxBlock {
			return nil, fmt.Errorf("wire: a frame of %d bytes", n)
		}
		data := make([]byte, n)
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, err
		}
		at := time.Unix(int64(binary.LittleEndian.Uint32(rec[0:])), int64(binary.LittleEndian.Uint32(rec[4:]))*1000)
		packets = append(packets, Packet{Time: at, Data: data})
	}
}

func readPcapng(r io.Reader) ([]Packet, error) {
	var packets []Packet
	for {
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return packets, nil
			}
			return nil, err
		}
		kind, n := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
		if n < 12 || n > maxBlock {
			return nil, fmt.Errorf("wire: a pcapng block of %d bytes", n)
		}
		body := make([]byte, n-8)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, err
		}
		body = body[:len(body)-4]
		switch {
		case kind == pcapngSection && (len(body) < 4 || binary.LittleEndian.Uint32(body) != pcapngOrder):
			return nil, errors.New("wire: a big-endian pcapng")
		case kind == blockInterface && (len(body) < 2 || binary.LittleEndian.Uint16(body) != linkEthernet):
			return nil, errors.New("wire: an interface that is no Ethernet")
		case kind == blockSimple && len(body) >= 4:
			size := min(int(binary.LittleEndian.Uint32(body)), len(body)-4)
			packets = append(packets, Packet{Data: body[4 : 4+size]})
		case kind == blockEnhanced && len(body) >= 20:
			size := int(binary.LittleEndian.Uint32(body[12:]))
			if size > len(body)-20 {
				return nil, fmt.Errorf("wire: a frame of %d bytes in a block of %d", size, len(body))
			}
			us := int64(binary.LittleEndian.Uint32(body[4:]))<<32 | int64(binary.LittleEndian.Uint32(body[8:]))
			packets = append(packets, Packet{Time: time.UnixMicro(us), Data: body[20 : 20+size]})
		}
	}
}
