package verbs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// simQP is a reliable connection's queue pair.
type simQP struct {
	nic   *simNIC
	pd    *simPD
	cq    *simCQ
	h     handle
	num   uint32
	caps  qpCaps
	peer  *simQP
	sq    []simWR
	rq    []simRecv
	rts   bool
	err   bool
	freed bool
	reads int // that it may have outstanding
}

type simWR struct {
	sendWR
	sges    [16]sge
	started bool
	done    bool
	status  wcStatus
	bytes   uint32
}

type simRecv struct {
	id  uint64
	n   int
	sge sge
}

func (s *sim) CreateQP(id, pd, cq handle, want qpCaps) (handle, qpCaps, uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("CreateQP"); err != nil {
		return 0, want, 0, err
	}
	i, ok1 := get[*simID](s, id)
	d, ok2 := get[*simPD](s, pd)
	c, ok3 := get[*simCQ](s, cq)
	if !ok1 || !ok2 || !ok3 || i.nic == nil || i.nic != d.nic {
		s.wrong("CreateQP on another adapter than the connection's")
		return 0, want, 0, unix.EINVAL
	}
	if i.nic.gone {
		return 0, want, 0, unix.ENODEV
	}
	q := &simQP{nic: i.nic, pd: d, cq: c, caps: want}
	q.h = s.make(q, id, pd, cq)
	q.num = uint32(q.h)
	i.qp = q
	return q.h, want, q.num, nil
}

func (s *sim) ErrorQP(qp handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q, ok := get[*simQP](s, qp); ok {
		s.stop(q)
	}
	return s.enter("ErrorQP")
}

func (s *sim) DestroyQP(id handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := get[*simID](s, id)
	if ok && i.qp == nil {
		s.wrong("DestroyQP of an id without one")
	} else if ok {
		q := i.qp
		for _, o := range s.obj {
			if w, ok := o.(*simMW); ok && w.bound && w.qp == q && q.nic.kind.holdsQP {
				s.wrong("DestroyQP under a bound window: rxe_destroy_qp waits 50 s for it, and warns")
			}
		}
		s.stop(q)
		q.freed = true
		if q.peer != nil {
			q.peer.peer = nil
		}
		i.qp = nil
		s.gone("DestroyQP", q.h, id, s.parent(q.pd), s.parent(q.cq))
	}
	return s.enter("DestroyQP")
}

func (s *sim) PostSend(qp handle, wrs []sendWR, sges []sge) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("PostSend"); err != nil {
		return 0, err
	}
	q, ok := get[*simQP](s, qp)
	if !ok || !q.rts && !q.err {
		return 0, unix.EINVAL
	}
	for i := range wrs {
		if len(q.sq) >= q.caps.Sends {
			s.wrong("a send queue overflows")
			return i, unix.ENOMEM
		}
		for k := range wrs[:i] {
			if wrs[i].Op == wrBind && wrs[k].Op == wrBind && wrs[k].MW == wrs[i].MW {
				s.wrong("two Binds of a window in one call")
			}
		}
		w := simWR{sendWR: wrs[i]}
		n := copy(w.sges[:], sges[:wrs[i].SGEs])
		sges = sges[n:]
		if q.nic.kind.outOf && w.Op == wrRead && w.Flags&flagFence != 0 {
			s.stop(q) // siw_qp_sq_proc_tx: EINVAL, and the connection is gone
			return i, unix.EINVAL
		}
		if n > q.caps.SendSGE {
			return i, unix.EINVAL
		}
		for k := range w.sges[:n] {
			if w.sges[k].Length == 0 {
				s.wrong("a piece of no bytes, which some adapters read as 2 GiB")
			}
			w.bytes += w.sges[k].Length
		}
		q.sq = append(q.sq, w)
	}
	if q.err && !q.nic.kind.noMark { // siw leaves where it is what is posted after the end
		s.flush(q)
	}
	s.progress(q)
	return len(wrs), nil
}

func (s *sim) PostRecv(qp handle, wrs []recvWR, sges []sge) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("PostRecv"); err != nil {
		return 0, err
	}
	q, ok := get[*simQP](s, qp)
	if !ok {
		return 0, unix.EINVAL
	}
	for i := range wrs {
		if len(q.rq) >= q.caps.Recvs {
			s.wrong("a receive queue overflows")
			return i, unix.ENOMEM
		}
		r := simRecv{id: wrs[i].ID, n: int(wrs[i].SGEs)}
		if r.n == 0 && q.nic.kind.outOf {
			return i, unix.EINVAL // siw_post_receive
		}
		if r.n > 0 {
			r.sge, sges = sges[0], sges[1:]
		}
		q.rq = append(q.rq, r)
	}
	if q.err {
		s.flush(q)
	} else if q.peer != nil {
		s.progress(q.peer)
	}
	return len(wrs), nil
}

// release lets responders answer Reads again.
func (s *sim) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds = false
	for _, o := range s.obj {
		if q, ok := o.(*simQP); ok {
			s.progress(q)
		}
	}
}

