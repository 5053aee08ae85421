package rpcserver

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// Peer is who called. One Peer serves all calls of a connection.
type Peer struct {
	Addr  netip.AddrPort // port 0 over RDMA
	Local netip.AddrPort
	RDMA  bool
	UDP   bool

	process *transport.Process // of this host, by the kernel's word; nil where nothing is known

	memo  atomic.Pointer[any]
	shown atomic.Pointer[time.Time] // until when its right counts that a program has found last
	slots atomic.Int32
	state *connState // nil for what is no connection
}

// Trust notes that a program has found a right of this peer's. That counts for a while: a program is to say it again while the peer
// makes use of it.
func (p *Peer) Trust() {
	now := time.Now()
	if was := p.shown.Load(); was != nil && now.Add(trustTime-trustAgain).Before(*was) {
		return
	}
	until := now.Add(trustTime)
	if p.shown.Swap(&until) == nil && p.state != nil && p.state.proved != nil {
		p.state.proved()
	}
}

// trusted reports whether a right has been found lately.
func (p *Peer) trusted() bool { return lasts(p.shown.Load()) }

func lasts(until *time.Time) bool { return until != nil && time.Now().Before(*until) }

// Slots is how many calls the peer may have in flight on its connection as things are, 0 for what is no connection.
func (p *Peer) Slots() int { return int(p.slots.Load()) }

// Host is the peer's address.
func (p *Peer) Host() netip.Addr { return p.Addr.Addr() }

// Memo is the program's to use: what it decided about this peer.
func (p *Peer) Memo() *atomic.Pointer[any] { return &p.memo }

// HostMemo is as Memo, and shared by all connections of the peer's host while there are some; nil for what is no connection.
func (p *Peer) HostMemo() *atomic.Pointer[any] {
	if p.state == nil {
		return nil
	}
	return &p.state.host.memo
}

// Privileged reports whether the peer's port is one that only root may use. A fabric hides the port; its peers count as
// privileged, as with knfsd. A process of this host is so if it is root's.
func (p *Peer) Privileged() bool {
	if p.process != nil {
		return p.process.UID == 0
	}
	return p.RDMA || p.Addr.Port() < 1024
}

// mayBe reports whether the peer may call as a user. Others are believed, as AUTH_SYS has it; of a process of this host the kernel knows better.
func (p *Peer) mayBe(who *Sys) bool {
	if p.process == nil {
		return true
	}
	if !p.process.May(who.UID, who.GID) {
		return false
	}
	for _, g := range who.Groups[:who.NGroups] {
		if !p.process.In(g) {
			return false
		}
	}
	return true
}
