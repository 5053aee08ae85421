package peerlog

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A burst of hosts does not make the log limiter grow, and a quiet host has its lines again.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, lines := observer.New(zapcore.DebugLevel)
		logs := New(zap.New(core), zap.New(core))
		for i := range 3 * maxHosts {
			logs.Of(&net.TCPAddr{IP: net.IPv4(10, byte(i>>16), byte(i>>8), byte(i)), Port: 1})
		}
		if n := len(logs.hosts); n > maxHosts {
			t.Fatalf("%d hosts", n)
		}
		l := logs.Of(&net.TCPAddr{IP: net.IPv4(10, 9, 9, 9), Port: 1})
		for range 100 {
			l.Warn("x")
		}
		if n := lines.FilterMessage("x").Len(); n != Burst {
			t.Fatalf("%d lines", n)
		}
		time.Sleep(Every)
		l.Warn("x")
		last := lines.FilterMessage("x").All()
		if len(last) != Burst+1 || last[Burst].ContextMap()["lines_suppressed"] != int64(100-Burst) {
			t.Fatalf("%v", last[len(last)-1].ContextMap())
		}
	})
}

func TestAHostOfIPv6IsItsNetwork(t *testing.T) {
	for addr, want := range map[string]string{"[2001:db8:1:2:3::4]:99": "2001:db8:1:2::/64", "192.0.2.7:99": "192.0.2.7", "[::ffff:192.0.2.7]:1": "192.0.2.7", "[fe80::1%eth0]:5": "fe80::/64"} {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := Host(a); got != want {
			t.Errorf("%s counts as %s", addr, got)
		}
	}
}
