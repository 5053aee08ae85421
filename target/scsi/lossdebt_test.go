package scsi

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
)

// A host that comes back under another name than it had when its writes were lost hears of that all the same: a portal's group tag has
// changed, the volume is another target's now, the ISID is another, as of libiscsi's tools, which make one by chance.
func TestAHostThatComesBackUnderAnotherNameHearsOfALoss(t *testing.T) {
	const flush = "35 00 00000000 00 0000 00"
	type name struct {
		initiator, target string
		isid              byte
		group             uint16
	}
	was := name{"iqn.2026-01.example:a", "iqn.2026-01.example:t", 1, 1}
	for what, now := range map[string]name{
		"the same":             was,
		"another portal group": {was.initiator, was.target, 1, 2},
		"another target":       {was.initiator, "iqn.2026-01.example:u", 1, 1},
		"another ISID":         {was.initiator, was.target, 9, 1},
	} {
		t.Run(what, func(t *testing.T) {
			boot(t)
			p := &powerRig{t: t, dir: t.TempDir()}
			login := func(as name) *Nexus {
				t.Helper()
				if as.target != p.r.target.opt.Name {
					target, err := NewTarget(TargetOptions{Name: as.target, Memory: p.r.pool})
					if err != nil {
						t.Fatal(err)
					}
					if err := target.AddLUN(0, p.r.lu); err != nil {
						t.Fatal(err)
					}
					p.r.target = target
				}
				n := p.r.target.NewNexus(NexusOptions{InitiatorName: as.initiator, ISID: [6]byte{0x40, 0, 0, 0, 0, as.isid}, TargetPortGroup: as.group})
				t.Cleanup(func() { n.Close(func() {}) })
				for range 2 {
					p.r.run(n, nil, 0, "00 00 00 00 00 00")
				}
				p.r.lu.background.Wait()
				return n
			}
			flushes := func(who string, n *Nexus, want SenseKey) {
				t.Helper()
				if res := p.r.run(n, nil, 0, flush); res.key() != want {
					t.Errorf("%s: the flush ends with %v %X/%04X", who, res.Status, res.key(), res.asc())
				}
				n.Reads(0) // this one counts no responses
				p.r.lu.background.Wait()
			}
			p.start()
			login(was)
			login(name{"iqn.2026-01.example:b", was.target, 1, 1})
			p.start(func(o *LUOptions) { o.Device = lossy{newDisk(1<<20, 512), blockdev.ErrMedium} })
			other := login(name{"iqn.2026-01.example:new", was.target, 1, 1})
			flushes("a host that is new, for any who wrote before it was noted", other, MediumError)
			flushes("a host that is new", other, 0)
			n := login(now)
			flushes("the host that is back", n, MediumError)
			flushes("the host that has heard", n, 0)
			p.start() // over a restart too
			flushes("the host that has heard, after a restart", login(now), 0)
			later := login(name{was.initiator, was.target, 7, 1})
			if now == was {
				flushes("a later name of the host, of which all have heard", later, 0)
			} else {
				flushes("a later name of the host, of which one has not heard", later, MediumError)
				flushes("a later name of the host, told", later, 0)
			}
			flushes("the other host, by another name", login(name{"iqn.2026-01.example:b", was.target, 8, 3}), MediumError)
		})
	}
}

// program is a nexus of an initiator that has read of its login.
func (p *powerRig) program(initiator string, isid uint16, group uint16) *Nexus {
	p.t.Helper()
	n := p.r.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:" + initiator, ISID: [6]byte{0x40, 0, 0, 0, byte(isid >> 8), byte(isid)}, TargetPortGroup: group, Memory: p.r.pool.Quota(1 << 20)})
	for range 2 {
		p.r.run(n, nil, 0, "00 00 00 00 00 00")
	}
	return n
}

