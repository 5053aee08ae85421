// Package isns registers targets with an iSNS server (RFC 4171), so that initiators find them without knowing an
// address. It is a client only.
//
//	c := isns.New(isns.Options{Server: "192.0.2.1:3205", Entity: "storage1.example.com", Log: log})
//	c.Update(isns.Registration{Targets: ..., Portals: ...}) // any time, any goroutine
//	err := c.Run(ctx)                                        // registers, refreshes, and takes everything back at the end
package isns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Options configure a Client.
type Options struct {
	Server string // "host" or "host:port"; the port is 3205 by default
	// Entity is the network entity identifier, at most 255 bytes: what names this node as a whole (RFC 4171 section 6.2.1).
	Entity string
	Log    *zap.Logger
	// Period is how long the server keeps a registration that is not refreshed; it is refreshed three times as often.
	// Default 10 minutes.
	Period time.Duration
	// Timeout bounds one exchange; default 10 s.
	Timeout time.Duration
}

// Registration is everything that is to be known of this entity.
type Registration struct {
	Targets []Target
	Portals []Portal
}

// Target is one storage node.
type Target struct{ Name, Alias string }

// Portal is one address that serves all targets, with its target portal group tag.
type Portal struct {
	Addr  netip.AddrPort
	Group uint16
}

// Error is a status that the server answered with (RFC 4171 section 5.4).
type Error struct {
	Function uint16 // of the request
	Status   uint32
}

var statusText = map[uint32]string{1: "unknown error", 2: "message format error", 3: "invalid registration", 5: "invalid query", 6: "source unknown",
	7: "source absent", 8: "source unauthorized", 9: "no such entry", 10: "version not supported", 11: "internal error", 12: "busy", 13: "option not understood",
	14: "invalid update", 15: "message not supported", 22: "attribute not implemented"}

func (e *Error) Error() string {
	t := statusText[e.Status]
	if t == "" {
		t = "status"
	}
	return fmt.Sprintf("isns: the server answered message %04xh with %q (%d)", e.Function, t, e.Status)
}

// Client keeps one registration alive. Update may be called by any goroutine, Run by one.
type Client struct {
	o Options

	mu      sync.Mutex
	reg     Registration
	changed chan struct{} // holds one token

	xid uint16 // Run's
}

// New returns a client that has not spoken to its server yet.
func New(o Options) *Client {
	if _, _, err := net.SplitHostPort(o.Server); err != nil {
		o.Server = net.JoinHostPort(o.Server, "3205")
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Period <= 0 {
		o.Period = 10 * time.Minute
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	return &Client{o: o, changed: make(chan struct{}, 1)}
}

// Update replaces what is registered.
func (c *Client) Update(r Registration) {
	c.mu.Lock()
	c.reg = Registration{Targets: slices.Clone(r.Targets), Portals: slices.Clone(r.Portals)}
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *Client) registration() Registration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reg
}

// Run keeps the registration until the context ends, then takes it back. A server that does not answer is asked again,
// at first after a second, later after a minute.
func (c *Client) Run(ctx context.Context) error {
	source := ""
	wait := time.Second
	failed := false
	for {
		r := c.registration()
		err := c.refresh(ctx, &source, r)
		next := c.o.Period / 3
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if !failed {
				c.o.Log.Warn("iSNS registration failed; is the server up?", zap.String("server", c.o.Server), zap.Error(err))
			}
			failed, next = true, min(wait, next)
			wait = min(2*wait, time.Minute)
		default:
			if failed || wait == time.Second {
				c.o.Log.Info("registered with iSNS", zap.String("server", c.o.Server), zap.Int("targets", len(r.Targets)), zap.Int("portals", len(r.Portals)))
			}
			failed, wait = false, 2*time.Second
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			if source == "" {
				return nil
			}
			// The context that ended cannot bound this any more.
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.o.Timeout)
			defer cancel()
			return c.Deregister(end, source)
		case <-c.changed:
			t.Stop()
		case <-t.C:
		}
	}
}

// refresh registers r and remembers in source which node may act for the entity afterwards.
func (c *Client) refresh(ctx context.Context, source *string, r Registration) error {
	if len(r.Targets) == 0 || len(r.Portals) == 0 {
		if *source == "" {
			return nil
		}
		err := c.Deregister(ctx, *source)
		if err == nil {
			*source = ""
		}
		return err
	}
	if err := c.Register(ctx, r); err != nil {
		return err
	}
	*source = r.Targets[0].Name
	return nil
}

// Register replaces the entity's registration by r.
func (c *Client) Register(ctx context.Context, r Registration) error {
	for i, m := range registerMessages(c.o.Entity, r, uint32(c.o.Period/time.Second)) {
		flags := uint16(0)
		if i == 0 {
			flags = flagReplace
		}
		if _, err := c.exchange(ctx, fnRegister, flags, m); err != nil {
			return err
		}
	}
	return nil
}

// Deregister takes the entity back; source is the name of a target of it.
func (c *Client) Deregister(ctx context.Context, source string) error {
	var b []byte
	b = appendText(b, tagName, source)
	b = appendAttr(b, tagDelimiter, nil)
	b = appendText(b, tagEntity, c.o.Entity)
	_, err := c.exchange(ctx, fnDeregister, 0, b)
	return err
}

// Targets asks which targets source can see, and where: name to addresses.
func (c *Client) Targets(ctx context.Context, source string) (map[string]bool, error) {
	var b []byte
	b = appendText(b, tagName, source)
	b = append32(b, tagNodeType, nodeTarget)
	b = appendAttr(b, tagDelimiter, nil)
	b = appendAttr(b, tagName, nil)
	attrs, err := c.exchange(ctx, fnQuery, 0, b)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	past := false
	for _, a := range attrs {
		past = past || a.tag == tagDelimiter
		if past && a.tag == tagName {
			names[a.text()] = true
		}
	}
	return names, nil
}

// exchange sends one request on a connection of its own and returns the answer's attributes.
func (c *Client) exchange(ctx context.Context, fn, flags uint16, payload []byte) ([]attr, error) {
	if len(payload) > maxPayload {
		return nil, fmt.Errorf("isns: a message of %d bytes, %d are the most", len(payload), maxPayload)
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", c.o.Server)
	if err != nil {
		return nil, fmt.Errorf("isns: %w", err)
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.xid++
	if _, err := nc.Write(appendPDU(nil, fn, flags|flagClient|flagFirst|flagLast, c.xid, payload)); err != nil {
		return nil, fmt.Errorf("isns: send: %w", err)
	}
	var body []byte
	for seq := uint16(0); ; seq++ {
		h, part, err := readPDU(nc)
		if err != nil {
			return nil, fmt.Errorf("isns: receive: %w", err)
		}
		if h.function != fn|fnResponse || h.xid != c.xid || h.seq != seq {
			return nil, fmt.Errorf("isns: answer %04xh number %d part %d to request %04xh number %d", h.function, h.xid, h.seq, fn, c.xid)
		}
		if body = append(body, part...); len(body) > maxAnswer {
			return nil, errors.New("isns: the answer is too long")
		}
		if h.flags&flagLast != 0 {
			break
		}
	}
	status, attrs, err := parseAnswer(body)
	if err != nil {
		return nil, err
	}
	if status != 0 {
		return nil, &Error{Function: fn, Status: status}
	}
	return attrs, nil
}

func readPDU(r io.Reader) (header, []byte, error) {
	var b [headerLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return header{}, nil, err
	}
	h, err := parseHeader(b[:])
	if err != nil {
		return h, nil, err
	}
	part := make([]byte, h.length)
	_, err = io.ReadFull(r, part)
	return h, part, err
}
