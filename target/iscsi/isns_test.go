package iscsi

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/target/iscsi/isns"
)

// fakeISNS says yes to everything and hands on what it was told.
func fakeISNS(t *testing.T) (string, chan []byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	got := make(chan []byte, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			var h [12]byte
			if _, err := io.ReadFull(nc, h[:]); err == nil {
				b := make([]byte, binary.BigEndian.Uint16(h[4:]))
				if _, err := io.ReadFull(nc, b); err == nil {
					got <- append(h[2:4:4], b...)
					h[2] |= 0x80
					binary.BigEndian.PutUint16(h[4:], 4)
					binary.BigEndian.PutUint16(h[6:], 0x4c00)
					_, _ = nc.Write(append(h[:], 0, 0, 0, 0))
				}
			}
			nc.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String(), got
}

func TestISNSFollowsTheTargets(t *testing.T) {
	addr, got := fakeISNS(t)
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.srv.RegisterISNS(ctx, isns.Options{Server: addr, Entity: "here"}) }()
	next := func(fn byte, has bool, name string) {
		t.Helper()
		for {
			select {
			case m := <-got:
				if m[1] == fn && bytes.Contains(m, []byte(name)) == has {
					return
				}
			case <-time.After(patience):
				t.Fatalf("no message %d (%q: %v)", fn, name, has)
			}
		}
	}
	next(1, true, testTarget)
	must(t, f.srv.AddTarget(Target{Name: otherTarget, SCSI: f.st}))
	next(1, true, otherTarget)
	must(t, f.srv.RemoveTarget(t.Context(), otherTarget))
	next(1, false, otherTarget)
	cancel()
	next(4, true, testTarget)
	must(t, <-done)
}
