package srpinit

import (
	"context"
	"errors"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/transport"
)

// Command is one SCSI command.
type Command struct {
	LUN   uint16
	Field uint64 // of the LUN instead, where it is not 0
	CDB   []byte
	Attr  wire.Attr
	// Notify is SOLNT: bit 1 asks for a notification of success, bit 2 of failure.
	Notify byte
	Out    []byte // Data-Out
	In     int    // bytes of Data-In
	// Immediate sends Out in the unit, if the login agreed on that.
	Immediate bool
	// Pieces cut a buffer into descriptors of these lengths, the last one for the rest: then the buffers are indirect.
	Pieces []int
	// Within is how many of the descriptors the unit bears, 0 for all: the target fetches the table where there are more.
	Within int
	// Total, where it is not 0, is the length of the buffers as it is claimed.
	Total uint32
}

// Result is how a request ended.
type Result struct {
	wire.Rsp
	In  []byte
	Err error // the connection ended first
}

// Pending is a request that is outstanding.
type Pending struct {
	Tag  uint64
	c    *Channel
	in   func() []byte
	ends []func()
	done chan struct{}
	res  Result
}

// end runs on the owner of the queue pair, so what waits for it runs elsewhere.
func (p *Pending) end(r *wire.Rsp, err error) {
	p.c.ends.Go(func() {
		if r != nil {
			p.res.Rsp = *r
		}
		p.res.Err = err
		if err == nil && p.in != nil {
			p.res.In = p.in()
		}
		for _, f := range p.ends {
			f()
		}
		close(p.done)
	})
}

// Done is closed when the request has ended.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait returns how the request ended.
func (p *Pending) Wait() Result {
	<-p.done
	return p.res
}

// errNoCredit is what a context that ends before there is a credit gives.
var errNoCredit = errors.New("srpinit: no credit")

// take waits for a credit and a tag. Task management may use the last one.
func (c *Channel) take(ctx context.Context, spare int) (*Pending, error) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		c.wake.Broadcast()
		c.mu.Unlock()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.credits <= spare && c.err == nil && !c.closed {
		if ctx.Err() != nil {
			return nil, errNoCredit
		}
		c.wake.Wait()
	}
	if c.err != nil || c.closed {
		return nil, errors.Join(transport.ErrClosed, c.err)
	}
	c.credits--
	c.tag++
	return &Pending{Tag: c.tag, c: c, done: make(chan struct{})}, nil
}

// send enters a request whose fields are set, and sends its unit.
func (c *Channel) send(p *Pending, unit []byte) (*Pending, error) {
	c.mu.Lock()
	err := c.err
	if err == nil {
		c.pending[p.Tag] = p
	}
	c.mu.Unlock()
	if err != nil {
		p.drop()
		return nil, err
	}
	if err := c.Send(unit); err != nil {
		return nil, c.forget(p, err)
	}
	return p, nil
}

// drop gives up what is exposed for a request that was not sent.
func (p *Pending) drop() {
	for _, f := range p.ends {
		f()
	}
}

// forget takes back what could not be sent.
func (c *Channel) forget(p *Pending, err error) error {
	c.mu.Lock()
	_, there := c.pending[p.Tag]
	delete(c.pending, p.Tag)
	c.mu.Unlock()
	if there {
		p.drop()
	}
	return err
}

