// Package transporttest holds what every provider of package transport is tried with: the conformance suite (Run), an
// in-memory fabric that keeps every rule (Twin, NewNetwork), and a wrapper that breaks any device on purpose (Faulty).
package transporttest

import (
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Pair is what a provider gives the suite: two devices that reach one another. They may be one and the same.
type Pair struct {
	Dialer, Listener transport.Device
	Addr             string // what the listener listens on, as "127.0.0.1:0"
	Addr6            string // the same in IPv6; "" leaves that case out
}

// Run tries every rule of package transport's comment on a provider, a case a rule. open makes a fresh pair and
// leaves its end to t.Cleanup; it is called once a case, and once before. A case that needs a power the device's Caps deny is
// skipped, and names the power.
func Run(t *testing.T, open func(t testing.TB) Pair) {
	t.Helper()
	// Not a case of its own, so that -run may choose one.
	p := open(t)
	caps := p.Dialer.Caps()
	if caps.MaxSGE < 1 || caps.MaxBindSGE < 1 || caps.MaxMessage < 1<<20 || caps.MaxReads < 1 || caps.MaxPrivate < 8 {
		t.Fatalf("a fabric this poor carries neither iSER nor NFS: %+v", caps)
	}
	if p.Dialer.Name() == "" || p.Dialer.Name() != p.Listener.Name() {
		t.Fatalf("names %q and %q", p.Dialer.Name(), p.Listener.Name())
	}
	for _, c := range cases {
		if c.name == "IPv6" && p.Addr6 == "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for _, w := range c.needs {
				if !w.has(caps) {
					t.Skipf("Caps.%s is false on %s", w.name, p.Dialer.Name())
				}
			}
			s := &scene{TB: t, caps: caps}
			// Slabs outlive the devices: cleanups run last in, first out.
			s.slabs[0], s.slabs[1] = s.slab(c.memory), s.slab(c.memory)
			s.pair = open(t)
			c.run(s)
		})
	}
}

// kase is one rule on trial.
type kase struct {
	name   string
	memory int // bytes of slab each end has; 0 takes caseMemory
	needs  []power
	run    func(*scene)
}

// power is a field of Caps that a case needs.
type power struct {
	name string
	has  func(transport.Caps) bool
}

var (
	perIO      = power{"PerIOWindows", func(c transport.Caps) bool { return c.PerIOWindows }}
	exact      = power{"ExactWindows", func(c transport.Caps) bool { return c.ExactWindows }}
	random     = power{"RandomSTags", func(c transport.Caps) bool { return c.RandomSTags }}
	remoteInv  = power{"RemoteInv", func(c transport.Caps) bool { return c.RemoteInv }}
	terminates = power{"Terminates", func(c transport.Caps) bool { return c.Terminates }}
)

const caseMemory = 8 << 20

var cases = []kase{
	// Set-up.
	{name: "private data goes both ways", run: privateData},
	{name: "private data that is too long is refused", run: privateTooLong},
	{name: "read depths are what both sides can", run: depths},
	{name: "a depth of zero allows no Read", run: depthZero},
	{name: "reject carries private data and closes the dialler", run: reject},
	{name: "dial to nobody fails and closes the queue pair", run: dialNobody},
	{name: "dial ends with its context", run: dialCancelled},
	{name: "accept ends with its context", run: acceptCancelled},
	{name: "a request that a closed queue pair accepts is refused", run: acceptClosed},
	{name: "a closed listener ends accept", run: listenerClosed},
	{name: "IPv6", run: ipv6},
	{name: "a slim queue pair has the memory that it uses", run: slimMemory},
	{name: "wait ends with its context and harms nothing", run: waitCancelled},

	// Order and completions.
	{name: "sends arrive in order", run: sendOrder},
	{name: "many goroutines post", run: manyPosters},
	{name: "a write is in place before the send that follows it", run: writeThenSend},
	{name: "completions wake a parked owner", run: parkedOwner},
	{name: "unsignaled work completes only in error", run: unsignaled},
	{name: "unsignaled memory is free after a later completion", run: unsignaledMemory},
	{name: "zero length", run: zeroLength},
	{name: "messages of 1 MiB in pieces", run: megabyte},
	{name: "fence waits for earlier reads", run: fence},
	{name: "a peer that delays a Read delays no reply for ever", run: delayedRead},
	{name: "memory is let go of when its last work is complete", run: unregister},
	{name: "reads complete in order and within the depth", run: readsInDepth},
	{name: "the send queue has its bound", run: queueFull},
	{name: "the receive queue has its bound", run: recvQueueFull},
	{name: "both ends with full buffers read and write", memory: 96 << 20, run: fullBuffers},
	{name: "random work", run: randomWork},

	// Windows.
	{name: "a bind is in force before what follows it", run: bindThenSend},
	{name: "send with invalidate kills the STag before it is seen", needs: []power{perIO, remoteInv}, run: sendInv},
	{name: "invalidate of a wrong STag ends the connection", needs: []power{perIO, remoteInv}, run: sendInvWrong},
	{name: "local invalidate kills the STag", run: localInvalidate},
	{name: "STags cannot be foretold", needs: []power{perIO, random}, run: stagsRandom},
	{name: "write out of bounds", needs: []power{perIO, exact}, run: writeBounds},
	{name: "read out of bounds", needs: []power{perIO, exact}, run: readBounds},
	{name: "write without the right", needs: []power{perIO}, run: writeAccess},
	{name: "read without the right", needs: []power{perIO}, run: readAccess},
	{name: "write to a stale STag", needs: []power{perIO}, run: writeStale},
	{name: "read from a stale STag", needs: []power{perIO}, run: readStale},
	{name: "write to a guessed STag", run: writeGuess},
	{name: "read from a guessed STag", run: readGuess},
	{name: "an STag of another queue pair", needs: []power{perIO}, run: otherQP},
	{name: "a write that follows the invalidate", needs: []power{perIO, remoteInv},
		run: writeAfterInv},
	{name: "send with no receive posted", needs: []power{terminates}, run: noReceive},
	{name: "send longer than the receive", run: longSend},

	// The end.
	{name: "close returns all that is outstanding", run: closeReturnsAll},
	{name: "the peer's close returns all that is outstanding", run: peerClose},
	{name: "close loses nothing that completed before", run: closeOrderly},
	{name: "close tells its reason", needs: []power{terminates}, run: closeReason},
	{name: "close from many goroutines", run: closeMany},
	{name: "no byte lands after the last completion", run: noByteAfter},
	{name: "close of an unconnected queue pair", run: closeUnconnected},
}

// scene is one case at work.
type scene struct {
	testing.TB
	pair  Pair
	caps  transport.Caps
	slabs [2]*mem.Slab
	conns int
}

// slab is memory of the kind that the devices take.
func (s *scene) slab(size int) *mem.Slab {
	if size == 0 {
		size = caseMemory
	}
	slab, err := s.caps.Memory.NewSlab(size)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := slab.Close(); err != nil {
			s.Error(err)
		}
	})
	return slab
}
