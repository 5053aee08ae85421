package lock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/nlm4"
)

// host is a client that may hold locks.
type host struct {
	Name string `json:"name"` // as it calls itself in LOCK
	Addr string `json:"addr"`
}

// state is what survives a restart: a number that is odd while this side is up and grows with each life, and the clients
// to tell of it.
type state struct {
	mu    sync.Mutex
	path  string
	Num   uint32          `json:"state"`
	Hosts map[string]host `json:"hosts"`
}

// loadState reads the state, begins a new life, and returns the clients of the last one.
func loadState(dir string) (*state, []host, error) {
	s := &state{Num: 1, Hosts: make(map[string]host)}
	if dir == "" {
		return s, nil, nil
	}
	s.path = filepath.Join(dir, "nlm-state.json")
	b, err := os.ReadFile(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, nil, fmt.Errorf("lock: state directory: %w", err)
		}
	case err != nil:
		return nil, nil, fmt.Errorf("lock: state: %w", err)
	default:
		if err := json.Unmarshal(b, s); err != nil {
			return nil, nil, fmt.Errorf("lock: %s does not parse; without it clients are not told to reclaim their locks: %w", s.path, err)
		}
		s.Num = s.Num&^1 + 3
	}
	if s.Hosts == nil {
		s.Hosts = make(map[string]host)
	}
	var old []host
	for _, h := range s.Hosts {
		old = append(old, h)
	}
	return s, old, s.saveLocked()
}

func (s *state) number() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Num
}

// monitor adds a client, durably.
func (s *state) monitor(h host) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Hosts[h.Name] == h {
		return nil
	}
	if len(s.Hosts) >= maxHosts {
		return fmt.Errorf("lock: more than %d clients", maxHosts)
	}
	s.Hosts[h.Name] = h
	return s.saveLocked()
}

// is reports whether name is a client at addr.
func (s *state) is(name, addr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.Hosts[name]
	return ok && h.Addr == addr
}

// prune forgets clients that hold nothing.
func (s *state) prune(holders map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.Hosts {
		if !holders[name] {
			delete(s.Hosts, name)
		}
	}
	_ = s.saveLocked() // a client too many is told of a restart: harmless
}

// saveLocked writes the state aside and renames it into place.
func (s *state) saveLocked() error {
	if s.path == "" {
		return nil
	}
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("lock: state: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(s.path), ".nlm-*")
	if err != nil {
		return fmt.Errorf("lock: state: %w", err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), s.path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("lock: state: %w", err)
	}
	return nil
}

// notify tells a client of the last life that this one has begun, so that it reclaims its locks.
func (m *Manager) notify(h host) {
	addr, err := netip.ParseAddr(h.Addr)
	if err != nil {
		return
	}
	n := nlm4.Notify{Name: []byte(m.opt.Name), State: m.state.number()}
	if _, err := m.callBack(addr, nlm4.NSMProg, nlm4.NSMVers, nlm4.NSMProcNotify, n.Append(nil)); err != nil && m.ctx.Err() == nil {
		m.log.Warn("a client that held locks could not be told of the restart", zap.String("client", h.Name), zap.Error(err))
	}
}
