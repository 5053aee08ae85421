package srp

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/sluice-storage/sluice/target/scsi"
)

// Target is what the ports of one target serve. A target that asks initiators for a proof has no place here: SRP has none.
type Target struct {
	Name string
	SCSI *scsi.Target
	// Initiators, when not nil, lists the initiator ports that may log in.
	Initiators []Initiator
}

// Initiator is one entry of an access list.
type Initiator struct {
	Port scsi.SRPPort
	LUNs []uint16 // what it sees; nil for all, those that come later too
}

// TargetPort is the identifier of a target's port behind a portal of a group. The GUID is made of the target's name, as a local EUI-64; the extension is
// the group. So it is the same after each start and on each machine, as the name is.
func TargetPort(target string, group uint16) (p scsi.SRPPort) {
	sum := sha256.Sum256([]byte("SRP target port of " + target))
	binary.BigEndian.PutUint16(p[6:], group)
	copy(p[8:], sum[:])
	p[8] = p[8]&^1 | 2
	return p
}

// allow looks a port up in the access list: whether it may log in, and to which LUNs; nil for all.
func (t *Target) allow(p scsi.SRPPort) (luns []uint16, ok bool) {
	if t.Initiators == nil {
		return nil, true
	}
	for _, i := range t.Initiators {
		if i.Port == p {
			return i.LUNs, true
		}
	}
	return nil, false
}

func (t *Target) check() error {
	if t.Name == "" || t.SCSI == nil {
		return fmt.Errorf("srp: target %q has no name or no logical units", t.Name)
	}
	return nil
}

// AddTarget makes a target known to logins.
func (s *Server) AddTarget(t Target) error {
	if err := t.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.targets[t.Name] != nil:
		return ErrTargetKnown
	}
	s.targets[t.Name] = &t
	return nil
}

// UpdateTarget replaces the access list of a target. Sessions of initiators that may no longer log in end; what others see follows their new entry.
func (s *Server) UpdateTarget(t Target) error {
	if err := t.check(); err != nil {
		return err
	}
	s.mu.Lock()
	old := s.targets[t.Name]
	if old == nil {
		s.mu.Unlock()
		return ErrNoTarget
	}
	s.targets[t.Name] = &t
	drop := s.channelsLocked(func(c *channel) bool {
		if c.sess == nil || c.sess.key.target != t.Name {
			return false
		}
		_, ok := t.allow(c.initiator())
		return !ok || t.SCSI != old.SCSI
	})
	s.mu.Unlock()
	for _, c := range drop {
		c.leave(errRemoved)
	}
	t.SCSI.RefreshVisible()
	return nil
}

// RemoveTarget takes a target away and ends its sessions; it returns when their last command has ended.
func (s *Server) RemoveTarget(ctx context.Context, name string) error {
	s.mu.Lock()
	if s.targets[name] == nil {
		s.mu.Unlock()
		return ErrNoTarget
	}
	delete(s.targets, name)
	drop := s.channelsLocked(func(c *channel) bool { return c.sess != nil && c.sess.key.target == name })
	s.mu.Unlock()
	for _, c := range drop {
		c.leave(errRemoved)
	}
	return s.wait(ctx, func() bool {
		for k := range s.sessions {
			if k.target == name {
				return false
			}
		}
		return true
	})
}

// targetOf finds the target that a login names, by the group that it came in by; nil where there is none.
func (s *Server) targetOf(p scsi.SRPPort, group uint16) *Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, t := range s.targets {
		if TargetPort(name, group) == p {
			return t
		}
	}
	return nil
}

// visible says whether an initiator port sees a LUN, by the access list as it is now.
func (s *Server) visible(target string, p scsi.SRPPort, lun uint16) bool {
	s.mu.Lock()
	t := s.targets[target]
	s.mu.Unlock()
	if t == nil {
		return false
	}
	luns, ok := t.allow(p)
	return ok && (luns == nil || slices.Contains(luns, lun))
}
