package scsi

import (
	"testing"

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
			flushes("a later name of the host that has heard", login(name{was.initiator, was.target, 7, 1}), 0)
			flushes("the other host, by another name", login(name{"iqn.2026-01.example:b", was.target, 8, 3}), MediumError)
		})
	}
}

// Who merely comes by under a name of the host takes nothing from a nexus that is away: each hears by itself.
func TestAnotherProgramOfAHostTakesNoDebtFromItsSession(t *testing.T) {
	boot(t)
	const flush = "35 00 00000000 00 0000 00"
	p := &powerRig{t: t, dir: t.TempDir()}
	p.start()
	p.reads("a host that is new", 1, ASCPowerOnOrReset)
	p.start(func(o *LUOptions) { o.Device = lossy{newDisk(1<<20, 512), blockdev.ErrMedium} })
	tool := p.r.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:i1", ISID: [6]byte{0x80, 7}, TargetPortGroup: 1})
	for range 2 {
		p.r.run(tool, nil, 0, "00 00 00 00 00 00")
	}
	tool.Close(func() {})
	if res := p.r.run(p.back(1, ASCPowerOn), nil, 0, flush); res.key() != MediumError {
		t.Errorf("the flush ends with %v %X/%04X", res.Status, res.key(), res.asc())
	}
}
