package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// A model of RADOS with what matters for late writes. Operations of an instance go to an OSD over a lane that keeps their order, holds them
// while the network does not let them through, and delivers what was sent even if the process has ended since. An OSD refuses an
// instance that is on the blocklist of the map that the OSD has, which may be old. One that gets an operation of a newer map takes that map
// first, and lets the operation wait where it cannot.

const osds = 3 // 0 has the objects of the group, the others the data

var errDead = errors.New("the process has ended")

// gate lets through while it is open.
type gate struct {
	mu sync.Mutex
	ch chan struct{} // closed while the gate is open
}

func newGate() *gate {
	g := &gate{ch: make(chan struct{})}
	close(g.ch)
	return g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.ch:
		g.ch = make(chan struct{})
	default:
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.ch:
	default:
		close(g.ch)
	}
}

func (g *gate) way() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ch
}

// process can be stopped, killed and cut off.
type process struct {
	running, ceph, lan *gate
	dead               chan struct{}
}

func newProcess() *process {
	return &process{newGate(), newGate(), newGate(), make(chan struct{})}
}

// enter is before each thing that a process does.
func (p *process) enter() error {
	select {
	case <-p.dead:
		return errDead
	case <-p.running.way():
	}
	select {
	case <-p.dead:
		return errDead
	default:
		return nil
	}
}

type object struct {
	data    []byte
	version uint64
	locker  *Locker
}

type osd struct {
	epoch   uint64
	blocks  map[string]bool
	cut     bool // from the monitors
	objects map[string]*object
	values  map[int]uint64 // blocks of the volume
	rules   uint64         // the highest number of reservations that a write here was made by
	news    chan struct{}  // closed when it has a new map
}

type cluster struct {
	done chan struct{} // the test is over

	mu       sync.Mutex
	rng      *rand.Rand
	epoch    uint64
	blocks   map[string]time.Time
	osds     [osds]*osd
	serial   int
	acked    map[int]uint64
	wrong    []string
	opened   int
	held     int
	versions uint64
}

func newCluster(seed uint64) *cluster {
	c := &cluster{done: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 1)), epoch: 1, blocks: map[string]time.Time{}, acked: map[int]uint64{}}
	for i := range c.osds {
		c.osds[i] = &osd{epoch: 1, blocks: map[string]bool{}, objects: map[string]*object{}, values: map[int]uint64{}, news: make(chan struct{})}
	}
	return c
}

func (c *cluster) rand(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *cluster) complain(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// publishLocked makes a new map, which OSDs hear of some time later.
func (c *cluster) publishLocked() {
	c.epoch++
	for _, o := range c.osds {
		time.AfterFunc(time.Duration(c.rng.IntN(1000))*time.Millisecond, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.catchUpLocked(o)
		})
	}
}

func (c *cluster) catchUpLocked(o *osd) {
	if o.cut || o.epoch == c.epoch {
		return
	}
	o.epoch, o.blocks = c.epoch, map[string]bool{}
	for a := range c.blocks {
		o.blocks[a] = true
	}
	close(o.news)
	o.news = make(chan struct{})
}

func (c *cluster) cut(i int, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.osds[i].cut = cut
	c.catchUpLocked(c.osds[i])
}

func (c *cluster) blocklist(addr string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := time.Now().Add(d)
	if d <= 0 {
		delete(c.blocks, addr)
	} else {
		c.blocks[addr] = until
		time.AfterFunc(d, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.blocks[addr].Equal(until) {
				delete(c.blocks, addr)
				c.publishLocked()
			}
		})
	}
	c.publishLocked()
}

// client is a librados instance.
type client struct {
	c      *cluster
	p      *process
	name   string
	addr   string
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex
	epoch uint64
	tail  [osds]chan struct{} // closed when the last operation to that OSD was delivered
}

func (c *cluster) client(p *process) *client {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	return &client{c: c, p: p, name: fmt.Sprintf("client.%d", c.serial), addr: fmt.Sprintf("10.0.0.1:0/%d", c.serial), closed: make(chan struct{}), epoch: c.epoch}
}

func (k *client) close() { k.once.Do(func() { close(k.closed) }) }

// latency is mostly short.
func (c *cluster) latency() time.Duration {
	if c.rand(400) == 0 {
		return time.Duration(c.rand(1500)) * time.Millisecond
	}
	return time.Duration(100+c.rand(1500)) * time.Microsecond
}

// answer is what an OSD says to an operation.
type answer struct {
	data    []byte
	version uint64
	lockers []Locker
	err     error
}

