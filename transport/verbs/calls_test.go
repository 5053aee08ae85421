package verbs

import (
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// To park costs an owner one arming of its queue and one reading of its channel, which are system calls; to wait for what is there
// already costs it none.
func TestAParkingCostsOneArmingAndOneEvent(t *testing.T) {
	s, a, b := connected(t, "mlx5", Options{})
	kernel := map[string]int{}
	s.mu.Lock()
	s.fail = func(call string) error {
		if call == "Arm" || call == "Events" {
			kernel[call]++
		}
		return nil
	}
	s.mu.Unlock()
	send := transport.WR{Op: transport.OpSend, Token: 3, Local: []mem.Span{b.at(0, 16)}}
	const parkings = 5
	for i := range uint64(parkings) {
		a.mustRecv(i, a.at(0, 64))
		a.mustRecv(i, a.at(64, 64))
		got := a.parkedNext()
		b.mustPost(send)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		b.mustPost(send)
		if err := a.qp.Wait(t.Context()); err != nil { // there is something
			t.Fatal(err)
		}
		a.must(transport.OpRecv, i)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if kernel["Arm"] > parkings || kernel["Events"] > parkings {
		t.Errorf("%d parkings cost %v", parkings, kernel)
	}
	s.fail = nil
}
