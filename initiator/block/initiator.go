package block

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/logging"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Options configure an Initiator. Zero values take the defaults named.
type Options struct {
	// Name is the iSCSI initiator name; by default one made of the host's name.
	Name string
	// Device is the RDMA device of iser:// URLs; without it they are refused.
	Device transport.Device
	// Provider makes the devices of URLs that name a provider or an exposure, and without a Device that of those that name neither (the
	// words are empty then). It is asked each time; the devices stay the caller's and must outlive the Initiator.
	Provider func(name, exposure string) (transport.Device, error)
	// Memory is where buffers come from; by default a pool of 256 MiB that the Initiator owns. The Initiator registers it
	// with Device unless Registered says that this has been done.
	Memory     *mem.Pool
	Registered bool
	// Depth is the number of commands under way on a path, DefaultDepth if 0.
	Depth int
	// Piece is the longest transfer of one command in bytes, DefaultPiece if 0.
	Piece int
	// Immediate is the longest write over iSER, in bytes, whose data travels with the command; 8 KiB if 0, negative for
	// none, which also stops immediate data over TCP.
	Immediate int
	// Keepalive is the silence after which the target is asked whether it is there; three times that ends the session.
	Keepalive time.Duration
	// ReconnectLimit is how long requests wait for a path that is lost, or for a target that asks to wait (BUSY, becoming
	// ready, in transition), a minute if 0, for ever if negative.
	ReconnectLimit time.Duration
	// CommandTimeout is how long one command may take before it is aborted, 30 s if 0, for ever if negative; flushes and
	// what moves no data may take four times that, raw commands any time. A request is begun three times at most. The path
	// is dropped where the abort is not answered either.
	CommandTimeout time.Duration
	// StateDir is a directory for the seed of this host's ISIDs, made if it is missing (DefaultStateDir is the commands').
	// With it a volume that is opened again is the same initiator port, whose persistent reservations hold on; without it
	// ISIDs are random.
	StateDir string
	// CHAP is the name and secret of URLs that hold none, and MutualCHAP those that the target has to prove itself with.
	CHAP, MutualCHAP Secret
	// MinBackoff and MaxBackoff bound the pause between attempts to log in, 100 ms and 5 s if 0.
	MinBackoff, MaxBackoff time.Duration
	// DialTCP replaces net.Dialer.DialContext.
	DialTCP func(ctx context.Context, network, addr string) (net.Conn, error)
	// Log gets what happens to paths; nil logs nothing. slog.New of a handler logs anywhere, zap too (go.uber.org/zap/exp/zapslog).
	Log *slog.Logger
}

// Initiator opens volumes. Its methods may be called by any goroutine.
type Initiator struct {
	o      Options
	pool   *mem.Pool
	own    bool
	known  fabrics
	zeroes *mem.Slab // of zero; registered with every device
	spare  spare
	zero   mem.Span
	// requests are those of Do, used again with the channels that they wait on; not a package variable, because a channel
	// belongs to the synctest bubble that made it.
	requests sync.Pool
}

// New returns an Initiator. Close it after its volumes.
func New(o Options) (*Initiator, error) {
	if o.Name == "" {
		o.Name = DefaultName()
	}
	if err := iscsi.CheckName(o.Name); err != nil {
		return nil, fmt.Errorf("block: initiator name: %w", err)
	}
	if o.CHAP.Name != "" && o.CHAP.Secret == "" || o.MutualCHAP.Name != "" && o.MutualCHAP.Secret == "" {
		return nil, errors.New("block: a CHAP user name without a secret")
	}
	setDefault(&o.Depth, DefaultDepth)
	setDefault(&o.Piece, DefaultPiece)
	setDefault(&o.Immediate, iscsi.DefaultRecvData)
	setDefault(&o.Keepalive, keepalive)
	setDefault(&o.ReconnectLimit, reconnectLimit)
	setDefault(&o.CommandTimeout, commandTimeout)
	setDefault(&o.MinBackoff, minBackoff)
	setDefault(&o.MaxBackoff, maxBackoff)
	o.Depth = min(o.Depth, MaxDepth)
	o.Log = logging.OrNone(o.Log)
	if o.DialTCP == nil {
		o.DialTCP = (&net.Dialer{}).DialContext
	}
	i := &Initiator{o: o, pool: o.Memory}
	i.requests.New = func() any { return &request{waiter: make(chan struct{}, 1)} }
	if i.pool == nil {
		i.pool, i.own = mem.NewPool(memoryLimit), true
	}
	if err := i.makeZeroes(); err != nil {
		return nil, err
	}
	if o.Device != nil {
		if err := i.knowLocked(o.Device, i.own || !o.Registered); err != nil {
			return nil, errors.Join(err, i.zeroes.Close())
		}
		i.known.devices = []transport.Device{o.Device}
	}
	return i, nil
}

func setDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// DefaultName is an initiator name made of the host's name.
func DefaultName() string {
	h, err := os.Hostname()
	if err != nil || h == "" {
		h = "host"
	}
	h = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, h)
	return "iqn.2025-01.io.sluice-storage:" + h
}

