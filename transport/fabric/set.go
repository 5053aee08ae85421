package fabric

import (
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-storage/sluice/transport"
)

// Set makes each device when it is asked for first, and closes them together. Its methods may be called by any goroutine.
type Set struct {
	Default string // the provider that no name stands for; empty is the default provider
	Options Options
	Say     func(line string) // hears what a device exposes beyond the bytes of each I/O; nil for nothing

	mu   sync.Mutex
	made map[made]transport.Device
}

// made is what was asked for.
type made struct{ provider, exposure string }

// Device returns a provider's device with an exposure; an empty word stands for the set's own. It stays the set's.
func (s *Set) Device(provider, exposure string) (transport.Device, error) {
	if provider == "" {
		provider = s.Default
	}
	if provider == "" {
		provider = Providers[0]
	}
	o := s.Options
	if exposure != "" {
		o.Exposure = exposure
	} else if provider != Verbs {
		o.Exposure = "" // the set's is for its adapters
	}
	if provider != Verbs {
		o.AckTimeout = 0 // likewise
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	what := made{provider, o.Exposure}
	if d := s.made[what]; d != nil {
		return d, nil
	}
	d, err := New(provider, o)
	if err != nil {
		return nil, err
	}
	if s.made == nil {
		s.made = make(map[made]transport.Device)
	}
	s.made[what] = d
	if s.Say != nil {
		for _, line := range Exposed(d) {
			s.Say(line)
		}
	}
	return d, nil
}

// Close closes what was made.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, d := range s.made {
		errs = append(errs, d.Close())
	}
	s.made = nil
	return errors.Join(errs...)
}

// Exposed says in a line for each adapter of d what peers may reach of this process beyond the bytes of each I/O.
func Exposed(d transport.Device) []string {
	var lines []string
	if x, is := d.(transport.Adapters); is {
		for _, a := range x.Adapters() {
			if a.WholeSlabs || a.OpenSinks {
				lines = append(lines, fmt.Sprintf("exposure %s: a peer that is reached through the adapter %s may read and write all registered memory of this process", WholeSlab, a.Name))
			}
		}
	}
	return lines
}
