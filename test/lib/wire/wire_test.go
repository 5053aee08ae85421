package wire

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that says everything back in capitals.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			_, _ = c.Write(bytes.ToUpper(b))
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func talk(t *testing.T, addr string, say []byte) []byte {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(say); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(c)
	return b
}

func TestProxyRecordsWhatItCarries(t *testing.T) {
	var file bytes.Buffer
	rec := NewRecorder(&file)
	p, err := NewProxy(echo(t), Tap{Recorder: rec, Port: 3260})
	if err != nil {
		t.Fatal(err)
	}
	say := []byte(strings.Repeat("words and more words; ", 1000))
	for range 2 {
		if got := talk(t, p.Addr(), say); !bytes.Equal(got, bytes.ToUpper(say)) {
			t.Fatalf("the proxy carried %d bytes back, want %d", len(got), len(say))
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := rec.Flush(); err != nil {
		t.Fatal(err)
	}
	packets, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	convs, err := Conversations(packets)
	if err != nil {
		t.Fatal(err)
	}
	if len(convs) != 2 {
		t.Fatalf("%d connections in the capture, want 2", len(convs))
	}
	for _, c := range convs {
		if c.Server.Port() != 3260 || !bytes.Equal(c.Stream(true), say) || !bytes.Equal(c.Stream(false), bytes.ToUpper(say)) {
			t.Fatalf("the capture of %v to %v is not what was said", c.Client, c.Server)
		}
	}
}

func TestProxyChangesAndCuts(t *testing.T) {
	server := echo(t)
	flip := Tap{Change: func(_ int, fromClient bool, at int64, b []byte) []byte {
		if fromClient && at <= 2 && 2 < at+int64(len(b)) {
			b[2-at] = 'x'
		}
		return b
	}}
	p, err := NewProxy(server, flip)
	if err != nil {
		t.Fatal(err)
	}
	if got := talk(t, p.Addr(), []byte("abcdef")); string(got) != "ABXDEF" {
		t.Fatalf("the flipped byte came back as %q", got)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p, err = NewProxy(server, Tap{CutAfter: func(_ int, fromClient bool) int64 {
		if fromClient {
			return 0
		}
		return 4
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := talk(t, p.Addr(), []byte("abcdef")); len(got) > 4 {
		t.Fatalf("after the cut: %q", got)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestConversationsOutOfOrderAndTwice(t *testing.T) {
	var file bytes.Buffer
	rec := NewRecorder(&file)
	c := rec.Connection(1)
	for _, s := range []string{"one ", "two ", "three ", "four"} {
		c.Data(true, []byte(s))
	}
	if err := rec.Flush(); err != nil {
		t.Fatal(err)
	}
	packets, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	if len(packets) != 7 {
		t.Fatalf("%d packets, want 3 and 4", len(packets))
	}
	p := packets
	for _, order := range [][]Packet{{p[0], p[1], p[2], p[4], p[3], p[6], p[5]}, {p[0], p[1], p[3], p[4], p[3], p[4], p[6], p[6], p[5]}} {
		convs, err := Conversations(order)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(convs[0].Stream(true)); got != "one two three four" {
			t.Fatalf("put together: %q", got)
		}
	}
	if _, err := Conversations([]Packet{p[0], p[1], p[3], p[5]}); err == nil {
		t.Fatal("a capture that lost bytes was taken")
	}
}

func TestReadsLinuxCaptures(t *testing.T) {
	for name, want := range map[string]int{"iser-siw-lio.pcap": 1, "nfs3-siw-knfsd.pcap": 2} {
		packets, err := ReadFile(filepath.Join("..", "..", "suite", "captures", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		convs, err := Conversations(packets)
		if err != nil {
			t.Fatal(err)
		}
		if len(convs) != want {
			t.Fatalf("%s: %d connections, want %d", name, len(convs), want)
		}
	}
}

func FuzzRead(f *testing.F) {
	var file bytes.Buffer
	rec := NewRecorder(&file)
	rec.Connection(1).Data(true, []byte("hello"))
	if err := rec.Flush(); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Add([]byte{0x0a, 0x0d, 0x0d, 0x0a, 0x1c, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a})
	f.Fuzz(func(_ *testing.T, b []byte) {
		if packets, err := Read(bytes.NewReader(b)); err == nil {
			_, _ = Conversations(packets)
		}
	})
}
