// Package port finds TCP ports for programs that take a number and no listener, and for those that come back to theirs.
package port

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports lie below those that the kernel gives to sockets that connect or listen at any (ip_local_port_range, ip(7)): between this call and
// the program's own, and while that is away, another program does not get one by chance.
const first, ports = 15000, 16000

// kept are what keeps others who call Free from the ports of this process: names that go with it.
var (
	mu   sync.Mutex
	kept []net.Listener
)

// Free finds a port that nothing listens at, and keeps it for this process.
func Free() (int, error) {
	var errs []error
	for range 1000 {
		n := first + rand.IntN(ports)
		k, err := net.Listen("unix", fmt.Sprintf("@sluice-test-port-%d", n))
		if err != nil {
			errs = append(errs, err) // another's
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", n))
		if err != nil {
			errs = append(errs, errors.Join(err, k.Close()))
			continue
		}
		if err := l.Close(); err != nil {
			return 0, errors.Join(err, k.Close())
		}
		mu.Lock()
		defer mu.Unlock()
		kept = append(kept, k)
		return n, nil
	}
	return 0, errors.Join(errs...)
}

// Loopback is an address of this machine alone at a port of Free.
func Loopback() (string, error) {
	n, err := Free()
	return fmt.Sprintf("127.0.0.1:%d", n), err
}
