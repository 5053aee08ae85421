package block

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
)

// Volume is one logical unit. All methods may be called by any goroutine; Close once, last.
type Volume struct {
	ini    *Initiator
	paths  []*path
	geom   atomic.Pointer[Geometry]
	active atomic.Pointer[[]*path] // where commands may go now
	turn   atomic.Uint32
	seq    atomic.Uint64
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	power  power
	held   atomic.Bool // a path is loose: what changes the medium waits
	events events

	mu      sync.Mutex
	parked  reqList // wait for a path or for a fence, in the order of submission
	closed  bool
	failed  error // no path for longer than the limit
	limit   *time.Timer
	fencers map[*path]bool
}

// Open logs in to the logical unit of a URL. Further URLs are further paths to the same unit: each must show the same
// identity. It fails unless one path comes up; the others are tried on.
func (i *Initiator) Open(ctx context.Context, urls ...string) (*Volume, error) {
	if len(urls) == 0 {
		return nil, badURL("none given")
	}
	v := &Volume{ini: i, fencers: map[*path]bool{}}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.active.Store(&[]*path{})
	opened := false
	defer func() {
		if !opened {
			v.ports()
		}
	}()
	for _, raw := range urls {
		u, err := i.parse(raw)
		if err != nil {
			return nil, err
		}
		if u.Target == "" {
			return nil, badURL("the target's name is missing; `discover` lists them")
		}
		port := i.port(u)
		v.paths = append(v.paths, &path{v: v, u: u, isid: port.isid, port: port, look: make(chan struct{}, 1), login: make(chan struct{}, 1)})
	}
	type first struct {
		s *session
		g *Geometry
	}
	got := make([]first, len(v.paths))
	var errs []error
	ok := false
	for k, p := range v.paths {
		s, g, err := p.connect(ctx)
		if err != nil {
			errs = append(errs, err)
			v.note(p, err)
			continue
		}
		ok = true
		got[k] = first{s, g}
	}
	if !ok {
		v.cancel()
		return nil, errors.Join(errs...)
	}
	// The first unit to answer is the one; the others have to be the same.
	for k := range got {
		if got[k].g != nil {
			v.geom.Store(got[k].g)
			break
		}
	}
	for k, p := range v.paths {
		if got[k].s != nil {
			if err := v.up(p, got[k].s, got[k].g); err != nil {
				for _, f := range got {
					if f.s != nil {
						f.s.leave()
					}
				}
				v.cancel()
				return nil, err
			}
		}
	}
	for k, p := range v.paths {
		f := got[k]
		v.wg.Go(func() { p.keep(f.s) })
		v.wg.Go(p.watch)
	}
	opened = true
	return v, nil
}

// ports gives the ISIDs back, and the paths' memory, after the last session.
func (v *Volume) ports() {
	for _, p := range v.paths {
		p.port.close()
		p.kept.close()
	}
}

// Geometry is what is known of the volume now; Size may grow.
func (v *Volume) Geometry() Geometry { return *v.geom.Load() }

// Memory is where registered buffers come from.
func (v *Volume) Memory() *mem.Pool { return v.ini.pool }

// PathState describes one path.
type PathState struct {
	URL   string // without secrets
	Up    bool
	InUse bool // commands go there
	Group uint16
	Err   error     // why it is down
	Since time.Time // it has been so
	// Logins and Losses count sessions that came up and those that were lost, Commands what was sent over them.
	Logins, Losses int
	Commands       uint64
}

// Paths says how the paths are.
func (v *Volume) Paths() []PathState {
	active := *v.active.Load()
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []PathState
	for _, p := range v.paths {
		st := PathState{URL: p.u.String(), Err: p.err, Since: p.since, Logins: p.gen, Losses: p.losses, Commands: p.commands}
		if s := p.sess.Load(); s != nil {
			st.Up, st.Group, st.Err = true, s.group, nil
			s.mu.Lock()
			st.Commands += s.sent
			s.mu.Unlock()
		}
		for _, a := range active {
			st.InUse = st.InUse || a == p
		}
		out = append(out, st)
	}
	return out
}

// Submit starts a request. It never blocks; Done is called once, maybe before Submit returns.
func (v *Volume) Submit(r *Request) {
	r.begin()
	v.start(r)
}