// do has do performed at an OSD, with the cluster's lock held. limit is how long an answer is waited for, 0 for ever.
func (k *client) do(ctx context.Context, at int, limit time.Duration, do func(o *osd) answer) answer {
	if err := k.p.enter(); err != nil {
		return answer{err: err}
	}
	select {
	case <-k.closed:
		return answer{err: errors.New("the instance is shut down")}
	default:
	}
	sent := make(chan struct{})
	answers := make(chan answer, 1)
	k.mu.Lock()
	epoch, before := k.epoch, k.tail[at]
	k.tail[at] = sent
	k.mu.Unlock()
	wait := k.c.latency()
	go func() {
		a := k.deliver(at, epoch, before, wait, do)
		close(sent)
		select {
		case <-k.c.done:
		case <-k.p.ceph.way():
			answers <- a
		}
	}()
	var late <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		late = t.C
	}
	var a answer
	select {
	case a = <-answers:
	case <-late:
		a.err = ErrUnsure
	case <-k.closed:
		a.err = ErrUnsure
	case <-ctx.Done():
		a.err = fmt.Errorf("%w: %w", ErrUnsure, ctx.Err())
	case <-k.c.done:
		a.err = errDead
	case <-k.p.dead:
		a.err = errDead
	}
	if err := k.p.enter(); err != nil {
		return answer{err: err}
	}
	return a
}

