package captures

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/test/lib/wire"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// readsByChunk are the READs of recordFiles that fit no inline message.
const readsByChunk = 3

// recordFiles writes a capture of one session of our file target and client over RDMA: inline messages, read chunks,
// write chunks and reply chunks.
func recordFiles(t *testing.T, name string) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	opts := iwarp.Options{CRC: iwarp.CRCOn, FPDU: iwarp.FPDUSegment}
	here, dev := iwarp.New(opts), iwarp.New(opts)
	server := stand.NewFiles(t, stand.FileOptions{}, nfs.Export{Path: "/data", Dir: t.TempDir(), Async: true, Rights: stand.Everyone})
	at, _ := server.RDMA(here, "127.0.0.1:0")
	file, err := os.Create(name)
	check(err)
	rec := wire.NewRecorder(file)
	p, err := wire.NewProxy(at.String(), wire.Tap{Recorder: rec, Port: 20049})
	check(err)

	v, _, err := infs.Mount(ctx, fmt.Sprintf("nfs+rdma://%s/data", p.Addr()), infs.Options{Device: dev})
	check(err)
	f, err := v.Create(ctx, "file", 0o644)
	check(err)
	for _, n := range []int{100, 4096, 100_001, 1 << 20} {
		data := bytes.Repeat([]byte("Sluice moves this by RDMA. "), n/27+1)[:n]
		_, err := f.WriteAt(data, 0)
		check(err)
		back := make([]byte, n)
		if k, err := f.ReadAt(back, 0); k != n || err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(back, data) {
			t.Fatalf("%d bytes came back as %d: %v", n, k, err)
		}
	}
	check(f.Sync())
	for i := range 100 { // a listing that fits no inline message
		check(v.Symlink(ctx, "file", fmt.Sprintf("%s%d", strings.Repeat("n", 100), i)))
	}
	if l, err := v.ReadDir("."); err != nil || len(l) != 101 {
		t.Fatalf("%d names, %v", len(l), err)
	}
	check(v.Rename(ctx, "file", "file2"))
	check(v.Remove(ctx, "file2"))
	check(v.Close())
	check(dev.Close())
	server.Stop()
	check(here.Close())
	check(p.Close())
	check(rec.Flush())
	check(file.Close())
}

// tshark takes an NFS session apart down to the procedures, and finds nothing malformed. What it cannot do (version 4.0)
// is to put RDMA Writes of iWARP together: it misses the data of READs that came by write chunk, and calls those replies
// malformed, those of other senders too. All other messages have to be without fault, and those three have to be all of them.
func TestTsharkReadsRPCOverRDMA(t *testing.T) {
	tool := need.Tool(t, "tshark", "tshark")
	name := filepath.Join(t.TempDir(), "nfs.pcap")
	recordFiles(t, name)
	tshark := func(args ...string) string {
		t.Helper()
		var complaint bytes.Buffer
		cmd := exec.Command(tool, append([]string{"-r", name, "-o", "tcp.check_checksum:TRUE"}, args...)...)
		cmd.Stderr = &complaint
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("tshark: %v\n%s", err, complaint.String())
		}
		return string(out)
	}
	faults := strings.Fields(tshark("-Y", "_ws.malformed", "-T", "fields", "-E", "separator=:", "-E", "occurrence=f", "-e", "nfs.procedure_v3", "-e", "rpc.msgtyp", "-e", "rpcordma.writes_count"))
	for _, f := range faults {
		if f != "6:1:1" {
			t.Errorf("malformed: NFS procedure, message type and write chunks are %s", f)
		}
	}
	if len(faults) > readsByChunk {
		t.Errorf("%d replies are called malformed; %d READs came by write chunk", len(faults), readsByChunk)
	}
	seen := make(map[string]int)
	for line := range strings.Lines(tshark("-V")) {
		line = strings.TrimSpace(line)
		low := strings.ToLower(line)
		for _, bad := range []string{"bad crc", "bad length", "bad checksum", "unknown message type"} {
			if strings.Contains(low, bad) {
				t.Errorf("tshark: %s", line)
			}
		}
		for _, want := range sights {
			if strings.Contains(line, want) {
				seen[want]++
			}
		}
	}
	for _, want := range sights {
		if seen[want] == 0 {
			t.Errorf("tshark shows no %q; it shows %v", want, seen)
		}
	}
}

// sights are what a session of recordFiles must show.
var sights = []string{
	"Message Type: RDMA_MSG (0)", "Message Type: RDMA_NOMSG (1)", "Message Type: Call (0)", "Message Type: Reply (1)", "Procedure: MNT (1)", "Procedure: READ (6)", "Procedure: WRITE (7)",
	"Procedure: SYMLINK (10)", "Procedure: RENAME (14)", "Procedure: READDIRPLUS (17)", "Procedure: COMMIT (21)", "Read list (count: 1)", "Write list (count: 1)", "Reply chunk (count: 1)",
}
