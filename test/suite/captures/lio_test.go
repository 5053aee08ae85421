package captures

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

const (
	iserHeader = 28
	bhsLen     = 48
	lioName    = "iqn.2024-01.lab:lio"
	lioAlias   = "LIO Target"
	lioSize    = 0x200000 * 512 // what its READ CAPACITY said
)

// serveAsLIO starts our target under the name and with the size of LIO's.
func serveAsLIO(t *testing.T) string {
	t.Helper()
	dev := iwarp.New(iwarp.Options{CRC: iwarp.CRCPeer, FPDU: iwarp.FPDUSegment})
	o := stand.BlockOptions{Name: lioName, ISCSI: iscsi.Target{Alias: lioAlias}, Memory: 256 << 20, Server: iscsi.Options{Device: dev}}
	return stand.NewBlocks(t, o, scsi.LUOptions{Device: stand.Disk(t, lioSize), Name: "lab"}).Portal("127.0.0.1", 1)
}

// linux plays the captured initiator on a socket.
type linux struct {
	*testing.T
	c    net.Conn
	rest []byte
	j    join
	stat uint32 // ExpStatSN to give
}

// pdu is an iSER message of a target.
type pdu struct {
	*message
	iser, bhs, data []byte
}

func parsePDU(t *testing.T, m *message) pdu {
	t.Helper()
	if len(m.data) < iserHeader+bhsLen {
		t.Fatalf("%v is shorter than the headers of iSER and iSCSI", m)
	}
	p := pdu{message: m, iser: m.data[:iserHeader], bhs: m.data[iserHeader : iserHeader+bhsLen], data: m.data[iserHeader+bhsLen:]}
	n := int(p.bhs[5])<<16 | int(p.bhs[6])<<8 | int(p.bhs[7])
	if n > len(p.data) || len(p.data) > n+3 {
		t.Fatalf("%v: DataSegmentLength %d, and %d bytes follow", m, n, len(p.data))
	}
	p.data = p.data[:n]
	return p
}

// say sends a captured Send with the ExpStatSN that our target expects.
func (x *linux) say(m *message) {
	x.Helper()
	if len(m.frames) != 1 {
		x.Fatalf("%v has %d segments", m, len(m.frames))
	}
	b := bytes.Clone(m.frames[0].raw)
	binary.BigEndian.PutUint32(b[20+iserHeader+28:], x.stat)
	if _, err := x.c.Write(b); err != nil {
		x.Fatal(err)
	}
}

// hear reads until the target has sent a Send, and returns the RDMA Writes before it too.
func (x *linux) hear() (p pdu, writes []*message) {
	x.Helper()
	buf := make([]byte, 64<<10)
	for {
		f, k, err := parseFPDU(x.rest)
		if err != nil {
			x.Fatal(err)
		}
		if k == 0 {
			n, err := x.c.Read(buf)
			if err != nil {
				x.Fatalf("the target said no more: %v", err)
			}
			x.rest = append(x.rest, buf[:n]...)
			continue
		}
		f.raw, f.payload = nil, bytes.Clone(f.payload)
		x.rest = x.rest[k:]
		m, err := x.j.add(f)
		switch {
		case err != nil:
			x.Fatal(err)
		case m == nil:
		case m.op == opTerminate:
			x.Fatalf("the target sent a Terminate: % x", m.data)
		case m.tagged:
			writes = append(writes, m)
		default:
			p = parsePDU(x.T, m)
			x.stat = binary.BigEndian.Uint32(p.bhs[24:]) + 1
			return p, writes
		}
	}
}

// keys are the text keys of a login PDU in their order.
func keys(t *testing.T, data []byte) (names []string, values map[string]string) {
	t.Helper()
	values = make(map[string]string)
	for kv := range strings.SplitSeq(strings.TrimSuffix(string(data), "\x00"), "\x00") {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || values[k] != "" {
			t.Fatalf("key %q is none, or comes twice", kv)
		}
		names = append(names, k)
		values[k] = v
	}
	return names, values
}

// difference is a field of ours that is not LIO's, on purpose.
type difference struct {
	lio, ours string // ours is a regular expression; "" is a key that is not there
	why       string
}