// Name is the initiator's iSCSI name.
func (i *Initiator) Name() string { return i.o.Name }

// Memory is the pool that registered buffers come from.
func (i *Initiator) Memory() *mem.Pool { return i.pool }

// Close gives back what the Initiator holds. Its volumes must be closed.
func (i *Initiator) Close() error {
	err := errors.Join(i.spare.close(), i.known.forgetZeroes(i), i.zeroes.Close())
	if !i.own { // the pool outlives us
		err = errors.Join(err, i.known.forget(i))
	}
	if i.own {
		err = errors.Join(err, i.pool.Close())
	}
	if err != nil {
		return fmt.Errorf("block: close the initiator: %w", err)
	}
	return nil
}

// parse reads a URL; the secrets that it lacks are the Initiator's. That the target has to prove itself is never dropped,
// wherever it was asked for.
func (i *Initiator) parse(raw string) (*URL, error) {
	u, err := ParseURL(raw)
	if err != nil {
		return nil, err
	}
	if u.CHAP.Name == "" {
		u.CHAP = i.o.CHAP
	}
	if u.MutualCHAP.Secret == "" {
		u.MutualCHAP = i.o.MutualCHAP
	}
	if u.MutualCHAP.Secret != "" && u.CHAP.Name == "" {
		return nil, badURL("the target's secret is given, and no user and secret of ours: it proves itself only to those who do")
	}
	return u, nil
}

// connect logs in to the portal of u for a normal session, with the memory that k keeps. limits stay those of a session that knows no volume.
func (i *Initiator) connect(ctx context.Context, u *URL, isid iscsi.ISID, k *kept) (*session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, loginTimeout, &ConnectError{u.at(), fmt.Errorf("it did not answer the login in %v", loginTimeout)})
	defer cancel()
	depth := i.o.Depth
	if u.Depth > 0 {
		depth = u.Depth
	}
	p := loginParams{name: i.o.Name, url: u, isid: isid, iser: u.ISER, noImm: i.o.Immediate < 0}
	if u.Initiator != "" {
		p.name = u.Initiator
	}
	for hops := 0; ; {
		s, err := i.attempt(ctx, u, p, k, depth)
		var m misnumbered
		var le *LoginError
		switch {
		case errors.As(err, &m) && p.algs == nil:
			p.algs = []iscsi.CHAPAlgorithm{iscsi.CHAPMD5}
		case errors.As(err, &le) && iscsi.LoginStatus(le.Status).Class() == 1 && hops < maxRedirects:
			// The target is elsewhere (RFC 7143 section 11.13.5). Each login asks the known address again: a move for good
			// that is remembered could not be taken back.
			to, perr := redirected(u, le.Address)
			if perr != nil {
				return nil, errors.Join(err, perr)
			}
			u, p.url = to, to
			hops++
		default:
			return s, err
		}
	}
}

// redirected is u at the address of a TargetAddress value, "host[:port][,group]".
func redirected(u *URL, address string) (*URL, error) {
	to := *u
	to.Socket = "" // it is of the portal that sends us away
	addr, _, _ := strings.Cut(address, ",")
	if err := to.portal(addr); err != nil {
		return nil, err
	}
	return &to, nil
}

func (i *Initiator) attempt(ctx context.Context, u *URL, p loginParams, k *kept, depth int) (*session, error) {
	s := &session{ini: i, portal: u.at(), lun: encodeLUN(u.LUN), log: i.o.Log, isid: p.isid}
	if u.ISER {
		c, err := i.dialISER(ctx, u, k, depth, false)
		if err != nil {
			return nil, err
		}
		r, err := login(ctx, c, p)
		if err != nil {
			c.drain(err)
			c.release()
			return nil, err
		}
		s.take(r, c)
		s.open(depth, c.slots)
		c.attach(s, i.o.Immediate)
		return s, nil
	}
	c, err := i.dialTCP(ctx, u, k, depth)
	if err != nil {
		return nil, err
	}
	r, err := login(ctx, c, p)
	if err == nil {
		s.take(r, c)
		err = c.attach(s, p.noImm)
	}
	if err != nil {
		c.close(err)
		c.release()
		return nil, err
	}
	s.open(depth, c.slots)
	return s, nil
}

func (s *session) take(r loginResult, m datamover) {
	s.dm, s.params, s.tpgt = m, r.params, r.portalGroup
	s.cmdSN, s.maxCmdSN, s.statSN = r.cmdSN, r.maxCmdSN, r.statSN
}

// encodeLUN is the single-level form of SAM-5 section 4.7: peripheral addressing below 256, flat space above.
func encodeLUN(n uint16) uint64 {
	if n < 256 {
		return uint64(n) << 48
	}
	return uint64(n|0x4000) << 48
}

// decodeLUN reads the eight bytes of REPORT LUNS; ok is false for forms that are not single-level.
func decodeLUN(v uint64) (uint16, bool) {
	top := uint16(v >> 48)
	if v<<16 != 0 || top>>14 > 1 {
		return 0, false
	}
	return top & 0x3fff, true
}
