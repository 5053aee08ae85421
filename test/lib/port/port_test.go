package port

import (
	"net"
	"strconv"
	"testing"
)

// A port is given once, is free, and is none that the kernel gives to others.
func TestAPortIsGivenOnceAndIsFree(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		n, err := Free()
		if err != nil {
			t.Fatal(err)
		}
		if seen[n] || n < first || n >= first+ports {
			t.Errorf("port %d, after %v", n, seen)
		}
		seen[n] = true
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n)))
		if err != nil {
			t.Errorf("port %d: %v", n, err)
			continue
		}
		l.Close()
	}
}