// flushes says how a flush ends, and that its initiator has read that.
func (p *powerRig) flushes(what string, n *Nexus, want SenseKey) {
	p.t.Helper()
	if res := p.r.run(n, nil, 0, "35 00 00000000 00 0000 00"); res.key() != want {
		p.t.Errorf("%s: the flush ends with %v %X/%04X", what, res.Status, res.key(), res.asc())
	}
	n.Reads(0) // this one counts no responses
	p.r.lu.background.Wait()
}

func withLoss(o *LUOptions) { o.Device = lossy{newDisk(1<<20, 512), blockdev.ErrMedium} }

// What another program of the host hears, and reads, takes nothing from a nexus that is away: each hears by itself.
func TestAnotherProgramOfAHostTakesNoDebtFromItsSession(t *testing.T) {
	for _, what := range []string{"comes by", "flushes"} {
		t.Run(what, func(t *testing.T) {
			boot(t)
			p := &powerRig{t: t, dir: t.TempDir()}
			p.start()
			p.program("a", 1, 1).Close(func() {})
			p.r.lu.background.Wait()
			p.start(withLoss)
			tool := p.program("a", 7, 1)
			if what == "flushes" {
				p.flushes("the tool", tool, MediumError)
				p.flushes("the tool, told", tool, 0)
			}
			tool.Close(func() {})
			n := p.program("a", 1, 1)
			p.flushes("the session that wrote", n, MediumError)
			p.flushes("the session that wrote, told", n, 0)
		})
	}
}

// A host logs in by another portal group, or another process of it, before the target has seen the end of the session that it lost.
func TestAHostInheritsWhileTheSessionItLostIsInTheBooks(t *testing.T) {
	boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	p.start()
	p.program("a", 1, 1).Close(func() {})
	p.r.lu.background.Wait()
	p.start(withLoss)
	p.flushes("who wrote before it was noted", p.program("new", 1, 1), MediumError)
	lost := p.program("a", 1, 1)
	n := p.program("a", 1, 2)
	lost.Close(func() {})
	p.flushes("the host, by another portal group", n, MediumError)
	p.flushes("the host, told", n, 0)
	n = p.program("a", 1, 1)
	p.flushes("the host, by the first portal group", n, MediumError)
	p.flushes("the host, told twice", n, 0)
}

// A host whose programs all have new names is done some time; a name that is owed stays so.
func TestNewNamesOfAHostAreOwedALossForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boot(t)
		p := &powerRig{t: t, dir: t.TempDir()}
		p.start()
		p.program("a", 1, 1).Close(func() {})
		p.r.lu.background.Wait()
		p.start(withLoss)
		time.Sleep(heirTime - time.Second)
		p.start()
		p.flushes("a new name", p.program("a", 2, 1), MediumError)
		p.start() // does not begin the day again
		time.Sleep(2 * time.Second)
		p.flushes("a new name, later", p.program("a", 3, 1), 0)
		p.flushes("the name that wrote", p.program("a", 1, 1), MediumError)
	})
}

// An initiator that makes names without end pushes what other hosts are owed out of no list: before the loss or after it.
func TestNamesOfOneInitiatorPushOutNothingThatOthersAreOwed(t *testing.T) {
	boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	floods := func(from uint16) {
		for isid := range uint16(maxMet + 8) {
			p.program("flood", from+isid, 1).Close(func() {})
		}
		p.r.lu.background.Wait()
	}
	p.start()
	p.program("a", 1, 1).Close(func() {})
	floods(0)
	p.start(withLoss)
	p.flushes("who wrote before it was noted", p.program("new", 1, 1), MediumError)
	heir := p.program("a", 9, 1)
	floods(2 * maxMet)
	p.flushes("another name of the host", heir, MediumError)
	p.flushes("the name that wrote", p.program("a", 1, 1), MediumError)
	p.r.lu.mu.Lock()
	defer p.r.lu.mu.Unlock()
	if n := len(p.r.lu.power.Owed); n > 2*maxMet {
		t.Errorf("%d are owed", n)
	}
}
