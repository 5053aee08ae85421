package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/group"
)

// Options of a Gateway.
type Options struct {
	// Name of the gateway in its group.
	Name string
	// Machine names the host for as long as its processes may be told apart: what Alone speaks of.
	Machine string
	// Alone says that this process holds what every earlier process of that name on that machine held until its death, such as the lock of
	// the state directory. Only then may blocklist entries of those be removed.
	Alone bool
	// Definitions, if set, is called with the shared definitions once there are some, and after each change.
	Definitions func(data []byte, version uint64)
	Log         *zap.Logger
}

// Errors of a Gateway.
var (
	ErrNameTaken = errors.New("gateway: another process has joined the group by the name of this gateway; give each gateway a name of its own")
	ErrClosed    = errors.New("gateway: the gateway has ended")
	ErrNoOther   = errors.New("gateway: no other gateway of the group is alive that would take the volumes over")
	ErrDraining  = errors.New("gateway: this gateway gives its volumes up, and takes none over")
)

// Gateway is this process in its group. Its methods may be called by any goroutine.
type Gateway struct {
	opt     Options
	store   Store
	log     *zap.Logger
	process string
	number  uint16 // of the target port group

	ctx  context.Context
	stop context.CancelFunc
	work group.Group
	wake chan struct{} // a look is wanted now

	mu       sync.Mutex
	volumes  map[string]*Volume
	peers    map[string]*peer
	numbers  map[string]uint16 // of all gateways of the group
	until    time.Time         // the lease
	renewed  chan struct{}     // the lease was renewed
	err      error             // why it has ended by itself
	draining bool
	shut     []string
	sessions []uint64

	beats   uint64 // the beat goroutine's
	version uint64 // of the member's object

	definitionsVersion uint64 // the look goroutine's
	definitionsAt      time.Time

	due map[string]*dueEntry // the sweeping goroutine's
}

// peer is what was seen of another gateway, or of this one.
type peer struct {
	member
	version uint64
	at      time.Time // when this beat was seen first
	read    time.Time // when it was read last
}

// Join takes part in the group: it has the gateway's name from now on, and a process that had it ends its part. It ends with Close.
func Join(ctx context.Context, store Store, opt Options) (*Gateway, error) {
	if err := CheckName(opt.Name); err != nil {
		return nil, err
	}
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	g := &Gateway{opt: opt, store: store, log: opt.Log, process: rand.Text(), wake: make(chan struct{}, 1), renewed: make(chan struct{}, 1),
		volumes: map[string]*Volume{}, peers: map[string]*peer{}, due: map[string]*dueEntry{}}
	if err := g.register(ctx); err != nil {
		return nil, err
	}
	_, version, err := store.Read(ctx, memberObject(opt.Name), maxRecord)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	g.version = version
	if err := g.beat(ctx); err != nil {
		return nil, err
	}
	g.ctx, g.stop = context.WithCancel(context.WithoutCancel(ctx))
	g.work.Go(g.keepBeating)
	g.work.Go(g.keepLease)
	g.work.Go(g.keepLooking)
	g.work.Go(g.keepSweeping)
	return g, nil
}

// register puts the gateway into the group, with the lowest target port group number that is free.
func (g *Gateway) register(ctx context.Context) error {
	for range maxTries {
		all, version, err := g.readGroup(ctx)
		if err != nil {
			return err
		}
		if n := all.Gateways[g.opt.Name]; n != 0 {
			g.number, g.numbers = n, all.Gateways
			return nil
		}
		if len(all.Gateways) >= maxGateways {
			return fmt.Errorf("gateway: the group has %d gateways already", maxGateways)
		}
		n := uint16(1)
		for used := slices.Sorted(maps.Values(all.Gateways)); n <= uint16(len(used)) && used[n-1] == n; {
			n++
		}
		all.Gateways[g.opt.Name] = n
		_, err = g.writeSure(ctx, groupObject, encode(&all), version)
		if err == nil {
			g.number, g.numbers = n, all.Gateways
			return nil
		}
		if !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return ErrChanged
}

func (g *Gateway) readGroup(ctx context.Context) (all members, version uint64, err error) {
	data, version, err := g.store.Read(ctx, groupObject, maxRecord)
	if err == nil {
		err = decode(groupObject, data, &all)
	} else if errors.Is(err, ErrNotFound) {
		err = nil
	}
	if all.Gateways == nil {
		all.Gateways = map[string]uint16{}
	}
	return all, version, err
}

// Number is the gateway's target port group in the group; it never changes.
func (g *Gateway) Number() uint16 { return g.number }

// Numbers are the target port groups of all gateways by name.
func (g *Gateway) Numbers() map[string]uint16 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.numbers)
}

// Err says why the gateway has ended by itself, or nil.
func (g *Gateway) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Close ends the gateway at once, as a crash would but for I/O under way, which has failed when Close returns. Drain goes before it.
func (g *Gateway) Close() {
	g.end(nil)
	g.stop()
	g.work.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, v := range g.volumes {
		if v.state == Standby {
			v.moveLocked(Closed)
		}
	}
}