// progress carries out what can be, and completes in order, or Reads behind what was posted after them.
func (s *sim) progress(q *simQP) {
	for again := true; again && !q.err; {
		again = false
		waits := false // a Read is outstanding
		if q.nic.kind.outOf {
			if again = s.overtake(q); again || q.err {
				continue
			}
		}
		for i := range q.sq {
			w := &q.sq[i]
			if !w.started {
				if waits && w.Flags&flagFence != 0 || !s.start(q, w) {
					break
				}
			} else if !w.done && w.Op == wrRead && !s.holds {
				s.read(q, w)
			}
			waits = waits || !w.done && w.Op == wrRead
			if w.done && w.status != wcSuccess {
				break
			}
		}
		for len(q.sq) > 0 && q.sq[0].done && !q.err {
			s.finish(q, 0)
			again = true
		}
	}
}

// overtake carries out and completes what stands behind Reads whose answers are on their way; false when there is nothing left
// of it to do.
func (s *sim) overtake(q *simQP) (some bool) {
	waits := false
	for i := 0; i < len(q.sq) && !q.err; i++ {
		w := &q.sq[i]
		if w.Op == wrRead {
			if !w.started {
				hold := s.holds
				s.holds = true
				s.start(q, w)
				s.holds = hold
			}
			if waits = true; !w.done {
				continue
			}
		} else if waits && w.Flags&flagFence != 0 || !s.start(q, w) {
			break
		}
		if some = true; q.err {
			break // refused, which has been told already
		}
		s.finish(q, i)
		i--
	}
	return some
}

// finish takes a request that is done out of the queue.
func (s *sim) finish(q *simQP, i int) {
	w := q.sq[i]
	q.sq = append(q.sq[:i], q.sq[i+1:]...)
	if w.status != wcSuccess || w.Flags&flagSignaled != 0 {
		s.put(q.cq, workComp{ID: w.ID, Status: w.status, Bytes: w.bytes, QPNum: q.num, Op: w.Op})
	}
	if w.status != wcSuccess {
		s.stop(q)
	}
}

// stop moves q to ERR.
func (s *sim) stop(q *simQP) {
	q.err = true
	s.flush(q)
	if q.peer != nil && !q.peer.err {
		s.progress(q.peer) // what waits for a receive waits no more
	}
}

func (s *sim) flush(q *simQP) {
	for i := range q.sq {
		s.put(q.cq, workComp{ID: q.sq[i].ID, Status: wcFlushed, QPNum: q.num, Op: q.sq[i].Op})
	}
	q.sq = q.sq[:0]
	for _, r := range q.rq {
		s.put(q.cq, workComp{ID: r.id, Status: wcFlushed, QPNum: q.num})
	}
	q.rq = q.rq[:0]
}

// start begins a request; false means that it must wait.
func (s *sim) start(q *simQP, w *simWR) bool {
	w.started, w.done = true, true
	if w.Op != wrBind && w.Op != wrLocalInv {
		if q.nic.down && q.nic.kind.driver == "rdma_rxe" { // rxe_requester: no route
			if w.status = wcLocQPOp; q.nic.kind.flushes {
				w.status = wcFlushed
			}
			return true
		}
		if q.peer == nil || q.peer.freed || q.peer.err || q.nic.down || q.peer.nic.down {
			w.status = wcRetryExceed
			return true
		}
		for i := range w.sges[:w.SGEs] {
			if s.local(q, &w.sges[i], w.Op == wrRead) == nil {
				w.status = wcLocProt
				return true
			}
		}
	}
	switch w.Op {
	case wrSend, wrSendInv:
		if len(q.peer.rq) == 0 {
			w.started, w.done = false, false // receiver not ready, tried again without end
			return false
		}
		s.send(q, w)
	case wrWrite:
		if w.bytes == 0 {
			return true
		}
		to := s.remote(q.peer, w.RKey, w.RemoteAddr, w.bytes, accessRemoteWrite)
		if to == nil {
			s.refuse(q, w, wcRemAccess)
			return true
		}
		for i := range w.sges[:w.SGEs] {
			to = to[copy(to, s.local(q, &w.sges[i], false)):]
		}
	case wrRead:
		n := 0
		for i := range q.sq {
			if q.sq[i].Op == wrRead && q.sq[i].started && (!q.sq[i].done || &q.sq[i] == w) {
				n++
			}
		}
		if n > q.reads {
			s.wrong("%d Reads outstanding where %d were settled", n, q.reads)
		}
		if w.done = false; !s.holds {
			s.read(q, w)
		}
	case wrBind:
		w.status = s.bind(q, w)
	case wrLocalInv:
		m, _ := q.pd.keys[w.Inv].(*simMW)
		if m == nil || !m.bound || m.qp != q {
			w.status = wcLocQPOp
			if q.nic.kind.driver == "rdma_rxe" {
				s.wrong("a local invalidate of a key that is dead: rxe's kernel module follows a nil pointer")
			}
			return true
		}
		m.bound = false
	}
	return true
}

