package verbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// A time becomes the shortest one that an adapter has and that is not below it; never the power of 0, which is no timer at all.
func TestATimeForAcknowledgementsIsRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]uint8{
		0: 0, 1: 1, 4096: 1, 8192: 1, 8193: 2, 16384: 2, 10 * time.Millisecond: 12, 67108864: 14, 67108865: 15,
		500 * time.Millisecond: 17, 536870912: 17, time.Second: 18, MaxAckTimeout: 31,
	} {
		got, err := ackBits(d)
		if err != nil || got != want || d != 0 && (ackUnit<<got < d || got > 1 && ackUnit<<(got-1) >= d) {
			t.Errorf("%s: %d, %v, want %d", d, got, err, want)
		}
	}
	for _, d := range []time.Duration{-1, MaxAckTimeout + 1} {
		var bad *AckTimeoutError
		if _, err := ackBits(d); !errors.As(err, &bad) || !strings.Contains(err.Error(), d.String()) {
			t.Errorf("%s: %v", d, err)
		}
		if _, err := open(newSim(t), Options{AckTimeout: d}); !errors.As(err, &bad) {
			t.Errorf("Open with %s: %v", d, err)
		}
	}
}

// Both ends have the time that was configured, and else the connection manager's; iWARP has TCP's. The model refuses it where the
// peer's adapter has been told another.
func TestBothEndsOfAConnectionTimeAcknowledgements(t *testing.T) {
	for _, c := range []struct {
		kind string
		time time.Duration
		want uint8
	}{
		{"mlx5", 0, 0}, {"rxe", 0, 0}, {"rxe", 60 * time.Millisecond, 14}, {"bnxt", time.Second, 18}, {"siw", 0, 0}, {"siw", 60 * time.Millisecond, 0},
	} {
		s, a, b := twoEnds(t, c.kind, Options{AckTimeout: c.time})
		x, y := newSide(t, a), newSide(t, b)
		x.newQP(transport.QPOptions{Sends: 8, Recvs: 8})
		y.newQP(transport.QPOptions{Sends: 8, Recvs: 8})
		if err := join(x, y, "10.0.0.2:0"); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		s.mu.Lock()
		if s.acks != [2]uint8{c.want, c.want} {
			t.Errorf("%+v: %d", c, s.acks)
		}
		s.mu.Unlock()
	}
}

// A kernel that does not know the option connects as it always did, and says so where a time is configured, when the device is opened.
func TestAKernelWithoutTimesForAcknowledgementsIsToldOfOnlyWhereOneIsConfigured(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	s.add("two", "mlx5", "10.0.0.2")
	s.fail = func(call string) error {
		if call == "SetAckTimeout" {
			return failed(libCM, "rdma_set_option", -int(syscall.ENOSYS))
		}
		return nil
	}
	var ends [2]*side
	for i, name := range []string{"one", "two"} {
		d, err := open(s, Options{Devices: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		ends[i] = newSide(t, d)
		ends[i].newQP(transport.QPOptions{Sends: 8, Recvs: 8})
	}
	if err := join(ends[0], ends[1], "10.0.0.2:0"); err != nil {
		t.Error(err)
	}
	d, err := open(s, Options{Devices: []string{"one"}, AckTimeout: 60 * time.Millisecond})
	var old *AckTimeoutError
	if !errors.As(err, &old) || !errors.Is(err, syscall.ENOSYS) || !strings.Contains(err.Error(), "leave it out") {
		t.Errorf("a time that cannot be set: %v", err)
	}
	if err == nil {
		_ = d.Close()
	}
}