// loginKeys are the text keys of the login response that differ.
var loginKeys = map[string]difference{
	"MaxBurstLength":              {"262144", "1048576", "a burst is bounded by our buffers, not by LIO's default (RFC 7143 section 13.13)"},
	"DataPDUInOrder":              {"", "Yes", "an offered key is answered (RFC 7143 section 6.2); LIO leaves it out"},
	"DataSequenceInOrder":         {"", "Yes", "the same"},
	"IFMarker":                    {"No", "Reject", "the key is obsolete, and Reject is its answer (RFC 7143 section 13.25)"},
	"OFMarker":                    {"No", "Reject", "the same"},
	"TargetRecvDataSegmentLength": {"8192", "4096|8192", "what our receives hold once the login is over, if that is less than was offered (RFC 7145 section 6.4)"},
}

// The login of the kernel's ib_iser, answered by us as LIO answered it, field by field.
func TestLoginIsAnsweredAsLIODid(t *testing.T) {
	s := load(t, "iser-siw-lio.pcap")
	all, _ := s.messages(t)
	x := &linux{T: t}
	x.dial(s, serveAsLIO(t))

	x.say(all[0])
	ours, writes := x.hear()
	lio := parsePDU(t, all[1])
	if len(writes) != 0 {
		t.Fatal("an RDMA Write before the full-feature phase")
	}
	if !bytes.Equal(ours.iser, lio.iser) {
		t.Errorf("iSER header % x, LIO's % x", ours.iser, lio.iser)
	}
	// We set the solicited event bit on every control-type PDU, for initiators that sleep until one comes (RFC 7145
	// section 7.3); LIO does not, and Linux takes either.
	if ours.op != lio.op && ours.op != opSendSE || ours.msn != lio.msn {
		t.Errorf("sent as %v, LIO as %v", ours, lio)
	}
	same := func(name string, from, to int) {
		t.Helper()
		if !bytes.Equal(ours.bhs[from:to], lio.bhs[from:to]) {
			t.Errorf("%s: % x, LIO's % x", name, ours.bhs[from:to], lio.bhs[from:to])
		}
	}
	same("opcode and flags", 0, 2)
	same("versions", 2, 4)
	same("TotalAHSLength", 4, 5)
	// DataSegmentLength follows from the keys.
	same("ISID", 8, 14)
	if tsih := binary.BigEndian.Uint16(ours.bhs[14:]); tsih == 0 {
		t.Error("TSIH 0 in the last login response") // which number it is, is each target's own
	}
	same("InitiatorTaskTag", 16, 20)
	same("reserved", 20, 24)
	// StatSN begins where each target likes.
	same("ExpCmdSN", 28, 32)
	if window := binary.BigEndian.Uint32(ours.bhs[32:]) - binary.BigEndian.Uint32(ours.bhs[28:]) + 1; window == 0 || window > 1<<16 {
		t.Errorf("a command window of %d", window) // how wide it is, is each target's own; LIO's is 1 here
	}
	same("status", 36, 38)
	same("reserved", 38, 48)

	_, ourKeys := keys(t, ours.data)
	names, lioKeys := keys(t, lio.data)
	for k := range ourKeys {
		if !slices.Contains(names, k) {
			names = append(names, k)
		}
	}
	for _, k := range names {
		d, differs := loginKeys[k]
		switch {
		case differs && (d.lio != lioKeys[k] || !matches(d.ours, ourKeys[k])):
			t.Errorf("key %s: %q, LIO's %q; the list of differences says %q and %q", k, ourKeys[k], lioKeys[k], d.ours, d.lio)
		case !differs && ourKeys[k] != lioKeys[k]:
			t.Errorf("key %s: %q, LIO's %q", k, ourKeys[k], lioKeys[k])
		}
	}
}

func (x *linux) dial(s *session, addr string) {
	x.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		x.Fatal(err)
	}
	x.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		x.Fatal(err)
	}
	x.c = c
	if _, err := c.Write(s.request); err != nil {
		x.Fatal(err)
	}
	reply := readMPA(x.T, c)
	// LIO asks for an ORD of 128, siw's most; we ask for as many Reads as we will have outstanding, and no target can
	// be made to hold more for us than that.
	if _, ord := depths(reply); ord < 1 || ord > 128 {
		x.Fatalf("ORD %d", ord)
	}
	copy(reply[22:24], s.reply[22:24])
	sameMPA(x.T, reply, s.reply)
}

func matches(pattern, s string) bool {
	ok, err := regexp.MatchString("^(?:"+pattern+")$", s)
	return ok && err == nil
}

