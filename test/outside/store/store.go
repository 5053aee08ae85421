// Package store is an RPC program: values of up to 1 MiB by name, each of which only the user may change who made it.
package store

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"github.com/sluice-storage/sluice/target/rpcserver"
)

// Prog is the program's number, one of those that are every user's to choose (RFC 5531 section 8.1).
const (
	Prog = 0x20534c55
	Vers = 1
)

// The procedures. A name is a string of up to 255 bytes, a value opaque data. Every result begins with a status.
const (
	ProcPut = 1 // name, value; no result
	ProcGet = 2 // name; the value
)

// What a status is.
const (
	OK uint32 = iota
	None
	NotYours
)

// Store is the program. The zero value has no values.
type Store struct {
	mu     sync.Mutex
	values map[string]value
}

type value struct {
	uid  uint32
	data []byte // never changed
}

// arguments are those of a call. The data of a value comes after them, perhaps by RDMA.
type arguments struct {
	name []byte
	size int
}

// ID implements rpcserver.Program.
func (s *Store) ID() uint32 { return Prog }

// Versions implements rpcserver.Program.
func (s *Store) Versions() (low, high uint32) { return Vers, Vers }

// Keeps says that a Put that is repeated must not take back a later one.
func (s *Store) Keeps(_, proc uint32) bool { return proc == ProcPut }

// Classify parses the arguments.
func (s *Store) Classify(c *rpcserver.Call) rpcserver.Class {
	a, ok := c.Parsed.(*arguments)
	if !ok {
		a = &arguments{}
		c.Parsed = a
	}
	class := rpcserver.Inline
	a.name = c.Args.Opaque(255)
	switch c.Proc {
	case ProcPut:
		a.size = c.Args.Count(rpcserver.MaxPayload)
		class = rpcserver.Worker
	case ProcGet:
	default:
		c.NoProc()
		return rpcserver.Answered
	}
	if c.Args.Err() != nil {
		c.Garbage()
		return rpcserver.Answered
	}
	return class
}

// Screen lets the value of a Put be fetched from a client that has shown no right yet.
func (s *Store) Screen(c *rpcserver.Call) rpcserver.Verdict {
	if c.Proc != ProcPut || c.Cred.Flavor != rpcserver.AuthSys {
		return c.Garbage()
	}
	return rpcserver.Again
}

// Serve executes a call.
func (s *Store) Serve(c *rpcserver.Call) rpcserver.Verdict {
	a := c.Parsed.(*arguments)
	if c.Proc == ProcPut {
		return s.put(c, a)
	}
	return s.get(c, a)
}

func (s *Store) put(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	data, err := c.Data(a.size)
	if err != nil || c.Cred.Flavor != rpcserver.AuthSys {
		return c.Garbage()
	}
	v := value{uid: c.Sys.UID, data: slices.Concat(data...)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, is := s.values[string(a.name)]; is && was.uid != v.uid {
		c.Out = binary.BigEndian.AppendUint32(c.Out, NotYours)
		return rpcserver.Done
	}
	if s.values == nil {
		s.values = map[string]value{}
	}
	s.values[string(a.name)] = v
	c.Peer.Trust()
	c.Out = binary.BigEndian.AppendUint32(c.Out, OK)
	return rpcserver.Done
}

func (s *Store) get(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	s.mu.Lock()
	v, is := s.values[string(a.name)]
	s.mu.Unlock()
	if !is {
		c.Out = binary.BigEndian.AppendUint32(c.Out, None)
		return rpcserver.Done
	}
	sink, err := c.Sink(len(v.data))
	if errors.Is(err, rpcserver.ErrNoMemory) {
		return rpcserver.Later
	}
	if err != nil {
		return c.Fail(rpcserver.SystemErr)
	}
	data := v.data
	for _, b := range sink {
		data = data[copy(b, data):]
	}
	c.Out = binary.BigEndian.AppendUint32(c.Out, OK)
	c.Out = binary.BigEndian.AppendUint32(c.Out, uint32(len(v.data)))
	c.SetPayload(len(v.data))
	return rpcserver.Done
}