// refuse ends both sides for a request that the responder does not take.
func (s *sim) refuse(q *simQP, w *simWR, status wcStatus) {
	w.status = status
	p := q.peer
	p.nic.say(asyncEvent{Kind: asyncQPFatal, Code: 3, Text: "local access violation work queue error", QP: p.h})
	s.stop(p)
}

func (s *sim) read(q *simQP, w *simWR) {
	w.done = true
	if w.bytes == 0 {
		return
	}
	from := s.remote(q.peer, w.RKey, w.RemoteAddr, w.bytes, accessRemoteRead)
	if from == nil {
		s.refuse(q, w, wcRemAccess)
		return
	}
	for i := range w.sges[:w.SGEs] {
		copy(s.local(q, &w.sges[i], true), from)
		from = from[w.sges[i].Length:]
	}
}

func (s *sim) send(q *simQP, w *simWR) {
	p := q.peer
	r := p.rq[0]
	p.rq = p.rq[:copy(p.rq, p.rq[1:])]
	var into []byte
	if r.n > 0 {
		if into = s.local(p, &r.sge, false); into == nil {
			s.put(p.cq, workComp{ID: r.id, Status: wcLocProt, QPNum: p.num})
			s.refuse(q, w, wcRemOp)
			return
		}
	}
	if int(w.bytes) > len(into) {
		s.put(p.cq, workComp{ID: r.id, Status: wcLocLen, QPNum: p.num})
		s.refuse(q, w, wcRemInvReq)
		return
	}
	for i := range w.sges[:w.SGEs] {
		into = into[copy(into, s.local(q, &w.sges[i], false)):]
	}
	wc := workComp{ID: r.id, Bytes: w.bytes, QPNum: p.num, Recv: 1, Op: wrSend}
	if w.Op == wrSendInv {
		switch k := p.pd.keys[w.Inv].(type) {
		case *simMW:
			if !k.bound || k.qp != p {
				s.put(p.cq, workComp{ID: r.id, Status: wcFlushed, QPNum: p.num})
				s.refuse(q, w, wcRemAccess)
				return
			}
			k.bound = false
		case *simMR:
			if !p.nic.kind.invalAll {
				s.put(p.cq, workComp{ID: r.id, Status: wcFlushed, QPNum: p.num})
				s.refuse(q, w, wcRemAccess)
				return
			}
			k.dead = true
		default:
			s.put(p.cq, workComp{ID: r.id, Status: wcFlushed, QPNum: p.num})
			s.refuse(q, w, wcRemAccess)
			return
		}
		wc.Inv = w.Inv
	}
	s.put(p.cq, wc)
}

func (s *sim) bind(q *simQP, w *simWR) wcStatus {
	mw, ok1 := get[*simMW](s, handle(w.MW))
	mr, ok2 := get[*simMR](s, handle(w.MR))
	switch {
	case !ok1 || !ok2 || mw.pd != q.pd || mr.pd != q.pd:
		return wcMWBind
	case mw.bound || w.RKey>>8 != mw.rkey>>8 || w.RKey == mw.rkey:
		return wcMWBind
	case mr.rights&accessMWBind == 0 || w.BindAddr < mr.addr || w.BindAddr+w.BindLen > mr.addr+mr.size || w.BindLen == 0:
		return wcMWBind
	}
	delete(q.pd.keys, mw.rkey)
	mw.rkey, mw.bound, mw.qp, mw.mr, mw.addr, mw.size, mw.right = w.RKey, true, q, mr, w.BindAddr, w.BindLen, access(w.BindAccess)
	q.pd.keys[mw.rkey] = mw
	return wcSuccess
}

// local is our memory that a piece names, nil if it may not.
func (s *sim) local(q *simQP, g *sge, sink bool) []byte {
	m, _ := q.pd.keys[g.LKey].(*simMR)
	if m == nil || m.dead || g.Addr < m.addr || g.Addr+uint64(g.Length) > m.addr+m.size {
		return nil
	}
	if sink && q.nic.kind.sinks && m.rights&accessRemoteWrite == 0 {
		return nil
	}
	return at(g.Addr, g.Length)
}

// remote is q's memory that its peer names, nil if it may not.
func (s *sim) remote(q *simQP, key uint32, addr uint64, n uint32, right access) []byte {
	var lo, size uint64
	switch k := q.pd.keys[key].(type) {
	case *simMW:
		if !k.bound || k.qp != q || k.right&right == 0 || k.mr.dead {
			return nil
		}
		if lo, size = k.addr, k.size; !q.nic.kind.exact {
			lo, size = k.mr.addr, k.mr.size
		}
	case *simMR:
		if k.dead || k.rights&right == 0 {
			return nil
		}
		lo, size = k.addr, k.size
	default:
		return nil
	}
	if addr < lo || addr-lo > size || uint64(n) > size-(addr-lo) {
		return nil
	}
	return at(addr, n)
}

// at is mapped memory at an address.
func at(addr uint64, n uint32) []byte {
	a := uintptr(addr)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&a)), int(n))
}
