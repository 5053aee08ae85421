package lock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/savefile"
	"github.com/sluice-storage/sluice/target/filesystem/filelock"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// host is a client that may hold locks.
type host struct {
	Name  string     `json:"name"` // as it calls itself in LOCK
	Addr  netip.Addr `json:"addr"`
	Local netip.Addr `json:"local,omitzero"` // of this side, as the client knows it
	life  uint32     // the client's own NSM state, as far as it told; it changes when the client restarts
	busy  int        // calls that are about to give it a lock
}

func (h *host) id() filelock.Client { return clientOf(h.Name, h.Addr) }

// state is what survives a restart: a number that is odd while this side is up and grows with each life, and the clients
// to tell of it.
type state struct {
	mu    sync.Mutex
	path  string
	num   uint32
	hosts map[filelock.Client]*host
}

// stateFile is the state as it is stored. The map's keys mean nothing.
type stateFile struct {
	Num   uint32          `json:"state"`
	Hosts map[string]host `json:"hosts"`
}

// loadState reads the state, begins a new life, and returns the clients of the last one.
func loadState(dir string) (*state, []host, error) {
	s := &state{num: 1, hosts: make(map[filelock.Client]*host)}
	if dir == "" {
		return s, nil, nil
	}
	s.path = filepath.Join(dir, "nlm-state.json")
	b, err := os.ReadFile(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := savefile.MkdirAll(dir); err != nil {
			return nil, nil, fmt.Errorf("lock: state directory: %w", err)
		}
	case err != nil:
		return nil, nil, fmt.Errorf("lock: state: %w", err)
	default:
		var f stateFile
		if err := json.Unmarshal(b, &f); err != nil {
			return nil, nil, fmt.Errorf("lock: %s does not parse; without it clients are not told to reclaim their locks: %w", s.path, err)
		}
		s.num = f.Num&^1 + 3
		for _, h := range f.Hosts {
			s.hosts[h.id()] = &h
		}
	}
	var old []host
	for _, h := range s.hosts {
		old = append(old, *h)
	}
	return s, old, s.saveLocked()
}

func (s *state) number() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.num
}

// errFull says that there is no room for another client.
var errFull = fmt.Errorf("lock: more than %d clients", maxHosts)

// monitor adds a client, durably, and keeps it until done: it is about to get a lock. life is its NSM state as it says, 0
// if it does not.
func (s *state) monitor(h host, life uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer rpcserver.Guard()
	old := s.hosts[h.id()]
	switch {
	case old != nil && old.Local == h.Local:
		if life != 0 {
			old.life = life
		}
		old.busy++
		return nil
	case old != nil:
		h.busy = old.busy
		if life == 0 {
			life = old.life
		}
	case len(s.hosts) >= maxHosts:
		return errFull
	}
	h.life = life
	s.hosts[h.id()] = &h
	if err := s.saveLocked(); err != nil {
		// It gets no lock, now or when it asks again and is still not on the disk.
		if delete(s.hosts, h.id()); old != nil {
			s.hosts[h.id()] = old
		}
		return err
	}
	h.busy++
	return nil
}

// done ends what monitor began: the client has its lock, or did not get it.
func (s *state) done(id filelock.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosts[id]; h != nil {
		h.busy--
	}
}

// restarted returns which clients an SM_NOTIFY from addr is about. Only the client itself may say so: it has to come from
// where the locks came from, and name is the one that they were taken under, its first part, or the address.
//
// A notification comes again until it is answered, and may be late: what it says is news only once (C702 section 11.2.1),
// and locks taken since stay.
func (s *state) restarted(name string, addr netip.Addr, life uint32) map[filelock.Client]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	short, _, _ := strings.Cut(name, ".")
	got := make(map[filelock.Client]bool)
	for id, h := range s.hosts {
		mine, _, _ := strings.Cut(id.Name, ".")
		if id.Addr != addr || mine != short && name != addr.String() || life != 0 && h.life == life {
			continue
		}
		h.life = life
		got[id] = true
	}
	return got
}

// prune forgets clients that hold nothing. A client is busy before it holds something, so holders are asked for while no
// client becomes so.
func (s *state) prune(holders func() map[filelock.Client]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer rpcserver.Guard()
	hold := holders()
	for id, h := range s.hosts {
		if !hold[id] && h.busy == 0 {
			delete(s.hosts, id)
		}
	}
	_ = s.saveLocked() // a client too many is told of a restart: harmless
}

func (s *state) saveLocked() error {
	if s.path == "" {
		return nil
	}
	d := stateFile{Num: s.num, Hosts: make(map[string]host)}
	for id, h := range s.hosts {
		d.Hosts[id.Name+" "+id.Addr.String()] = *h
	}
	b, err := json.Marshal(&d)
	if err == nil {
		err = savefile.Replace(s.path, b)
	}
	if err != nil {
		return fmt.Errorf("lock: state: %w", err)
	}
	return nil
}

// notify tells a client of the last life that this one has begun, so that it reclaims its locks. It is tried as long as
// that is of use to the client: until the end of grace.
func (m *Manager) notify(h host) {
	n := nlm4.Notify{Name: []byte(m.opt.Name), State: m.state.number()}
	var err error
	for m.InGrace() && m.ctx.Err() == nil {
		if _, err = m.callBack(m.notices, h.Local, h.Addr, nlm4.NSMProg, nlm4.NSMVers, nlm4.NSMProcNotify, n.Append(nil)); err == nil {
			return
		}
	}
	if m.ctx.Err() == nil {
		m.log.Warn("a client that held locks could not be told of the restart", zap.String("client", h.Name), zap.Stringer("address", h.Addr), zap.Error(err))
	}
}
