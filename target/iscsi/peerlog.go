package iscsi

import (
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// peerLogs keeps a peer from flooding the log: each host has a few lines at once and then one now and then, and the
// next line that passes says how many did not.
type peerLogs struct {
	log   *zap.Logger
	audit *zap.Logger

	mu    sync.Mutex
	hosts map[string]*peerLog
}

type peerLog struct {
	all *peerLogs

	// Guarded by all.mu.
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
		// Hosts that have all their lines again lose nothing by being forgotten; when there are none, the flood comes
		// from many hosts and any one may go.
		var any string
		for h, l := range p.hosts {
			any = h
			if now.Sub(l.last) > logBurst*logEvery {
				break
			}
		}
		delete(p.hosts, any)
	}
	l := &peerLog{all: p, tokens: logBurst, last: now}
	p.hosts[host] = l
	return l
}

// take reports whether a line may pass and how many did not since the last that did.
func (l *peerLog) take() (dropped int, ok bool) {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	now := time.Now()
	l.tokens = min(logBurst, l.tokens+float64(now.Sub(l.last))/float64(logEvery))
	l.last = now
	if l.tokens < 1 {
		l.dropped++
		return 0, false
	}
	l.tokens--
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}

func (l *peerLog) warn(msg string, f ...zap.Field) { l.write(l.all.log, zap.WarnLevel, msg, f) }
func (l *peerLog) info(msg string, f ...zap.Field) { l.write(l.all.log, zap.InfoLevel, msg, f) }

// audit writes a line that belongs into the record of who came, who was refused and who left.
func (l *peerLog) audit(level zapcore.Level, msg string, f ...zap.Field) {
	l.write(l.all.audit, level, msg, f)
}

func (l *peerLog) write(log *zap.Logger, level zapcore.Level, msg string, f []zap.Field) {
	ce := log.Check(level, msg)
	if ce == nil {
		return
	}
	dropped, ok := l.take()
	if !ok {
		return
	}
	if dropped > 0 {
		f = append(f, zap.Int("lines_suppressed", dropped))
	}
	ce.Write(f...)
}