// commandAnswers are the answers to captured commands that differ, by their number in the session.
var commandAnswers = map[int]difference{
	3: {
		"opcode 21 flags 80 response 00 status 00 residual 0 sense none invalidates nothing after 0 bytes",
		"opcode 21 flags 80 response 00 status 02 residual 0 sense 6/29/0[0-7] invalidates nothing after 0 bytes",
		"a new I_T nexus is told of the power on before it (SAM-5 section 5.14); LIO tells nobody",
	},
	4: {
		"opcode 21 flags 82 response 00 status 00 residual 4080 sense none invalidates 0931c904 after 4096 bytes",
		"opcode 21 flags 82 response 00 status 00 residual 4080 sense none invalidates 0931c904 after 16 bytes",
		"both say that 16 bytes are the answer; LIO writes zeroes behind them",
	},
	9: {
		"opcode 21 flags 80 response 00 status 02 residual 0 sense 5/20/00 invalidates 0931c909 after 0 bytes",
		"opcode 21 flags 8[02] response 00 status 00 residual [0-9]+ sense none invalidates 0931c909 after [0-9]+ bytes",
		"we have REPORT SUPPORTED OPERATION CODES",
	},
	12: {
		"opcode 21 flags 82 response 00 status 00 residual 32 sense none invalidates 0931c90b after 36 bytes",
		"opcode 21 flags 82 response 00 status 00 residual [0-9]+ sense none invalidates 0931c90b after [0-9]+ bytes",
		"our list of VPD pages is longer, and LIO writes zeroes behind its own",
	},
	21: {
		"opcode 21 flags 82 response 00 status 00 residual 248 sense none invalidates 0931c914 after 252 bytes",
		"opcode 21 flags 82 response 00 status 00 residual [0-9]+ sense none invalidates 0931c914 after [0-9]+ bytes",
		"the same",
	},
}

// The commands that the kernel sent next, up to its first write, answered by us as LIO answered them: response, status,
// residual, sense, the STag that the response ends, and how many bytes were written where.
func TestCommandsAreAnsweredAsLIODid(t *testing.T) {
	s := load(t, "iser-siw-lio.pcap")
	all, _ := s.messages(t)
	answers := make(map[uint32]string) // LIO's, by task tag
	placed := make(map[uint32]int)
	for _, m := range all {
		if m.fromClient {
			continue
		}
		if m.op == opWrite {
			placed[m.stag] += len(m.data)
		} else if m.op == opSend || m.op == opSendInv {
			p := parsePDU(t, m)
			answers[binary.BigEndian.Uint32(p.bhs[16:])] = answer(p, placed[m.stag])
		}
	}
	x := &linux{T: t}
	x.dial(s, serveAsLIO(t))
	x.say(all[0])
	x.hear()
	number := 0
	for _, m := range all[1:] {
		if !m.fromClient || m.op != opSend {
			continue
		}
		cmd := parsePDU(t, m)
		if cmd.iser[0]&0x08 != 0 {
			break // the first write
		}
		x.say(m)
		p, writes := x.hear()
		n := 0
		for _, w := range writes {
			if w.stag != binary.BigEndian.Uint32(cmd.iser[16:]) {
				t.Fatalf("command %d: an RDMA Write to STag %08x", number, w.stag)
			}
			n += len(w.data)
		}
		got, want := answer(p, n), answers[binary.BigEndian.Uint32(cmd.bhs[16:])]
		d, differs := commandAnswers[number]
		switch {
		case want == "":
			t.Fatalf("command %d has no answer in the capture", number)
		case differs && (d.lio != want || !matches(d.ours, got)):
			t.Errorf("command %d, CDB % x:\nours %s\nLIO  %s\nthe list of differences says\n     %s\n     %s", number, cmd.bhs[32:48], got, want, d.ours, d.lio)
		case !differs && got != want:
			t.Errorf("command %d, CDB % x:\nours %s\nLIO  %s", number, cmd.bhs[32:48], got, want)
		}
		number++
	}
	if number < 12 {
		t.Fatalf("only %d commands were compared", number)
	}
}

// answer is what an initiator can see of the end of a command, in a line.
func answer(p pdu, placed int) string {
	inv := "nothing"
	if p.op == opSendInv || p.op == opSendSEInv {
		inv = fmt.Sprintf("%08x", p.stag)
	}
	sense := "none"
	if len(p.data) >= 2+14 {
		b := p.data[2:]
		sense = fmt.Sprintf("%x/%02x/%02x", b[2]&15, b[12], b[13])
	}
	return fmt.Sprintf("opcode %02x flags %02x response %02x status %02x residual %d sense %s invalidates %s after %d bytes",
		p.bhs[0], p.bhs[1], p.bhs[2], p.bhs[3], binary.BigEndian.Uint32(p.bhs[44:]), sense, inv, placed)
}
