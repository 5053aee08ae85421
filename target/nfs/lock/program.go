package lock

import (
	"errors"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/filesystem/filelock"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func newReader(b []byte) xdr.Reader { return xdr.NewReader(b) }

// Programs are the lock manager and the status monitor. Clients call the status monitor by UDP too.
func (m *Manager) Programs() []rpcserver.Program { return []rpcserver.Program{(*nlm)(m), (*nsm)(m)} }

type nlm Manager

// ID is the program number.
func (p *nlm) ID() uint32 { return nlm4.Prog }

// Versions are 4 and 4: version 3 has 32-bit ranges, for NFS version 2.
func (p *nlm) Versions() (low, high uint32) { return nlm4.Vers, nlm4.Vers }

// Keeps is true for what takes and gives locks: an UNLOCK that is executed a second time, late, would take away what its
// owner has locked since.
func (p *nlm) Keeps(_, proc uint32) bool {
	switch syncOf(proc) {
	case nlm4.ProcLock, nlm4.ProcNmLock, nlm4.ProcUnlock, nlm4.ProcCancel, nlm4.ProcShare, nlm4.ProcUnshare:
		return true
	}
	return false
}

// Overwrites is true for the same: the reply cache has no room for ever.
func (p *nlm) Overwrites(vers, proc uint32) bool { return p.Keeps(vers, proc) }

// syncOf is the synchronous procedure that does the work of proc.
func syncOf(proc uint32) uint32 {
	switch proc {
	case nlm4.ProcTestMsg, nlm4.ProcLockMsg, nlm4.ProcCancelMsg, nlm4.ProcUnlockMsg, nlm4.ProcGrantedMsg:
		return proc - nlm4.ProcTestMsg + nlm4.ProcTest
	}
	return proc
}

// Classify leaves all to workers.
func (p *nlm) Classify(*rpcserver.Call) rpcserver.Class { return rpcserver.Worker }

// Serve executes one call. The asynchronous procedures do what the others do; their results go to the client by a call of
// the procedure that is for them (C702 section 14.3).
func (p *nlm) Serve(c *rpcserver.Call) rpcserver.Verdict {
	m := (*Manager)(p)
	proc := syncOf(c.Proc)
	to := answerTo{addr: c.Peer.Addr.Addr(), local: c.Peer.Local.Addr(), msg: proc != c.Proc, secure: c.Peer.Privileged()}
	if !to.msg {
		return m.serve(c, proc, to)
	}
	if !m.mayAnswer(to.addr) {
		return rpcserver.Drop // the client asks again
	}
	mark := len(c.Out)
	v := m.serve(c, proc, to)
	if v != rpcserver.Done || len(c.Out) == mark {
		m.answered(to.addr)
		return v
	}
	result := append([]byte(nil), c.Out[mark:]...)
	c.Out = c.Out[:mark]
	m.wg.Go(func() {
		defer m.answered(to.addr)
		// Lost, if it cannot be had; the client asks again.
		_, _ = m.callOnce(m.ctx, m.calls, to.local, to.addr, nlm4.Prog, nlm4.Vers, proc-nlm4.ProcTest+nlm4.ProcTestRes, result)
	})
	return rpcserver.Done
}

// serve executes a procedure and appends its result.
func (m *Manager) serve(c *rpcserver.Call, proc uint32, to answerTo) rpcserver.Verdict {
	switch proc {
	case nlm4.ProcNull:
		return rpcserver.Done
	case nlm4.ProcTest:
		return m.serveTest(c, to)
	case nlm4.ProcLock, nlm4.ProcNmLock:
		return m.serveLock(c, proc == nlm4.ProcLock, to)
	case nlm4.ProcCancel:
		var a nlm4.CancelArgs
		if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
			return c.Garbage()
		}
		key, e := m.keyOf(c, a.Lock.FH, true)
		if e != filesystem.OK {
			return refuse(c, a.Cookie, e)
		}
		return answer(c, a.Cookie, statOfVerdict(m.table.Cancel(filelock.File{Key: key, Handle: a.Lock.FH}, lockOf(&a.Lock, a.Exclusive, to))))
	case nlm4.ProcUnlock:
		var a nlm4.UnlockArgs
		if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
			return c.Garbage()
		}
		key, e := m.keyOf(c, a.Lock.FH, true)
		if e != filesystem.OK {
			return refuse(c, a.Cookie, e)
		}
		return answer(c, a.Cookie, statOfVerdict(m.table.Unlock(filelock.File{Key: key, Handle: a.Lock.FH}, lockOf(&a.Lock, false, to))))
	case nlm4.ProcShare, nlm4.ProcUnshare:
		return m.serveShare(c, proc == nlm4.ProcShare, to)
	case nlm4.ProcFreeAll:
		var a nlm4.FreeAllArgs
		if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
			return c.Garbage()
		}
		// As with a notification, a client speaks for itself only, and a user of it not for its root.
		id := clientOf(string(a.Name), to.addr)
		m.table.Drop(func(h filelock.Client) bool { return h == id }, to.secure)
		return rpcserver.Done
	case nlm4.ProcGranted:
		// This server waits for no lock of another.
		var a nlm4.TestArgs
		if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
			return c.Garbage()
		}
		return answer(c, a.Cookie, nlm4.Denied)
	case nlm4.ProcGrantedRes:
		var r nlm4.Res
		if r.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
			return c.Garbage()
		}
		m.grantedRes(&r, to.addr)
		return rpcserver.Done
	case nlm4.ProcTestRes, nlm4.ProcLockRes, nlm4.ProcCancelRes, nlm4.ProcUnlockRes:
		return rpcserver.Done // answers to what is never asked here
	}
	return c.NoProc()
}

