// Package faults is a daemon among bad peers: it runs the real sluiced as a process and, one after the other, peers that
// break every rule of every layer. Beside them a good neighbour works and verifies its data.
//
// The tests ask that the daemon lives, that its memory stays bounded, that the peer is told what the specification says,
// and that the neighbour never notices. How fast the neighbour stays is a measurement and not a test:
//
//	go run ./test/suite/faults/neighbour
package faults

import (
	"context"
	"time"
)

// Rig is what a bad peer attacks.
type Rig struct {
	Addr   string // the portal, for both transports
	Target string
	LUN    uint16 // the victim's; the neighbour has another
	Blocks uint64 // of 512 bytes
}

// Peer is one way to misbehave.
type Peer struct {
	Name string
	// Run misbehaves once, and returns an error if the target's answer is not the one that the specification wants.
	Run func(ctx context.Context, r *Rig) error
}

const (
	// patience is how long a peer waits for what must come.
	patience = 60 * time.Second
	// sector is the logical block of the rig's volumes.
	sector = 512
)

// Peers are all of them.
func Peers() []Peer {
	var all []Peer
	for _, list := range [][]Peer{mpaPeers, fpduPeers, rdmapPeers, iserPeers, loginPeers, tcpPeers, floodPeers} {
		all = append(all, list...)
	}
	return all
}
