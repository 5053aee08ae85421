package transport

import "context"

// AdapterInfo is what a device says of an adapter below it.
type AdapterInfo struct {
	Name        string // "mlx5_0"
	Connections int
	Registered  int64             // bytes of memory regions; a protection domain of each connection counts its own
	Exposed     int64             // of them, bytes that a peer may reach without a window: whole slabs
	Completions uint64            // taken from the adapter so far
	Events      map[string]uint64 // asynchronous events so far, by kind
	// WholeSlabs says that what exposes memory through this adapter (an initiator) exposes all of it, and OpenSinks that what reads
	// from a peer (a target) opens all of it to that peer's writes; both only as configured.
	WholeSlabs, OpenSinks bool
}

// Adapters is a Device that goes through adapters. Any goroutine may call it.
type Adapters interface{ Adapters() []AdapterInfo }

// Waker is a Device that hears when a connection that could not be made may succeed: a port of an adapter is back, or an adapter. Those
// who pause between attempts need not wait for the end of the pause. Any goroutine may call it.
type Waker interface {
	// Woken returns a channel that is closed then, and another one after that.
	Woken() <-chan struct{}
}

// Woken is a device's channel, nil for one that hears nothing.
func Woken(d Device) <-chan struct{} {
	if w, ok := d.(Waker); ok {
		return w.Woken()
	}
	return nil
}

// Place is where a device can listen, by one of its adapters.
type Place struct {
	Address   string // "host:port"
	Device    string // the adapter; empty for all there are
	SharesTCP bool   // its ports are TCP's too: two cannot have one
}

// Placer is a Device that knows where it can listen for an address: a wildcard would take the port on adapters that are not its own,
// and from TCP on those that share its ports. Any goroutine may call it.
type Placer interface {
	Places(ctx context.Context, addr string) ([]Place, error)
}
