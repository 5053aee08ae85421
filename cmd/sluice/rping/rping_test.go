package rping

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The expected texts were taken from rping's own output with -v.
func TestFillIsWhatTheProgramWrites(t *testing.T) {
	for _, c := range []struct {
		n, size int
		want    string
	}{
		{0, 26, "rdma-ping-0: ABCDEFGHIJKL\x00"},
		{1, 26, "rdma-ping-1: BCDEFGHIJKLM\x00"},
		{57, 32, "rdma-ping-57: zABCDEFGHIJKLMNOP\x00"},
		{58, 30, "rdma-ping-58: ABCDEFGHIJKLMNO\x00"},
	} {
		b := make([]byte, c.size)
		fill(b, c.n)
		if got := string(b); got != c.want {
			t.Errorf("ping %d: %q, want %q", c.n, got, c.want)
		}
	}
}

func TestCheckNamesTheByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := make([]byte, rapid.IntRange(MinSize, MaxSize).Draw(t, "size"))
		n := rapid.IntRange(0, 1<<31-1).Draw(t, "ping")
		fill(b, n)
		if err := check(b, n); err != nil {
			t.Fatal(err)
		}
		i := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		b[i] ^= 1
		var d *DataError
		if err := check(b, n); !errors.As(err, &d) || d.At != i {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	})
}

func FuzzParseInfo(f *testing.F) {
	b := make([]byte, infoLen)
	info{transport.Remote{STag: 0x11223344, Off: 0x5566778899aabbcc}, 64}.put(b)
	f.Add(b)
	f.Add(make([]byte, infoLen))
	f.Add(b[:15])
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := parseInfo(b)
		if err != nil {
			return
		}
		back := make([]byte, infoLen)
		i.put(back)
		if string(back) != string(b) {
			t.Fatalf("%x becomes %x", b, back)
		}
		if i.size < 1 || i.size > MaxSize {
			t.Fatalf("size %d", i.size)
		}
	})
}

type served struct {
	res Result
	err error
}

// pair starts a server for one client on a fabric of twins.
func pair(t *testing.T, c Config) (dev transport.Device, addr string, done chan served) {
	t.Helper()
	a, b := transporttest.Twin()
	t.Cleanup(func() {
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	l, err := b.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, err := NewServer(b)
	if err != nil {
		t.Fatal(err)
	}
	done = make(chan served, 1)
	go func() {
		req, err := l.Accept(t.Context())
		if err != nil {
			done <- served{err: err}
			return
		}
		res, err := srv.Serve(t.Context(), req, c)
		done <- served{res, err}
	}()
	return a, l.Addr().String(), done
}

func TestClientAndServer(t *testing.T) {
	for _, size := range []int{MinSize, 64, 1450, 4096, MaxSize} {
		for _, serverCount := range []int{0, 20} {
			p := transport.ConnParams{ReadsIn: 1, ReadsOut: 1}
			dev, addr, done := pair(t, Config{Count: serverCount, Verify: true, Params: p})
			seen := 0
			res, err := Client(t.Context(), dev, addr, Config{Size: size, Count: 20, Params: p, OnPing: func(int, []byte) { seen++ }})
			if err != nil || res.Pings != 20 || seen != 20 || res.Bytes != int64(40*size) {
				t.Fatalf("client, size %d: %+v, %v", size, res, err)
			}
			if s := <-done; s.err != nil || s.res.Pings != 20 || s.res.Size != size {
				t.Fatalf("server, size %d: %+v, %v", size, s.res, s.err)
			}
		}
	}
}

func TestClientStopsWithItsContext(t *testing.T) {
	p := transport.ConnParams{ReadsIn: 1, ReadsOut: 1}
	dev, addr, done := pair(t, Config{Params: p})
	ctx, cancel := context.WithCancel(t.Context())
	res, err := Client(ctx, dev, addr, Config{Size: 64, Params: p, OnPing: func(n int, _ []byte) {
		if n == 5 {
			cancel()
		}
	}})
	if err != nil || res.Pings != 6 {
		t.Fatalf("%+v, %v", res, err)
	}
	if s := <-done; s.err != nil {
		t.Fatal(s.err)
	}
}

// badClient sends one message of the test's and returns how the server ends.
func badClient(t *testing.T, msg []byte) error {
	t.Helper()
	p := transport.ConnParams{ReadsIn: 1, ReadsOut: 1}
	dev, addr, done := pair(t, Config{Verify: true, Params: p})
	slab, err := register(dev, MaxSize)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSide(dev, slab, MaxSize)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.Dial(t.Context(), addr, s.QP, p); err != nil {
		t.Fatal(err)
	}
	out := mem.Span{Slab: slab, Len: len(msg)}
	copy(out.Bytes(), msg)
	if err := s.Do(t.Context(), transport.WR{Op: transport.OpSend, Local: []mem.Span{out}}); err != nil {
		t.Logf("send: %v", err)
	}
	// The client's engine runs in its owner's calls: it is here that the guess is found and refused.
	if _, _, err := s.Recv(t.Context()); err == nil {
		t.Error("the server answers")
	}
	select {
	case v := <-done:
		if err := s.finish(v.err); err != nil {
			t.Error(err)
		}
		return v.err
	case <-time.After(time.Minute):
		t.Fatal("the server does not end")
	}
	return nil
}

func TestServerRefusesWhatIsNoInfo(t *testing.T) {
	if err := badClient(t, []byte("short")); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("a short message: %v", err)
	}
	b := make([]byte, infoLen)
	info{transport.Remote{STag: 1}, MaxSize + 1}.put(b)
	if err := badClient(t, b); err == nil || !strings.Contains(err.Error(), "names 65536 bytes") {
		t.Errorf("too large a size: %v", err)
	}
}

func TestServerSurvivesAGuessedKey(t *testing.T) {
	b := make([]byte, infoLen)
	info{transport.Remote{STag: 0xdeadbeef, Off: 4096}, 64}.put(b)
	if err := badClient(t, b); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("a key nobody issued: %v", err)
	}
}

func TestCommandRefusesWrongFlags(t *testing.T) {
	for _, args := range [][]string{
		{"client", "--size", "25"}, {"client", "--size", "65536"}, {"client", "--crc", "auto"}, {"client", "--mpa-rev", "3"}, {"server", "--size", "64"},
	} {
		c := Command()
		c.SilenceErrors, c.SilenceUsage = true, true
		c.PersistentFlags().StringP("output", "o", "table", "")
		c.SetArgs(args)
		if err := c.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}
