package fabric

import (
	"errors"
	"sync"

	"github.com/sluice-storage/sluice/transport"
)

// Set makes each provider's device when it is asked for first, and closes them together. Its methods may be called by any
// goroutine.
type Set struct {
	Default string // the provider that no name stands for; empty is the default provider
	Options Options

	mu   sync.Mutex
	made map[string]transport.Device
}

// Device returns a provider's device. It stays the set's.
func (s *Set) Device(provider string) (transport.Device, error) {
	if provider == "" {
		provider = s.Default
	}
	if provider == "" {
		provider = Providers[0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.made[provider]; d != nil {
		return d, nil
	}
	d, err := New(provider, s.Options)
	if err != nil {
		return nil, err
	}
	if s.made == nil {
		s.made = make(map[string]transport.Device)
	}
	s.made[provider] = d
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