// buffer exposes n bytes, filled with data, and describes them.
func (c *Channel) buffer(p *Pending, cmd *Command, n int, data []byte, access transport.Access) (b wire.Buffer, content func() []byte, err error) {
	if n == 0 {
		return b, nil, nil
	}
	mem, at, end, err := c.Expose(n, access)
	if err != nil {
		return b, nil, err
	}
	p.ends = append(p.ends, end)
	copy(mem.Bytes(), data)
	content = func() []byte { return append([]byte(nil), mem.Bytes()...) }
	if len(cmd.Pieces) == 0 {
		b = wire.Buffer{Format: wire.Direct, Len: uint32(n), List: make([]byte, wire.MemoryLen)}
		if cmd.Total != 0 {
			b.Len = cmd.Total
		}
		wire.Memory{VA: at.Off, Key: at.STag, Len: b.Len}.Put(b.List)
		return b, content, nil
	}
	b = wire.Buffer{Format: wire.Indirect, Len: uint32(n)}
	if cmd.Total != 0 {
		b.Len = cmd.Total
	}
	for off, i := 0, 0; off < n; i++ {
		k := n - off
		if i < len(cmd.Pieces) {
			k = min(k, cmd.Pieces[i])
		}
		d := make([]byte, wire.MemoryLen)
		wire.Memory{VA: at.Off + uint64(off), Key: at.STag, Len: uint32(k)}.Put(d)
		b.List = append(b.List, d...)
		off += k
	}
	if whole := b.List; cmd.Within > 0 && cmd.Within*wire.MemoryLen < len(whole) {
		table, at, end, err := c.Expose(len(whole), transport.RemoteRead)
		if err != nil {
			return b, nil, err
		}
		p.ends = append(p.ends, end)
		copy(table.Bytes(), whole)
		b.List, b.Table = whole[:cmd.Within*wire.MemoryLen], wire.Memory{VA: at.Off, Key: at.STag, Len: uint32(len(whole))}
	}
	return b, content, nil
}

// Start sends a command.
func (c *Channel) Start(ctx context.Context, cmd Command) (*Pending, error) {
	p, err := c.take(ctx, 1)
	if err != nil {
		return nil, err
	}
	w := wire.Cmd{Tag: p.Tag, LUN: uint64(cmd.LUN) << 48, Attr: cmd.Attr, Notify: wire.Notify(cmd.Notify), CDB: make([]byte, max(16, len(cmd.CDB)))}
	if cmd.LUN > 255 {
		w.LUN = uint64(0x4000|cmd.LUN) << 48
	}
	if cmd.Field != 0 {
		w.LUN = cmd.Field
	}
	copy(w.CDB, cmd.CDB)
	if cmd.Immediate && c.Login.Flags&wire.ImmedSupport != 0 {
		w.Out = wire.Buffer{Format: wire.Immediate, Len: uint32(len(cmd.Out)), Data: cmd.Out}
	} else if w.Out, _, err = c.buffer(p, &cmd, len(cmd.Out), cmd.Out, transport.RemoteRead); err != nil {
		p.drop()
		return nil, err
	}
	if w.In, p.in, err = c.buffer(p, &cmd, cmd.In, nil, transport.RemoteWrite); err != nil {
		p.drop()
		return nil, err
	}
	unit := make([]byte, max(int(c.Login.MaxITUnit), wire.CmdLen+len(w.Out.List)+len(w.In.List)+64))
	return c.send(p, unit[:w.Put(unit, ImmOffset)])
}

// Do sends a command and waits for its end.
func (c *Channel) Do(ctx context.Context, cmd Command) Result {
	p, err := c.Start(ctx, cmd)
	if err != nil {
		return Result{Err: err}
	}
	return p.Wait()
}

// Manage sends task management.
func (c *Channel) Manage(ctx context.Context, fn wire.Function, lun uint16, task uint64) (*Pending, error) {
	p, err := c.take(ctx, 0)
	if err != nil {
		return nil, err
	}
	t := wire.TskMgmt{Tag: p.Tag, LUN: uint64(lun) << 48, Function: fn, Task: task}
	unit := make([]byte, wire.TskMgmtLen)
	return c.send(p, unit[:t.Put(unit)])
}

// Abandon forgets a request that has been aborted, for no response is due, and waits until its memory is the initiator's again.
func (c *Channel) Abandon(p *Pending) {
	c.mu.Lock()
	_, there := c.pending[p.Tag]
	delete(c.pending, p.Tag)
	c.mu.Unlock()
	if there {
		p.end(nil, errors.New("srpinit: abandoned"))
	}
	<-p.done
}

// Response is the response code of a task management answer.
func (r *Result) Response() wire.Response {
	if len(r.ResponseData) < wire.ResponseLen {
		return 0xFF
	}
	return wire.Response(r.ResponseData[wire.ResponseLen-1])
}