// SubmitAll is Submit of several. They leave together where there is one path. The slice is the caller's again on return.
func (v *Volume) SubmitAll(rs []*Request) {
	for _, r := range rs {
		r.begin()
	}
	active := *v.active.Load()
	if len(active) == 1 && !v.held.Load() {
		k := 0
		for _, r := range rs {
			if v.admit(r) {
				rs[k] = r
				k++
			}
		}
		rs = rs[:k]
		if s := active[0].sess.Load(); s != nil && (k == 0 || s.submit(rs...)) {
			return
		}
		for _, r := range rs {
			v.route(r)
		}
		return
	}
	for _, r := range rs {
		v.start(r)
	}
}

func (v *Volume) start(r *Request) {
	if v.admit(r) {
		v.route(r)
	}
}

// admit gives a request its place in the order, or ends it when there is nothing to be asked of the target.
func (v *Volume) admit(r *Request) bool {
	r.seq = v.seq.Add(1)
	r.Err = v.check(r)
	if r.Err != nil || r.Length == 0 && (r.Op == Read || r.Op == Write || r.Op == Discard || r.Op == WriteZeroes) {
		r.alone()
		return false
	}
	if r.Op == Flush {
		v.power.begin(r)
	}
	return true
}

// route gives a request to a path, or parks it.
func (v *Volume) route(r *Request) {
	if v.waits(r) {
		v.park(r, nil)
		return
	}
	tried := v.active.Load()
	active := *tried
	for range active {
		p := active[int(v.turn.Add(1))%len(active)]
		if s := p.sess.Load(); s != nil && s.submit(r) {
			return
		}
	}
	v.park(r, tried)
}

// check refuses what no target need be asked.
func (v *Volume) check(r *Request) error {
	g := v.geom.Load()
	if r.Op == Raw {
		if len(r.CDB) < 6 || len(r.CDB) > iscsi.MaxCDBLen {
			return fmt.Errorf("%w: a CDB of %d bytes", ErrBadRequest, len(r.CDB))
		}
		return nil
	}
	if r.Op == Flush {
		return nil
	}
	block := int64(g.Logical)
	if r.Offset < 0 || r.Length < 0 || r.Offset%block != 0 || r.Length%block != 0 || r.Offset > g.Size || r.Length > g.Size-r.Offset {
		return fmt.Errorf("%w: %d bytes at %d of %d", ErrRange, r.Length, r.Offset, g.Size)
	}
	sum := func(l []mem.Span) (n int64) {
		for i := range l {
			n += int64(l[i].Len)
		}
		return n
	}
	switch r.Op {
	case Read:
		if sum(r.Data) != r.Length {
			return fmt.Errorf("%w: memory and length differ", ErrBadRequest)
		}
		return nil
	case Write:
		if sum(r.Data) != r.Length {
			return fmt.Errorf("%w: memory and length differ", ErrBadRequest)
		}
	case Discard:
		if g.MaxDiscard == 0 {
			return fmt.Errorf("%w: it has no UNMAP", ErrUnsupported)
		}
	case WriteZeroes:
	case CompareWrite:
		if g.MaxCompare == 0 || r.Length > g.MaxCompare {
			return fmt.Errorf("%w: COMPARE AND WRITE of %d bytes, where %d are the limit", ErrUnsupported, r.Length, g.MaxCompare)
		}
		if r.Length == 0 || sum(r.Data) != r.Length || sum(r.Compare) != r.Length {
			return fmt.Errorf("%w: memory and length differ", ErrBadRequest)
		}
	case Status:
		if cap(r.Extents) == 0 || r.Length == 0 {
			return fmt.Errorf("%w: no room for the answer", ErrBadRequest)
		}
		return nil
	default:
		return fmt.Errorf("%w: %s", ErrBadRequest, r.Op)
	}
	if g.ReadOnly {
		return ErrReadOnly
	}
	return nil
}

