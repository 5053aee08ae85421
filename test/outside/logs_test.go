package outside_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
	"sluice.example/outside/sparse"
)

// collector is a slog.Handler that keeps messages, each with its attributes.
type collector struct {
	mu   sync.Mutex
	said []string
}

func (c *collector) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (c *collector) WithAttrs([]slog.Attr) slog.Handler           { return c }
func (c *collector) WithGroup(string) slog.Handler                { return c }
func (c *collector) Handle(_ context.Context, r slog.Record) error {
	s := r.Message
	r.Attrs(func(a slog.Attr) bool {
		s += " " + a.String()
		return true
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, s)
	return nil
}

// has reports whether one line has all words.
func (c *collector) has(words ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.said, func(s string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s, w) })
	})
}

func TestWhatATargetLogsArrivesAtAHandlerOfOnesOwn(t *testing.T) {
	disk, logs := sparse.New(1<<20), &collector{}
	d, err := serveBlocks(disk, nil, logs)
	must(t, err)
	addr, err := d.listen()
	must(t, err)
	v, err := block.Open(t.Context(), "iscsi://"+addr+"/"+target+"/0", block.Options{})
	must(t, err)
	must(t, v.Close())
	if _, err := block.Open(t.Context(), "iscsi://"+addr+"/iqn.2026-11.example.sluice:none/0", block.Options{}); !errors.Is(err, block.ErrNoTarget) {
		t.Error(err)
	}
	must(t, errors.Join(d.close(), disk.Close()))
	for _, words := range [][]string{{"session began", "initiator=", "target=" + target}, {"login refused", "remote=127.0.0.1:", "status=0203"}} {
		if !logs.has(words...) {
			t.Errorf("no line has %q: %q", words, logs.said)
		}
	}
}

func TestWhatAFileServerLogsArrivesAtAHandlerOfOnesOwn(t *testing.T) {
	logs := &collector{}
	f, err := serveFiles(t.TempDir(), logs)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f.runs.Go(func() { _ = f.srv.ServeTCP(l) })
	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	_, err = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	must(t, err)
	_, _ = io.Copy(io.Discard, c) // until the server hangs up
	must(t, c.Close())
	must(t, f.close())
	if !logs.has("an RPC connection ended", "peer=127.0.0.1:", "error=") {
		t.Errorf("it logs %q", logs.said)
	}
}