func answer(c *rpcserver.Call, cookie []byte, st nlm4.Stat) rpcserver.Verdict {
	r := nlm4.Res{Cookie: cookie, Stat: st}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

// refuse answers a call about a handle that cannot be used; one whose caller's name cannot be had now comes again.
func refuse(c *rpcserver.Call, cookie []byte, e filesystem.Errno) rpcserver.Verdict {
	if e == filesystem.ErrLater {
		return rpcserver.Drop
	}
	return answer(c, cookie, statOf(e))
}

func (m *Manager) serveTest(c *rpcserver.Call, to answerTo) rpcserver.Verdict {
	var a nlm4.TestArgs
	if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
		return c.Garbage()
	}
	key, e := m.keyOf(c, a.Lock.FH, false)
	if e == filesystem.ErrLater {
		return rpcserver.Drop
	}
	r := nlm4.TestRes{Cookie: a.Cookie, Stat: statOf(e)}
	if e == filesystem.OK {
		holder, v := m.table.Test(filelock.File{Key: key, Handle: a.Lock.FH}, lockOf(&a.Lock, a.Exclusive, to))
		if r.Stat = statOfVerdict(v); v == filelock.Denied {
			r.Holder = holderOf(&holder)
		}
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (m *Manager) serveLock(c *rpcserver.Call, monitored bool, to answerTo) rpcserver.Verdict {
	var a nlm4.LockArgs
	if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
		return c.Garbage()
	}
	key, e := m.keyOf(c, a.Lock.FH, false)
	if e != filesystem.OK {
		return refuse(c, a.Cookie, e)
	}
	if m.InGrace() != a.Reclaim {
		return answer(c, a.Cookie, nlm4.DeniedGrace)
	}
	if monitored {
		// Monitored before it is granted: a lock that a restart forgot no client would reclaim.
		h := host{Name: string(a.Lock.Caller), Addr: to.addr, Local: to.local}
		err := m.state.monitor(h, a.State)
		if errors.Is(err, errFull) && !m.InGrace() {
			m.state.prune(m.table.Holders)
			err = m.state.monitor(h, a.State)
		}
		if err != nil {
			m.log.Warn("a lock is refused: its client cannot be noted, and would not be told of a restart", zap.String("client", h.Name), zap.Stringer("address", h.Addr), zap.Error(err))
			return answer(c, a.Cookie, nlm4.DeniedNolocks)
		}
		defer m.state.done(h.id())
	}
	ask := filelock.Ask{Reclaim: a.Reclaim}
	if a.Block {
		ask.Waiter = m.waiterOf(&a.Lock, a.Exclusive, to)
	}
	return answer(c, a.Cookie, statOfVerdict(m.table.Lock(filelock.File{Key: key, Handle: a.Lock.FH}, lockOf(&a.Lock, a.Exclusive, to), ask)))
}

func (m *Manager) serveShare(c *rpcserver.Call, sharing bool, to answerTo) rpcserver.Verdict {
	var a nlm4.ShareArgs
	if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
		return c.Garbage()
	}
	key, e := m.keyOf(c, a.FH, !sharing)
	if e == filesystem.ErrLater {
		return rpcserver.Drop
	}
	r := nlm4.ShareRes{Cookie: a.Cookie, Stat: statOf(e)}
	if e == filesystem.OK {
		on, who := filelock.File{Key: key, Handle: a.FH}, filelock.Owner{Client: clientOf(string(a.Caller), to.addr), Name: string(a.Owner)}
		if sharing {
			r.Stat = statOfVerdict(m.table.Share(on, filelock.Share{Owner: who, Access: a.Access, Deny: a.Mode, Privileged: to.secure}, a.Reclaim))
		} else {
			m.table.Unshare(on, who)
		}
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

// nsm is the status monitor, as far as a lock manager needs one: it hears of clients that have restarted.
type nsm Manager

// ID is the program number.
func (p *nsm) ID() uint32 { return nlm4.NSMProg }

// Versions are 1 and 1.
func (p *nsm) Versions() (low, high uint32) { return nlm4.NSMVers, nlm4.NSMVers }

// Keeps is false.
func (p *nsm) Keeps(_, _ uint32) bool { return false }

// Classify leaves all to workers.
func (p *nsm) Classify(*rpcserver.Call) rpcserver.Class { return rpcserver.Worker }

// Serve executes one call. Others cannot use this monitor: MON and its like are not there.
func (p *nsm) Serve(c *rpcserver.Call) rpcserver.Verdict {
	m := (*Manager)(p)
	switch c.Proc {
	case nlm4.NSMProcNull:
		return rpcserver.Done
	case nlm4.NSMProcStat:
		nlm4.ParseMonName((*xdr.Reader)(&c.Args))
		if c.Args.Err() != nil {
			return c.Garbage()
		}
		c.Out = xdr.AppendUint32(xdr.AppendUint32(c.Out, 1), m.state.number()) // STAT_FAIL: it monitors for itself only
		return rpcserver.Done
	case nlm4.NSMProcNotify:
		var a nlm4.Notify
		if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
			return c.Garbage()
		}
		if gone := m.state.restarted(string(a.Name), c.Peer.Addr.Addr(), a.State); len(gone) > 0 {
			// From any port: rpc.statd, too, tells and is told from any.
			m.table.Drop(func(h filelock.Client) bool { return gone[h] }, true)
		}
		return rpcserver.Done
	}
	return c.NoProc()
}
