package iscsi

import (
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// peerLogs keeps a peer from flooding the log. Each host has a few lines of a kind at once, then one now and then. The
// next line that passes says how many did not.
type peerLogs struct {
	log   *zap.Logger
	audit *zap.Logger

	mu    sync.Mutex
	hosts map[string]*peerLog
}

type peerLog struct {
	all *peerLogs

	quotas [quotas]quota // guarded by all.mu
}

// What a peer does much of must not hide what else it does: each kind of line has a quota of its own.
const (
	quotaLog      = iota
	quotaRefusals // of logins
	quotaDiscovery
	quotaSessions // of targets that ask for no proof
	quotas
)

type quota struct {
	tokens  float64
	last    time.Time
	dropped int
}

func newPeerLogs(log, audit *zap.Logger) *peerLogs {
	return &peerLogs{log: log, audit: audit, hosts: make(map[string]*peerLog)}
}

// of returns the limiter of a peer's host.
func (p *peerLogs) of(addr net.Addr) *peerLog {
	host := addr.String()
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.hosts[host]; l != nil {
		return l
	}
	now := time.Now()
	if len(p.hosts) >= maxPeerLogs {
		// A host that has all its lines again loses nothing by being forgotten. Where there is none, the flood comes
		// from many hosts, and any one may go.
		var any string
		for h, l := range p.hosts {
			any = h
			if l.rested(now) {
				break
			}
		}
		delete(p.hosts, any)
	}
	l := &peerLog{all: p}
	for i := range l.quotas {
		l.quotas[i] = quota{tokens: logBurst, last: now}
	}
	p.hosts[host] = l
	return l
}

// rested reports whether the host has all its lines again.
func (l *peerLog) rested(now time.Time) bool {
	for i := range l.quotas {
		if now.Sub(l.quotas[i].last) <= logBurst*logEvery {
			return false
		}
	}
	return true
}

// take reports whether a line may pass and how many did not since the last that did.
func (l *peerLog) take(kind int) (dropped int, ok bool) {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	q, now := &l.quotas[kind], time.Now()
	q.tokens = min(logBurst, q.tokens+float64(now.Sub(q.last))/float64(logEvery))
	q.last = now
	if q.tokens < 1 {
		q.dropped++
		return 0, false
	}
	q.tokens--
	dropped, q.dropped = q.dropped, 0
	return dropped, true
}

func (l *peerLog) warn(msg string, f ...zap.Field) {
	l.write(l.all.log, quotaLog, zap.WarnLevel, msg, f)
}

func (l *peerLog) info(msg string, f ...zap.Field) {
	l.write(l.all.log, quotaLog, zap.InfoLevel, msg, f)
}

// refused writes into the record that a login was refused or sent elsewhere.
func (l *peerLog) refused(level zapcore.Level, msg string, f ...zap.Field) {
	l.write(l.all.audit, quotaRefusals, level, msg, f)
}

// session writes into the record that a session began or ended. Who has proved a secret is always recorded.
func (l *peerLog) session(ss *session, level zapcore.Level, msg string, f ...zap.Field) {
	switch {
	case ss.target == nil:
		l.write(l.all.audit, quotaDiscovery, level, msg, f)
	case ss.user == "":
		l.write(l.all.audit, quotaSessions, level, msg, f)
	default:
		if ce := l.all.audit.Check(level, msg); ce != nil {
			ce.Write(append(f, zap.String("user", ss.user))...)
		}
	}
}

func (l *peerLog) write(log *zap.Logger, kind int, level zapcore.Level, msg string, f []zap.Field) {
	ce := log.Check(level, msg)
	if ce == nil {
		return
	}
	dropped, ok := l.take(kind)
	if !ok {
		return
	}
	if dropped > 0 {
		f = append(f, zap.Int("lines_suppressed", dropped))
	}
	ce.Write(f...)
}
