package gateway

import (
	"context"
	"errors"
	"slices"
	"time"
)

// An entry of the blocklist keeps the late writes of one instance away for as long as it stands, so it goes only when there is nothing that
// could still send them. The owner of a volume renews the entries of its record meanwhile: they outlast their time.

// dueEntry is what the owner knows of an entry, in its own time.
type dueEntry struct {
	dead    time.Time // when it was first seen to be dead; zero if it is not
	renewed time.Time
}

// keepSweeping is a goroutine of its own, since the monitors take up to a second for each entry.
func (g *Gateway) keepSweeping() {
	for pause(g.ctx, SweepEvery) == nil {
		g.sweep(g.ctx)
	}
}

// sweep renews and removes what is due, of volumes that are owned here.
func (g *Gateway) sweep(ctx context.Context) {
	now := time.Now()
	g.mu.Lock()
	var mine []*Volume
	for _, v := range g.volumes {
		if v.state == Owner {
			mine = append(mine, v)
		}
	}
	g.mu.Unlock()
	seen := map[string]bool{}
	for _, v := range mine {
		g.mu.Lock()
		r, version := v.record, v.version
		g.mu.Unlock()
		var needless []string
		for _, f := range r.Fenced {
			seen[f.Address] = true
			e := g.due[f.Address]
			if e == nil {
				e = &dueEntry{renewed: now} // the claim made it, or its last owner renewed it less than RenewEvery ago
				if f.Term+1 != r.Term {
					e.renewed = time.Time{}
				}
				g.due[f.Address] = e
			}
			switch dead := g.dead(f); {
			case !dead:
				e.dead = time.Time{}
			case e.dead.IsZero():
				e.dead = now
			case now.Sub(e.dead) >= Linger:
				needless = append(needless, f.Address)
				continue
			}
			if now.Sub(e.renewed) >= RenewEvery {
				if err := g.store.Blocklist(ctx, f.Address, BlockFor); err != nil {
					g.tell("renew an entry of the blocklist", v.id, err)
					continue
				}
				e.renewed = now
			}
		}
		if len(needless) > 0 {
			g.forget(ctx, v, r, version, needless)
		}
	}
	for a := range g.due {
		if !seen[a] {
			delete(g.due, a)
		}
	}
}

// forget takes needless entries off the blocklist, and then out of the record, so that one that stays is tried again.
func (g *Gateway) forget(ctx context.Context, v *Volume, r Record, version uint64, needless []string) {
	for _, a := range needless {
		if err := g.store.Unblock(ctx, a); err != nil {
			g.tell("remove an entry of the blocklist", v.id, err)
			return
		}
	}
	r.Fenced = slices.DeleteFunc(slices.Clone(r.Fenced), func(f Fenced) bool { return slices.Contains(needless, f.Address) })
	if _, err := g.writeSure(ctx, recordObject(v.id), encode(&r), version); err != nil && !errors.Is(err, ErrChanged) {
		g.tell("remove an entry of the record", v.id, err)
	}
}

// dead reports whether nothing can send for a fenced instance any more: its process has shut it down, or has ended for certain. An instance that
// no record names has no owner that could say so.
func (g *Gateway) dead(f Fenced) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.peers[f.Gateway]
	if p == nil || f.Process == "" || time.Since(p.read) > Lost {
		return false
	}
	if p.Process == f.Process {
		return slices.Contains(p.Shut, f.Address)
	}
	return p.Alone && p.Machine == f.Machine && p.Machine != ""
}
