package iscsi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

type portalEntry struct {
	Portal
	addr net.Addr
	stop func()
}

// Serve accepts connections of both transports from l until the context ends or Close; it closes l. It returns nil then
// and the listener's error otherwise.
func (s *Server) Serve(ctx context.Context, l net.Listener, p Portal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := &portalEntry{Portal: p, addr: l.Addr(), stop: cancel}
	if err := s.addPortal(e); err != nil {
		_ = l.Close()
		return err
	}
	defer s.removePortal(e)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		nc, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() || isTooManyFiles(err) {
				s.opt.Log.Warn("accept failed; is the limit on open files too low?", zap.Error(err))
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
				continue
			}
			return err
		}
		s.accept(ctx, nc, s.portal(e))
	}
}

// accept runs one connection of a byte-stream listener.
func (s *Server) accept(ctx context.Context, nc net.Conn, p Portal) {
	c := s.newConn(ctx, nc.LocalAddr(), nc.RemoteAddr(), p)
	x := newTCPDatamover(c, nc)
	c.datamover = x
	if !s.admit(c) {
		_ = nc.Close()
		c.cancel()
		return
	}
	go func() {
		defer s.wg.Done()
		x.run()
	}()
}

// ServeRDMA accepts iSER connections from a fabric's listener until the context ends or Close; it closes l.
func (s *Server) ServeRDMA(ctx context.Context, d transport.Device, l transport.Listener, p Portal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own := d.Caps().Memory == mem.Shared
	if !own {
		if err := s.register(d); err != nil {
			_ = l.Close()
			return err
		}
	}
	e := &portalEntry{Portal: p, addr: l.Addr(), stop: cancel}
	if err := s.addPortal(e); err != nil {
		_ = l.Close()
		return err
	}
	defer s.removePortal(e)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		peer := r.Peer()
		c := s.newConn(ctx, peer.Local, peer.Remote, s.portal(e))
		x := newISERDatamover(c, d)
		c.datamover = x
		if !s.admit(c) {
			_ = r.Reject(nil)
			c.cancel()
			continue
		}
		if own {
			if err := c.ownMemory(d); err != nil {
				c.plog.Warn("connection refused: there is no room for memory of its own; is `memory` too small?", zap.Stringer("remote", c.remote), zap.Error(err))
				_ = r.Reject(nil)
				c.finish(err)
				s.wg.Done()
				continue
			}
		}
		go func() {
			defer s.wg.Done()
			x.run(r)
		}()
	}
}

func (s *Server) addPortal(e *portalEntry) error {
	if e.Group == 0 {
		return errors.New("iscsi: a portal needs a group tag from 1 to 65535")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.portals = append(s.portals, e)
	s.tellISNSLocked()
	s.changed.RingLocked()
	s.wg.Add(1)
	return nil
}

// portal is what a new connection of a listener comes by.
func (s *Server) portal(e *portalEntry) Portal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.Portal
}

// UpdatePortal gives the portal that listens on addr another group or another address to advertise. It waits for a
// portal whose Serve has only just been called. Sessions keep the group that they logged in by; discovery, new logins
// and the iSNS server learn of the new one.
func (s *Server) UpdatePortal(ctx context.Context, addr net.Addr, p Portal) error {
	if p.Group == 0 {
		return errors.New("iscsi: a portal needs a group tag from 1 to 65535")
	}
	found := false
	err := s.changed.Wait(ctx, func() bool {
		for _, e := range s.portals {
			if e.addr.String() == addr.String() || e.Beside != nil && e.Beside.String() == addr.String() {
				beside := e.Beside
				e.Portal, found = p, true
				e.Beside = beside
				s.tellISNSLocked()
			}
		}
		return found || s.closed
	})
	switch {
	case err != nil:
		return fmt.Errorf("iscsi: no portal listens on %s: %w", addr, err)
	case !found:
		return ErrClosed
	}
	return nil
}

func (s *Server) removePortal(e *portalEntry) {
	s.mu.Lock()
	for i, o := range s.portals {
		if o == e {
			s.portals = append(s.portals[:i], s.portals[i+1:]...)
			break
		}
	}
	s.tellISNSLocked()
	s.mu.Unlock()
	s.wg.Done()
}

func (s *Server) newConn(ctx context.Context, local, remote net.Addr, p Portal) *conn {
	c := &conn{srv: s, memory: s.opt.Memory, portal: p, local: local, remote: remote, plog: s.logs.Of(remote), began: time.Now(), statSN: 1}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.rec.Note("connection from %s to %s", remote, local)
	return c
}

// ownMemory gives a connection a pool of its own, of the server's bound: its peer can read all that the pool's slabs hold, and may go on
// to when the connection has ended (transport.Caps.Memory).
func (c *conn) ownMemory(d transport.Device) error {
	p, err := c.srv.opt.Memory.Apart(c.srv.opt.Limits.SessionMemory, d.Caps().Memory)
	if err != nil {
		return err
	}
	if err := p.OnSlab(d); err != nil {
		return errors.Join(err, p.Close())
	}
	c.memory = p
	return nil
}

// dropMemory is called when nothing of the connection asks for memory any more.
func (c *conn) dropMemory() {
	if c.memory != c.srv.opt.Memory {
		c.memory.Retire()
	}
}
