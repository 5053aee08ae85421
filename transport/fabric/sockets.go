package fabric

import (
	"context"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport/shm"
)

// Socket is a socket on this host at which a daemon offers shared memory, and what this user can do with it.
type Socket = shm.Found

// Sockets lists them.
func Sockets() []Socket { return shm.Sockets() }

// CanShare reports why this machine has no memory that processes can share, or nil.
func CanShare() error {
	s, err := mem.Shared.NewSlab(mem.PageSize)
	if err != nil {
		return err
	}
	return s.Close()
}

// Near is the provider that reaches a service on this host, "host:port", by the shortest way that this user may go; empty where that is
// no other than for any service.
func Near(ctx context.Context, addr string) string {
	if shm.Reaches(ctx, addr) != "" {
		return SHM
	}
	return ""
}
