package lock

import (
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/rpc"
)

func newReader(b []byte) xdr.Reader { return xdr.NewReader(b) }

// Programs are the lock manager and the status monitor.
func (m *Manager) Programs() []rpc.Program { return []rpc.Program{(*nlm)(m), (*nsm)(m)} }

type nlm Manager

// ID is the program number.
func (p *nlm) ID() uint32 { return nlm4.Prog }

// Versions are 4 and 4: version 3 has 32-bit ranges, for NFS version 2.
func (p *nlm) Versions() (low, high uint32) { return nlm4.Vers, nlm4.Vers }

// Keeps is false: every procedure may be executed twice by one owner.
func (p *nlm) Keeps(_, _ uint32) bool { return false }

// Serve executes one call.
func (p *nlm) Serve(c *rpc.Call) rpc.Verdict {
	if !c.Worker {
		return rpc.Again
	}
	m := (*Manager)(p)
	switch c.Proc {
	case nlm4.ProcTest:
		return m.serveTest(c)
	case nlm4.ProcLock, nlm4.ProcNmLock:
		return m.serveLock(c)
	case nlm4.ProcCancel:
		return m.serveCancel(c)
	case nlm4.ProcUnlock:
		return m.serveUnlock(c)
	case nlm4.ProcShare, nlm4.ProcUnshare:
		return m.serveShare(c)
	case nlm4.ProcFreeAll:
		var a nlm4.FreeAllArgs
		if a.Parse(&c.Args); c.Args.Err() != nil {
			return c.Garbage()
		}
		name := string(a.Name)
		m.dropHost(func(h string) bool { return h == name })
		return rpc.Done
	case nlm4.ProcGranted:
		// Nobody here waits for a lock of another server.
		var a nlm4.TestArgs
		if a.Parse(&c.Args); c.Args.Err() != nil {
			return c.Garbage()
		}
		return answer(c, a.Cookie, nlm4.Denied)
	}
	return c.NoProc()
}

func answer(c *rpc.Call, cookie []byte, st nlm4.Stat) rpc.Verdict {
	r := nlm4.Res{Cookie: cookie, Stat: st}
	c.Out = r.Append(c.Out)
	return rpc.Done
}

// statOf is what a lock manager says of a handle that cannot be used.
func statOf(st nfs3.Status) nlm4.Stat {
	switch st {
	case nfs3.OK:
		return nlm4.Granted
	case nfs3.ErrStale, nfs3.ErrBadhandle:
		return nlm4.StaleFH
	case nfs3.ErrRofs:
		return nlm4.Rofs
	case nfs3.ErrJukebox:
		return nlm4.DeniedNolocks
	}
	return nlm4.Failed
}

func (m *Manager) serveTest(c *rpc.Call) rpc.Verdict {
	var a nlm4.TestArgs
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	r := nlm4.TestRes{Cookie: a.Cookie}
	key, st := m.files.CheckLock(c, a.Lock.FH)
	if r.Stat = statOf(st); r.Stat == nlm4.Granted {
		m.mu.Lock()
		l := lockOf(&a.Lock, a.Exclusive)
		if m.grace {
			r.Stat = nlm4.DeniedGrace
		} else if f := m.table[key]; f != nil {
			if h := f.conflict(&l); h != nil {
				r.Stat = nlm4.Denied
				r.Holder = nlm4.Holder{Exclusive: h.exclusive, SVID: h.svid, Owner: []byte(h.oh), Off: h.start}
				if h.end != ^uint64(0) {
					r.Holder.Len = h.end - h.start + 1
				}
			}
		}
		m.mu.Unlock()
	}
	c.Out = r.Append(c.Out)
	return rpc.Done
}