// end ends its part in the group.
func (g *Gateway) end(err error) {
	g.mu.Lock()
	if g.err == nil {
		if g.err = err; err == nil {
			g.err = ErrClosed
		}
	}
	for _, v := range g.volumes {
		v.loseLocked("the gateway ends")
	}
	g.mu.Unlock()
}

// nudge makes the next look now.
func (g *Gateway) nudge() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// tell logs what failed and harms nothing.
func (g *Gateway) tell(what, volume string, err error) {
	if err != nil {
		g.log.Warn("gateway: cannot "+what, zap.String("volume", volume), zap.Error(err))
	}
}

// keepBeating writes the heartbeat until the gateway ends.
func (g *Gateway) keepBeating() {
	t := time.NewTicker(BeatEvery)
	defer t.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-t.C:
		}
		err := g.beat(g.ctx)
		if errors.Is(err, ErrNameTaken) {
			g.log.Error("gateway", zap.Error(err))
			g.end(err)
			return
		}
		g.tell("write the heartbeat", "", err)
	}
}

// beat writes one heartbeat. The lease runs from before the write, since others may see it from then on.
func (g *Gateway) beat(ctx context.Context) error {
	g.beats++
	g.mu.Lock()
	m := member{Name: g.opt.Name, Process: g.process, Machine: g.opt.Machine, Alone: g.opt.Alone, Beat: g.beats, Draining: g.draining,
		Owns: map[string]uint64{}, Sessions: g.sessions, Shut: slices.Clone(g.shut)}
	for id, v := range g.volumes {
		if v.term != 0 {
			m.Owns[id] = v.term
		}
	}
	g.mu.Unlock()
	begin := time.Now()
	data := encode(&m)
	version, err := g.store.Write(ctx, memberObject(g.opt.Name), data, g.version)
	if err != nil {
		var is member
		seen, now, rerr := g.store.Read(ctx, memberObject(g.opt.Name), maxRecord)
		if rerr == nil {
			rerr = decode(memberObject(g.opt.Name), seen, &is)
		}
		switch {
		case rerr != nil:
			return err
		case is.Process != g.process && g.beats > 1:
			return ErrNameTaken
		}
		if version = now; string(seen) != string(data) {
			g.version = now
			return err
		}
	}
	g.version = version
	g.mu.Lock()
	g.until = begin.Add(Lease)
	g.mu.Unlock()
	select {
	case g.renewed <- struct{}{}:
	default:
	}
	return nil
}

// keepLease stops serving when no beat was written for a Lease.
func (g *Gateway) keepLease() {
	for {
		g.mu.Lock()
		left := time.Until(g.until)
		if left <= 0 {
			for _, v := range g.volumes {
				v.loseLocked("no heartbeat was written for a lease")
			}
		}
		g.mu.Unlock()
		var over <-chan time.Time
		var t *time.Timer
		if left > 0 {
			t = time.NewTimer(left)
			over = t.C
		}
		select {
		case <-g.ctx.Done():
		case <-over:
		case <-g.renewed:
		}
		if t != nil {
			t.Stop()
		}
		if g.ctx.Err() != nil {
			return
		}
	}
}

// leasedLocked reports whether the gateway may own anything.
func (g *Gateway) leasedLocked() bool { return g.err == nil && time.Now().Before(g.until) }

// SetSessions says which initiators have a session by which they reach which volume; see Pair.
func (g *Gateway) SetSessions(pairs []uint64) {
	l := slices.Clone(pairs)
	slices.Sort(l)
	l = slices.Compact(l)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sessions = l[:min(len(l), maxPairs)]
}

// Drain gives every volume up to the others and takes none until Undrain. It returns when no volume is owned here.
func (g *Gateway) Drain(ctx context.Context) error {
	g.mu.Lock()
	if g.err != nil {
		g.mu.Unlock()
		return ErrClosed
	}
	other := false
	for name, p := range g.peers {
		other = other || name != g.opt.Name && !p.Draining && time.Since(p.at) < Lost
	}
	if !other {
		g.mu.Unlock()
		return ErrNoOther
	}
	g.draining = true
	g.mu.Unlock()
	g.nudge()
	for {
		g.mu.Lock()
		var l []string
		for id, v := range g.volumes {
			if v.state != Standby && v.state != Closed {
				l = append(l, id)
			}
		}
		g.mu.Unlock()
		if len(l) == 0 {
			return nil
		}
		if err := pause(ctx, RulesLook); err != nil {
			return fmt.Errorf("gateway: %d volumes are still here, %s among them: %w", len(l), l[0], err)
		}
	}
}

// Undrain ends what Drain began.
func (g *Gateway) Undrain() {
	g.mu.Lock()
	g.draining = false
	g.mu.Unlock()
	g.nudge()
}

// pause waits, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
