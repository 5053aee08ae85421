package iscsi

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/flight"
	"github.com/sluice-storage/sluice/target/peerlog"
	"github.com/sluice-storage/sluice/target/scsi"
)

// conn is one connection, and, with MaxConnections=1, the live part of a session.
type conn struct {
	srv           *Server
	portal        Portal
	local, remote net.Addr
	plog          *peerlog.Peer
	datamover     datamover
	iser          bool
	memory        *mem.Pool       // the server's, or this connection's own
	ctx           context.Context // ends with the connection
	cancel        context.CancelFunc
	began         time.Time
	loginTimer    *time.Timer
	counted       string        // its host, while it counts against limits; guarded by Server.mu
	received      atomic.Uint64 // PDUs, for the keepalive
	bulkOut       atomic.Int32  // R2Ts for much data that are not answered
	placed        atomic.Uint64 // times that data came for a move

	// The owner's.
	held    bool // it holds mu
	login   *login
	text    []byte // rest of a long text answer
	textTTT uint32
	textIn  *iscsi.Negotiator

	// Set when login ends, read-only after.
	params    iscsi.Params
	discovery bool
	initiator string
	target    *targetEntry
	sess      *session
	nexus     *scsi.Nexus
	quota     *mem.Quota

	mu       sync.Mutex
	state    connState
	killErr  error
	corked   bool
	statSN   uint32
	expCmdSN uint32
	maxCmdSN uint32

	window    int                    // how many commands may be in progress now
	active    int                    // non-immediate commands in progress
	immediate int                    // immediate ones, task management included
	managing  []uint32               // tags of task management requests that are not answered yet
	logouts   []iscsi.LogoutResponse // to be sent when the tasks have ended
	peak      int                    // most active, or taken in one batch, since the last tick
	burst     int                    // taken in the batch under way
	edge      uint32                 // MaxCmdSN when the batch under way was begun
	control   int                    // queued PDUs that no window bounds
	unsent    int                    // SCSI responses that have not left, as far as is known
	behind    int                    // of them, how many may have left and complete behind a Read (transport, rule 4)
	unasked   unasked
	tasks     []*task
	itts      []uint32 // initiator task tags of tasks, side by side: each command is looked up once
	free      []*task
	live      int // tasks not free
	stash     int // bytes of unsolicited data parked
	drained   func()

	ticker   *time.Timer
	lastRx   uint64
	pinged   bool // a NOP-In of ours waits for its answer
	idleTick int
	wrote    uint64 // times that queued data left
	stall    stall
	quiet    int // ticks of a discovery session since it asked something
	nopTTT   uint32
	stats    counters
	rec      flight.Recorder
}

// counters of one session; guarded by conn.mu.
type counters struct {
	commands, bytesIn, bytesOut, copied, rejects uint64
}

// kill ends the connection; the first reason counts. Any goroutine.
func (c *conn) kill(err error) {
	c.mu.Lock()
	if c.killErr == nil {
		c.killErr = err
	}
	l := c.datamover
	c.mu.Unlock()
	c.cancel()
	l.close(err)
}

// kick flushes unless the owner will do it anyway.
func (c *conn) kickLocked() {
	if !c.corked {
		c.datamover.flushLocked()
	}
}

// uncork is called by the owner before it waits for input.
func (c *conn) uncork() {
	c.hold()
	c.corked = false
	c.datamover.flushLocked()
	c.letGo()
}

func (c *conn) cork() {
	c.hold()
	c.corked = true
	c.edge, c.burst = c.maxCmdSN, 0
	c.letGo()
}

// fullLocked ends the login: session, nexus and numbers are in place.
func (c *conn) fullLocked(cmdSN uint32) {
	connLife.Move(&c.state, stateFull)
	c.window = c.datamover.windowLocked(c.floorLocked())
	c.expCmdSN, c.maxCmdSN = cmdSN, cmdSN-1
	if c.loginTimer != nil {
		c.loginTimer.Stop()
	}
	c.ticker = time.AfterFunc(c.tickEvery(), c.tick)
}