// up takes a path into use; its login to the same portal group was the end of all commands of its last session.
func (v *Volume) up(p *path, s *session, g *Geometry) error {
	if err := v.same(p, g); err != nil {
		return err
	}
	v.judge(v.ctx, p, s)
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return ErrClosed
	}
	v.geom.Store(g)
	// A path that comes for the first time while writes are unflushed knows nothing of their time, unless another does.
	s.witness = p.gen > 0 || !v.power.risk() || len(*v.active.Load()) > 0
	s.mu.Lock()
	s.limits = g.limits(int64(v.ini.o.Piece))
	if s.inUse = true; s.doubts != s.settled {
		s.doubt()
	}
	dead := s.dead
	s.mu.Unlock()
	p.err, p.other = nil, false
	p.gen++
	p.since = time.Now()
	if !dead {
		p.sess.Store(s)
	}
	v.electLocked()
	v.failed = nil
	// Under the same hold: a loss of this session already is no business of its login.
	unknown := v.cameLocked(p, s)
	v.tell(p, "path is up", nil) // before its loss, and before any state that shows it
	v.mu.Unlock()
	unknown.complete()
	v.dispatch()
	for _, q := range v.paths {
		v.fencing(q)
	}
	return nil
}

// down takes a path out of use.
func (v *Volume) down(p *path, s *session, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p.sess.CompareAndSwap(s, nil) {
		p.err, p.other = err, errors.Is(err, ErrOtherUnit)
		p.since = time.Now()
		p.losses++
		if !slices.Contains(p.left, s.tpgt) {
			p.left = append(p.left, s.tpgt)
		}
		s.mu.Lock()
		p.commands += s.sent
		s.mu.Unlock()
		if !v.closed {
			v.tell(p, "path is lost", err)
		}
	}
	v.electLocked()
}

func (v *Volume) note(p *path, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p.err = err
	if errors.Is(err, ErrOtherUnit) {
		p.other = true
	}
}

// refuse ends what waits, and what comes, when every path has shown another unit last.
func (v *Volume) refuse() {
	v.mu.Lock()
	for _, p := range v.paths {
		if p.sess.Load() != nil || !p.other {
			v.mu.Unlock()
			return
		}
	}
	v.failed = v.paths[0].err
	if !errors.Is(v.failed, ErrOtherUnit) {
		v.failed = fmt.Errorf("%w: %w", ErrOtherUnit, v.failed)
	}
	var ends reqList
	all := v.parked.take()
	for r := all.pop(); r != nil; r = all.pop() {
		if r.fence != nil {
			v.parked.push(r)
			continue
		}
		r.Err = v.failed
		ends.push(r)
	}
	v.mu.Unlock()
	ends.complete()
}

// electLocked chooses the paths that commands go to: those of the best asymmetric access state that allows I/O.
func (v *Volume) electLocked() {
	best := []*path{}
	for rank := aluaOptimized; rank <= aluaNonOptimized && len(best) == 0; rank++ {
		for _, p := range v.paths {
			if s := p.sess.Load(); s != nil && s.usable && s.rank == rank {
				best = append(best, p)
			}
		}
	}
	v.active.Store(&best)
}

func (v *Volume) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-v.ctx.Done():
		return false
	}
}

// Cancel ends a request early: its Done is called, with ErrCancelled unless it was complete already, once nothing of it
// can touch its memory any more.
func (v *Volume) Cancel(r *Request) {
	r.cancelled.Store(true)
	v.mu.Lock()
	found := v.parked.remove(r)
	if found && r.fence != nil {
		v.giveUpLocked(r.fence)
	}
	v.mu.Unlock()
	if found {
		r.Err = r.cancelError()
		r.alone()
		return
	}
	for _, p := range v.paths {
		if s := p.sess.Load(); s != nil {
			s.cancel(r)
		}
	}
}

// Close logs out and ends every path. Requests still out end with ErrClosed.
func (v *Volume) Close() error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return ErrClosed
	}
	v.closed = true
	if v.limit != nil {
		v.limit.Stop()
	}
	parked := v.parked.take()
	v.mu.Unlock()
	v.cancel()
	for r := parked.head; r != nil; r = r.next {
		r.Err = ErrClosed
	}
	parked.complete()
	for _, p := range v.paths {
		if s := p.sess.Load(); s != nil {
			s.leave()
		}
	}
	v.wg.Wait()
	v.ports()
	return nil
}
