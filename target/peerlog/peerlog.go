// Package peerlog keeps a peer from flooding the log, and names the host that a peer is of.
package peerlog

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// maxHosts bounds the hosts that are remembered.
	maxHosts = 1024

	// Burst is how many lines of a kind a host has at once.
	Burst = 10
	// Every is how often it has one more.
	Every = 10 * time.Second
)

// Logs are a server's. Each host has a few lines of a kind at once, then one now and then. The next line that passes says how many did not.
type Logs struct {
	log   *zap.Logger
	audit *zap.Logger

	mu    sync.Mutex
	hosts map[string]*Peer
}

// Peer is the limiter of one host.
type Peer struct {
	all *Logs

	quotas [quotas]quota // guarded by all.mu
}

// Kind is what a line is about. What a peer does much of must not hide what else it does: each kind has a quota of its own.
type Kind int

// Kinds of lines.
const (
	General   Kind = iota
	Refusals       // of logins
	Discovery      // sessions
	Sessions       // of targets that ask for no proof
	quotas
)

type quota struct {
	tokens  float64
	last    time.Time
	dropped int
}

// New makes the limiters of a server: audit gets the lines about logins, refusals and ends of sessions.
func New(log, audit *zap.Logger) *Logs {
	return &Logs{log: log, audit: audit, hosts: make(map[string]*Peer)}
}

// Of returns the limiter of a peer's host.
func (p *Logs) Of(addr net.Addr) *Peer {
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
	if len(p.hosts) >= maxHosts {
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
	l := &Peer{all: p}
	for i := range l.quotas {
		l.quotas[i] = quota{tokens: Burst, last: now}
	}
	p.hosts[host] = l
	return l
}

// rested reports whether the host has all its lines again.
func (l *Peer) rested(now time.Time) bool {
	for i := range l.quotas {
		if now.Sub(l.quotas[i].last) <= Burst*Every {
			return false
		}
	}
	return true
}

// take reports whether a line may pass and how many did not since the last that did.
func (l *Peer) take(kind Kind) (dropped int, ok bool) {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	q, now := &l.quotas[kind], time.Now()
	q.tokens = min(Burst, q.tokens+float64(now.Sub(q.last))/float64(Every))
	q.last = now
	if q.tokens < 1 {
		q.dropped++
		return 0, false
	}
	q.tokens--
	dropped, q.dropped = q.dropped, 0
	return dropped, true
}

// Warn writes into the log.
func (l *Peer) Warn(msg string, f ...zap.Field) {
	l.write(l.all.log, General, zap.WarnLevel, msg, f)
}

// Info writes into the log.
func (l *Peer) Info(msg string, f ...zap.Field) {
	l.write(l.all.log, General, zap.InfoLevel, msg, f)
}

// Record writes into the record: that a login was refused or sent elsewhere, or that a session began or ended.
func (l *Peer) Record(kind Kind, level zapcore.Level, msg string, f ...zap.Field) {
	l.write(l.all.audit, kind, level, msg, f)
}

// Always writes into the record without a bound: of who has proved a secret.
func (l *Peer) Always(level zapcore.Level, msg string, f ...zap.Field) {
	if ce := l.all.audit.Check(level, msg); ce != nil {
		ce.Write(f...)
	}
}

func (l *Peer) write(log *zap.Logger, kind Kind, level zapcore.Level, msg string, f []zap.Field) {
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

// Host names what counts as one host: an IPv4 address, or an IPv6 network of 64 bits, since one host may have all
// addresses of such a network.
func Host(a net.Addr) string {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		if h, _, err := net.SplitHostPort(a.String()); err == nil {
			return h
		}
		return a.String()
	}
	ip := ap.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	p, err := ip.Prefix(64)
	if err != nil {
		return ip.String()
	}
	return p.String()
}
