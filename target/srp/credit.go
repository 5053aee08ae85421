package srp

import (
	"time"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/transport"
)

// SRP_CRED_REQ returns credits that no response returns. An initiator answers it, so it is also how a silent one is asked whether it is there. One is under
// way at a time: an initiator has a receive for no more (Linux posts one beside those of its commands).
//
// A channel is reliable, so a request that has no answer was not lost, and repeating it helps nothing while the initiator is silent. But an initiator may lose
// its answer and live: ib_srp drops SRP_CRED_RSP where it has no free information unit to send it in, and takes the credits all the same. It has the receive
// again then. So a silent initiator is asked anew, if it has sent anything since it was asked last. Otherwise one answer that was dropped would end the channel
// the next time that it has nothing to do for as long as the peer timeout.

// mostUnanswered bounds the requests without an answer. Answers that come after all need receives, and one is for SRP_I_LOGOUT.
const mostUnanswered = spareReceives - 1

// askLocked sends SRP_CRED_REQ, if there are credits to return. It tries again with the next tick where it cannot.
func (c *channel) askLocked() {
	if c.owed > 0 && !c.askedLocked() {
		c.pingLocked()
	}
}

// askedLocked reports whether an SRP_CRED_REQ has no answer.
func (c *channel) askedLocked() bool { return c.asks != c.answers }

// anewLocked reports whether a silent initiator is to be asked, although it has not answered before.
func (c *channel) anewLocked() bool { return c.units != c.askedAt && c.asks-c.answers < mostUnanswered }

// pingLocked sends SRP_CRED_REQ.
func (c *channel) pingLocked() {
	if len(c.freeSend) == 0 || c.state != channelLive {
		return
	}
	c.asks++
	c.askedAt = c.units
	i := c.slotLocked()
	c.sendLocked(i, wire.PutCredReq(c.sendMem[i].Bytes(), c.grantLocked(), c.asks), nil)
}

// answered takes SRP_CRED_RSP, to the newest request or to one before it. It needed no credit: its receive is posted again with what is sent next, and others
// are left until then.
func (c *channel) answered(recv int, b []byte) error {
	tag, err := wire.ParseCredRsp(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if tag <= c.answers || tag > c.asks {
		return &wire.ProtocolError{Unit: wire.OpCredRsp, Reason: wire.LogoutUnasked, Detail: "an answer to a request that was not sent"}
	}
	c.units++
	c.answers = tag
	c.recvLocked(recv)
	return nil
}

func (c *channel) tickEvery() time.Duration { return max(c.srv.opt.Peer/4, time.Millisecond) }

// starveTicks ticks without any movement of data that waits end a channel: five quarters of the peer timeout, since the first may be short.
const starveTicks = 5

// tick runs four times in the peer timeout. It asks a silent initiator and ends a dead one, and one that holds memory and moves none of its data.
func (c *channel) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == channelDead {
		return
	}
	if c.units != c.lastUnits {
		c.lastUnits, c.quiet = c.units, 0
	} else {
		c.quiet++
	}
	moving := false
	for _, t := range c.tasks {
		moving = moving || t.move != moveNone
	}
	if moving && c.moved == c.lastMoved {
		c.stuck++
	} else {
		c.lastMoved, c.stuck = c.moved, 0
	}
	switch {
	case c.quiet >= 4 && c.askedLocked() && !c.anewLocked():
		c.killLocked(errSilent)
		return
	case c.stuck >= starveTicks:
		c.killLocked(errStarving)
		return
	case c.quiet >= 2:
		if !c.askedLocked() || c.anewLocked() {
			c.pingLocked()
		}
	default:
		c.askLocked()
	}
	c.kickLocked()
	if c.peak == 0 { // since the last tick: an idle channel needs no memory of its queues, nor its session of what it keeps for the next command
		c.owner.TrimLocked()
		if t, can := c.owner.QP.(transport.Trimmer); can {
			t.Trim()
		}
		go c.sess.quota.Trim() // not under the lock: what comes free may be what another waits for
	}
	c.peak = c.live
	c.ticker.Reset(c.tickEvery())
}
