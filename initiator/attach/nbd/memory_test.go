package nbd

import (
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
)

// small is a volume whose pool is the least that there can be, and holds answers back until it is opened.
func small(t *testing.T) *ram {
	v := newRAM(t, 8<<20)
	if err := v.pool.Close(); err != nil {
		t.Fatal(err)
	}
	v.pool = mem.NewPool(1)
	return v
}

// Programs that ask for more than there is memory wait: no request is refused for want of it, on however many connections.
func TestRequestsBeyondTheMemoryWait(t *testing.T) {
	v := small(t)
	v.hold = make(chan struct{})
	dial := serve(t, v, Options{})
	const conns, each, size = 4, 48, 1 << 20
	var wg sync.WaitGroup
	begun := make(chan struct{}, conns)
	for range conns {
		c := dial()
		hello(t, c)
		wg.Go(func() {
			for i := range each {
				request(t, c, cmdRead, 0, uint64(i), 0, size, nil)
			}
			begun <- struct{}{}
			for range each {
				if e := errorOf(t, c); e != 0 {
					t.Errorf("a read of 1 MiB: %v", e)
				}
			}
			// Writes come one by one: their data are the client's backpressure.
			data := make([]byte, size)
			for i := range each {
				request(t, c, cmdWrite, 0, uint64(i), 0, size, data)
				if e := errorOf(t, c); e != 0 {
					t.Errorf("a write of 1 MiB: %v", e)
				}
			}
		})
	}
	for range conns {
		<-begun
	}
	close(v.hold)
	wg.Wait()
	most := v.pool.Stats().Max
	if used := v.pool.Stats().Mapped; used > most {
		t.Errorf("%d bytes of %d", used, most)
	}
}

// A client that does not read what it asked for waits alone, and what the volume itself needs is left.
func TestAClientThatDoesNotReadKeepsNobodyWaiting(t *testing.T) {
	v := newRAM(t, 40<<20) // a pool of 128 MiB
	dial := serve(t, v, Options{})
	var stuck []net.Conn
	for range 2 {
		c := dial()
		hello(t, c)
		for i := range slots {
			request(t, c, cmdRead, 0, uint64(i), 0, 4<<20, nil)
		}
		stuck = append(stuck, c)
	}
	defer func() {
		for _, c := range stuck {
			c.Close()
		}
	}()
	c := dial()
	hello(t, c)
	for i := range 16 {
		request(t, c, cmdRead, 0, uint64(i), 0, 64<<10, nil)
		if e := errorOf(t, c); e != 0 {
			t.Errorf("beside clients that do not read: %v", e)
		}
	}
	b, err := v.pool.Get(mem.MaxBuf)
	if err != nil {
		t.Fatalf("nothing is left for the volume: %v", err)
	}
	b.Release()
	if st := v.pool.Stats(); st.Used > st.Max/2 {
		t.Errorf("clients hold %d bytes of a pool of %d", st.Used, st.Max)
	}
}

// The length of a request that is taken is one that the pool can hold.
func TestARequestThatThePoolCannotHoldIsRefusedByItsLength(t *testing.T) {
	v := small(t)
	c := serve(t, v, Options{})()
	hello(t, c)
	request(t, c, cmdRead, 0, 1, 0, 8<<20, nil)
	if e := errorOf(t, c); e != unix.EOVERFLOW {
		t.Errorf("%v", e)
	}
}
