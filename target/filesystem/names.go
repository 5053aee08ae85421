package filesystem

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Names is the name service that rules with names ask; *net.Resolver is one.
type Names interface {
	LookupAddr(ctx context.Context, addr string) ([]string, error)
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// names remembers which addresses have the names of rules. Questions are asked beside the workers, of which only a few
// wait for answers: a name service that is slow holds up those whom it is asked about, and no others. One that is away
// says neither yes nor no, and what it said last stays in force.
type names struct {
	service Names
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	asking  chan struct{} // one for each question that is being asked
	waiting chan struct{} // one for each worker that waits for an answer

	mu sync.Mutex
	m  map[question]*reply
}

type question struct {
	name string // of a rule
	addr netip.Addr
}

type reply struct {
	known, yes bool
	until      time.Time     // then it is asked again
	asked      chan struct{} // closed when the question that is being asked is answered; nil: none is
}

func newNames(service Names) *names {
	if service == nil {
		service = net.DefaultResolver
	}
	n := &names{service: service, asking: make(chan struct{}, maxAsking), waiting: make(chan struct{}, maxWaiting), m: make(map[question]*reply)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

func (n *names) close() {
	n.cancel()
	n.wg.Wait()
}

// matches reports whether addr has the rule's name; known is false as long as that cannot be said.
func (n *names) matches(q question) (yes, known bool) {
	yes, known, asked := n.recall(q)
	if asked == nil {
		return yes, known
	}
	select {
	case n.waiting <- struct{}{}:
		defer func() { <-n.waiting }()
	default:
		return yes, known
	}
	t := time.NewTimer(nameTime)
	defer t.Stop()
	select {
	case <-asked:
		yes, known, _ = n.recall(q)
	case <-t.C:
	case <-n.ctx.Done():
	}
	return yes, known
}

// recall says what is known, and has the question asked if that is old; asked is closed when it has been answered.
func (n *names) recall(q question) (yes, known bool, asked <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.m[q]
	if r == nil {
		if len(n.m) >= maxNames {
			n.forgetLocked()
		}
		r = &reply{}
		n.m[q] = r
	}
	if r.asked == nil && !time.Now().Before(r.until) && n.ctx.Err() == nil {
		select {
		case n.asking <- struct{}{}:
			r.asked = make(chan struct{})
			n.wg.Go(func() { n.ask(q, r) })
		default: // too many are; the client asks again
		}
	}
	if r.asked == nil {
		return r.yes, r.known, nil
	}
	return r.yes, r.known, r.asked
}

// forgetLocked makes room: what is not being asked is asked again when it is wanted.
func (n *names) forgetLocked() {
	for q, r := range n.m {
		if r.asked == nil {
			delete(n.m, q)
		}
	}
}

func (n *names) ask(q question, r *reply) {
	ctx, cancel := context.WithTimeout(n.ctx, nameTime)
	defer cancel()
	yes, err := lookUp(ctx, n.service, q)
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.until = time.Now().Add(nameAge); err == nil {
		r.yes, r.known = yes, true
	} else {
		r.until = time.Now().Add(nameRetry)
	}
	close(r.asked)
	r.asked = nil
	<-n.asking
}

// lookUp asks the name service whether an address is a rule's name, or confirms a pattern in both directions: who owns an
// address range writes its reverse zone at will.
func lookUp(ctx context.Context, service Names, q question) (bool, error) {
	network := "ip6"
	if q.addr.Is4() {
		network = "ip4"
	}
	forward := func(name string) (bool, error) {
		l, err := service.LookupNetIP(ctx, network, name)
		return slices.ContainsFunc(l, func(a netip.Addr) bool { return a.Unmap() == q.addr }), unlessNone(err)
	}
	suffix, pattern := strings.CutPrefix(q.name, "*")
	if !pattern {
		return forward(q.name)
	}
	l, err := service.LookupAddr(ctx, q.addr.String())
	if err = unlessNone(err); err != nil {
		return false, err
	}
	for _, name := range l {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		yes, ferr := forward(name)
		if yes {
			return true, nil
		}
		err = errors.Join(err, ferr)
	}
	return false, err
}

// unlessNone drops the errors that say that there is no such name, or none of the network: those are answers.
func unlessNone(err error) error {
	var d *net.DNSError
	var a *net.AddrError
	if errors.As(err, &d) && d.IsNotFound || errors.As(err, &a) {
		return nil
	}
	return err
}
