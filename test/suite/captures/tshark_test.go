package captures

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/wire"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// recordSession writes a capture of one iSER session of our two halves with CRC: login, write, read, logout.
func recordSession(t *testing.T, name string) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	addr := serveAsLIO(t)
	file, err := os.Create(name)
	check(err)
	rec := wire.NewRecorder(file)
	p, err := wire.NewProxy(addr, wire.Tap{Recorder: rec, Port: 3260})
	check(err)

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pool := mem.NewPool(64 << 20)
	// Frames of at most a segment, as over an Ethernet, and a CRC although this is loopback.
	dev := iwarp.New(iwarp.Options{CRC: iwarp.CRCOn, FPDU: iwarp.FPDUSegment})
	ini, err := block.New(block.Options{Device: dev, Memory: pool, Name: "iqn.2026-11.io.sluice:tshark", Piece: 1 << 20})
	check(err)
	vol, err := ini.Open(ctx, fmt.Sprintf("iser://%s/%s/0", p.Addr(), lioName))
	check(err)
	for _, n := range []int{512, 4096, 65536, 1 << 20} {
		data := bytes.Repeat([]byte("Sluice moves this by RDMA. "), n/27+1)[:n]
		_, err = vol.WriteAtContext(ctx, data, int64(n))
		check(err)
		back := make([]byte, n)
		_, err = vol.ReadAtContext(ctx, back, int64(n))
		check(err)
		if !bytes.Equal(back, data) {
			t.Fatalf("%d bytes came back as others", n)
		}
	}
	check(vol.Flush(ctx))
	check(vol.Close()) // logs out
	check(ini.Close())
	check(dev.Close())
	check(p.Close())
	check(rec.Flush())
	check(file.Close())
}

// tally is what tshark made of a capture.
type tally struct {
	mpa, good int
	ops       map[string]int // FPDUs by RDMAP opcode
	faults    []string       // lines that speak of something malformed, and of bad checksums
}

var opcodeLine = regexp.MustCompile(`= OpCode: .*\((0x[0-9a-f]+)\)`)

// dissect runs tshark over a capture. The dissector of RPC-over-RDMA guesses that any Send could be its own, and there
// is none for iSER over iWARP.
func dissect(t *testing.T, tshark, name string) tally {
	t.Helper()
	cmd := exec.Command(tshark, "-r", name, "--disable-protocol", "rpcordma", "-o", "tcp.check_checksum:TRUE", "-V")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, complaint.String())
	}
	s := tally{ops: make(map[string]int)}
	for line := range strings.Lines(string(out)) {
		low := strings.ToLower(line)
		switch {
		case strings.Contains(line, "Good CRC32"):
			s.good++
		case strings.Contains(line, "ID Req frame:"), strings.Contains(line, "ID Rep frame:"):
			s.mpa++
		case strings.Contains(low, "malformed"), strings.Contains(low, "bad crc"), strings.Contains(low, "bad length"), strings.Contains(low, "bad checksum"):
			s.faults = append(s.faults, strings.TrimSpace(line))
		}
		if m := opcodeLine.FindStringSubmatch(line); m != nil {
			s.ops[m[1]]++
		}
	}
	return s
}

// A decoder that none of us wrote reads our wire, and sees the byte that we spoil.
func TestTsharkReadsOurWire(t *testing.T) {
	tshark := need.Tool(t, "tshark", "tshark")
	good := filepath.Join(t.TempDir(), "good.pcap")
	recordSession(t, good)
	s := dissect(t, tshark, good)
	if len(s.faults) > 0 {
		t.Fatalf("tshark finds fault: %q", s.faults)
	}

	packets, err := wire.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	convs, err := wire.Conversations(packets)
	if err != nil || len(convs) != 1 {
		t.Fatalf("%d connections, %v", len(convs), err)
	}
	// The same count of frames by our own reader: tshark lost none.
	fpdus := split(t, convs[0]).fpdus
	ours := make(map[string]int)
	for _, f := range fpdus {
		ours[fmt.Sprintf("0x%x", f.op)]++
	}
	if s.mpa != 2 || s.good != len(fpdus) || !maps.Equal(s.ops, ours) {
		t.Fatalf("tshark saw %d MPA frames, %d good CRCs and operations %v; there are 2, %d and %v", s.mpa, s.good, s.ops, len(fpdus), ours)
	}
	for _, op := range []string{"0x0", "0x1", "0x2"} {
		if ours[op] == 0 {
			t.Errorf("operation %s never happened in %v", op, ours)
		}
	}

	// One bit of one payload.
	bad := filepath.Join(t.TempDir(), "bad.pcap")
	file, err := os.Create(bad)
	if err != nil {
		t.Fatal(err)
	}
	rec := wire.NewRecorder(file)
	c := rec.Connection(3260)
	spoiled := false
	for _, k := range convs[0].Chunks {
		if i := bytes.Index(k.Data, []byte("moves this by RDMA")); i >= 0 && !spoiled {
			k.Data = bytes.Clone(k.Data)
			k.Data[i+3] ^= 0x10
			spoiled = true
		}
		c.Data(k.FromClient, k.Data)
	}
	c.Close()
	if err := rec.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	b := dissect(t, tshark, bad)
	if !spoiled || len(b.faults) != 1 || !strings.Contains(b.faults[0], "Bad CRC32") || b.good != s.good-1 {
		t.Fatalf("one bit is wrong (%v), and tshark says %d good CRCs of %d and %q", spoiled, b.good, s.good, b.faults)
	}
}