func (k *client) deliver(at int, epoch uint64, before chan struct{}, wait time.Duration, do func(o *osd) answer) answer {
	c := k.c
	if before != nil {
		select {
		case <-before:
		case <-c.done:
			return answer{err: errDead}
		}
	}
	time.Sleep(wait)
	select {
	case <-k.p.ceph.way():
	case <-c.done:
		return answer{err: errDead}
	}
	o := c.osds[at]
	c.mu.Lock()
	for o.epoch < epoch {
		if c.catchUpLocked(o); o.epoch >= epoch {
			break
		}
		news := o.news
		c.held++
		c.mu.Unlock()
		select {
		case <-news:
		case <-c.done:
			return answer{err: errDead}
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.epoch = max(k.epoch, o.epoch) // the answer brings the OSD's map
	}()
	if o.blocks[k.addr] {
		return answer{err: ErrBlocklisted}
	}
	return do(o)
}

// mapped is wait_for_latest_osdmap: the monitors are asked.
func (k *client) mapped(ctx context.Context) error {
	if err := k.c.monitors(ctx, k.p); err != nil {
		return err
	}
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch = max(k.epoch, k.c.epoch)
	return nil
}

// monitors is a way to the monitors and back.
func (c *cluster) monitors(ctx context.Context, p *process) error {
	if err := p.enter(); err != nil {
		return err
	}
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	time.Sleep(time.Duration(1+c.rand(400)) * time.Millisecond)
	select {
	case <-p.ceph.way():
	case <-t.C:
		return ErrUnsure
	case <-ctx.Done():
		return ctx.Err()
	case <-p.dead:
	case <-c.done:
	}
	return p.enter()
}

// write writes a block of the volume, by the reservations that its serving has, after the change answered was answered. A write by earlier ones may
// reach an OSD that has not heard of the blocklist, but never behind one by later ones: no host can tell that it was not made before the answer.
func (k *client) write(ctx context.Context, block int, value, has, answered uint64) error {
	return k.do(ctx, 1+block%(osds-1), 0, func(o *osd) answer {
		if was := k.c.acked[block]; was > value {
			k.c.complain("%v: block %d: %d of %s lands on %d, which was acknowledged", time.Now(), block, value, k.addr, was)
		}
		if has < answered && o.rules >= answered {
			k.c.complain("%v: a write by reservations %d lands behind one by %d, and %d were answered before it began", time.Now(), has, o.rules, answered)
		}
		o.rules = max(o.rules, has)
		o.values[block] = value
		return answer{}
	}).err
}

// ack says that the initiator knows of the write.
func (c *cluster) ack(block int, value uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is := c.osds[1+block%(osds-1)].values[block]; is != value {
		c.complain("%v: block %d: %d was acknowledged, and %d is there", time.Now(), block, value, is)
	}
	c.acked[block] = value
}

// modelStore is a Store on the model. Each call to it, and to its instances, passes fail.
type modelStore struct {
	*client
	mutant mutant

	failMu sync.Mutex
	fail   func(call string) error
}

func (s *modelStore) failBy(f func(call string) error) {
	s.failMu.Lock()
	defer s.failMu.Unlock()
	s.fail = f
}

// mutant is a takeover that leaves something out.
type mutant uint8

const (
	sound mutant = iota
	noWaitForMap
	noBlocklist
	shortBlocklist
	noFence // of nexuses, at a new term
)

const (
	callLimit    = 3 * time.Second
	shortBlocked = 3 * time.Second
)

func (s *modelStore) met(call string) error {
	s.failMu.Lock()
	f := s.fail
	s.failMu.Unlock()
	if f == nil {
		return nil
	}
	return f(call)
}

func (s *modelStore) Read(ctx context.Context, name string, most int) (data []byte, version uint64, err error) {
	if err := s.met("Read " + name); err != nil {
		return nil, 0, err
	}
	a := s.do(ctx, 0, callLimit, func(o *osd) answer {
		f := o.objects[name]
		if f == nil {
			return answer{err: ErrNotFound}
		}
		if len(f.data) > most {
			return answer{err: errors.New("too long")}
		}
		return answer{data: f.data, version: f.version}
	})
	return a.data, a.version, a.err
}

func (s *modelStore) Write(ctx context.Context, name string, data []byte, version uint64) (now uint64, err error) {
	if err := s.met("Write " + name); err != nil {
		return 0, err
	}
	a := s.do(ctx, 0, callLimit, func(o *osd) answer {
		f := o.objects[name]
		if f == nil && version != 0 || f != nil && f.version != version {
			return answer{err: ErrChanged}
		}
		s.c.versions++
		o.objects[name] = &object{data: data, version: s.c.versions}
		return answer{version: s.c.versions}
	})
	if a.err != nil {
		return 0, a.err
	}
	return a.version, s.met("Wrote " + name)
}

func (s *modelStore) Blocklist(ctx context.Context, address string, d time.Duration) error {
	if err := s.met("Blocklist"); err != nil {
		return err
	}
	switch s.mutant {
	case noBlocklist:
		return nil
	case shortBlocklist:
		d = shortBlocked
	}
	if err := s.c.monitors(ctx, s.p); err != nil {
		return err
	}
	s.c.blocklist(address, d)
	return s.met("Blocklisted")
}

func (s *modelStore) Unblock(ctx context.Context, address string) error {
	if err := s.met("Unblock"); err != nil {
		return err
	}
	if err := s.c.monitors(ctx, s.p); err != nil {
		return err
	}
	s.c.blocklist(address, 0)
	return nil
}

func (s *modelStore) Lockers(ctx context.Context, name string) (l []Locker, err error) {
	if err := s.met("Lockers"); err != nil {
		return nil, err
	}
	a := s.do(ctx, 0, callLimit, func(o *osd) answer {
		if f := o.objects[name]; f != nil && f.locker != nil {
			return answer{lockers: []Locker{*f.locker}}
		}
		return answer{}
	})
	return a.lockers, a.err
}

func (s *modelStore) BreakLock(ctx context.Context, name string, l Locker) error {
	if err := s.met("BreakLock"); err != nil {
		return err
	}
	return s.do(ctx, 0, callLimit, func(o *osd) answer {
		if f := o.objects[name]; f != nil && f.locker != nil && *f.locker == l {
			f.locker = nil
		}
		return answer{}
	}).err
}

func (s *modelStore) Open(ctx context.Context) (Instance, error) {
	if err := s.met("Open"); err != nil {
		return nil, err
	}
	if err := s.c.monitors(ctx, s.p); err != nil {
		return nil, err
	}
	s.c.mu.Lock()
	s.c.opened++
	s.c.mu.Unlock()
	return &modelInstance{s.c.client(s.p), s}, nil
}

type modelInstance struct {
	*client
	s *modelStore
}

func (i *modelInstance) Addresses() []string { return []string{i.addr} }

func (i *modelInstance) WaitForMap(ctx context.Context) error {
	if err := i.s.met("WaitForMap"); err != nil {
		return err
	}
	if i.s.mutant == noWaitForMap {
		return nil
	}
	return i.mapped(ctx)
}

func (i *modelInstance) Lock(ctx context.Context, name, cookie string) error {
	if err := i.s.met("Lock"); err != nil {
		return err
	}
	err := i.do(ctx, 0, callLimit, func(o *osd) answer {
		f := o.objects[name]
		if f == nil {
			f = &object{}
			o.objects[name] = f
		}
		if f.locker != nil {
			return answer{err: ErrLocked}
		}
		i.c.versions++
		f.locker, f.version = &Locker{i.name, cookie, i.addr}, i.c.versions
		return answer{}
	}).err
	if err != nil {
		return err
	}
	return i.s.met("Locked")
}

func (i *modelInstance) Unlock(ctx context.Context, name, cookie string) error {
	if err := i.s.met("Unlock"); err != nil {
		return err
	}
	return i.do(ctx, 0, callLimit, func(o *osd) answer {
		if f := o.objects[name]; f != nil && f.locker != nil && *f.locker == (Locker{i.name, cookie, i.addr}) {
			f.locker = nil
		}
		return answer{}
	}).err
}

func (i *modelInstance) Close() {
	if i.p.enter() == nil {
		time.Sleep(time.Millisecond) // what a process that was stopped has in its hands goes out first
	}
	i.close()
	i.s.c.mu.Lock()
	i.s.c.opened--
	i.s.c.mu.Unlock()
}

// listed are the addresses on the blocklist.
func (c *cluster) listed() map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.blocks)
}