func (m *Manager) serveLock(c *rpc.Call) rpc.Verdict {
	var a nlm4.LockArgs
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	key, st := m.files.CheckLock(c, a.Lock.FH)
	if st != nfs3.OK {
		return answer(c, a.Cookie, statOf(st))
	}
	addr := c.Peer.Addr.Addr()
	if c.Proc == nlm4.ProcLock {
		// Monitored before it is granted: a lock that a restart forgot nobody would reclaim.
		if err := m.state.monitor(host{Name: string(a.Lock.Caller), Addr: addr.String()}); err != nil {
			return answer(c, a.Cookie, nlm4.DeniedNolocks)
		}
	}
	return answer(c, a.Cookie, m.lock(key, &a, addr))
}

func (m *Manager) serveCancel(c *rpc.Call) rpc.Verdict {
	var a nlm4.CancelArgs
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	key, st := m.files.CheckLock(c, a.Lock.FH)
	if st != nfs3.OK {
		return answer(c, a.Cookie, statOf(st))
	}
	return answer(c, a.Cookie, m.cancelWait(key, &a))
}

func (m *Manager) serveUnlock(c *rpc.Call) rpc.Verdict {
	var a nlm4.UnlockArgs
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	key, st := m.files.CheckLock(c, a.Lock.FH)
	if st != nfs3.OK {
		return answer(c, a.Cookie, statOf(st))
	}
	m.unlock(key, &a)
	return answer(c, a.Cookie, nlm4.Granted)
}

func (m *Manager) serveShare(c *rpc.Call) rpc.Verdict {
	var a nlm4.ShareArgs
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	r := nlm4.ShareRes{Cookie: a.Cookie}
	key, st := m.files.CheckLock(c, a.FH)
	if r.Stat = statOf(st); r.Stat == nlm4.Granted {
		s := share{host: string(a.Caller), owner: string(a.Owner), mode: a.Mode, access: a.Access}
		m.mu.Lock()
		f := m.fileLocked(key)
		switch {
		case c.Proc == nlm4.ProcUnshare:
			f.clearShare(s.host, s.owner)
		case m.grace != a.Reclaim:
			r.Stat = nlm4.DeniedGrace
		case !f.mayShare(s):
			r.Stat = nlm4.Denied
		case len(f.shares) >= maxFileLocks:
			r.Stat = nlm4.DeniedNolocks
		default:
			f.setShare(s)
		}
		m.tidyLocked(key)
		m.mu.Unlock()
	}
	c.Out = r.Append(c.Out)
	return rpc.Done
}

// nsm is the status monitor, as far as a lock manager needs one: it hears of clients that have restarted.
type nsm Manager

// ID is the program number.
func (p *nsm) ID() uint32 { return nlm4.NSMProg }

// Versions are 1 and 1.
func (p *nsm) Versions() (low, high uint32) { return nlm4.NSMVers, nlm4.NSMVers }

// Keeps is false.
func (p *nsm) Keeps(_, _ uint32) bool { return false }

// Serve executes one call. Others cannot use this monitor: MON and its like are not there.
func (p *nsm) Serve(c *rpc.Call) rpc.Verdict {
	if !c.Worker {
		return rpc.Again
	}
	m := (*Manager)(p)
	switch c.Proc {
	case nlm4.NSMProcStat:
		nlm4.ParseMonName(&c.Args)
		if c.Args.Err() != nil {
			return c.Garbage()
		}
		c.Out = xdr.AppendUint32(xdr.AppendUint32(c.Out, 1), m.state.number()) // STAT_FAIL: it monitors for itself only
		return rpc.Done
	case nlm4.NSMProcNotify:
		var a nlm4.Notify
		if a.Parse(&c.Args); c.Args.Err() != nil {
			return c.Garbage()
		}
		// Only the client itself may say so: its name must be one that locks were taken under from its address.
		name, addr := string(a.Name), c.Peer.Addr.Addr().String()
		m.dropHost(func(h string) bool {
			return m.state.is(h, addr) && (h == name || m.state.is(name, addr) || name == addr)
		})
		return rpc.Done
	}
	return c.NoProc()
}
