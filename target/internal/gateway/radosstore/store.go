// Package radosstore is gateway.Store on a cluster of Ceph, by package ceph.
package radosstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/ceph"
	"github.com/sluice-storage/sluice/target/internal/gateway"
)

// lockName is the lock of an object of a volume.
const lockName = "owner"

// callLimit bounds a call of the gateway's own: its heartbeats and looks go on when one OSD hangs. The blocklist keeps what takes effect later
// from doing harm, and so does the version of each object.
const callLimit = 5 * time.Second

// Options say where a group's objects are.
type Options struct {
	// Ceph is how to connect. Its limits are for the instances that move data; those of the gateway's own calls are shorter.
	Ceph ceph.Options
	// Pool and Namespace hold the objects of the group.
	Pool, Namespace string
}

// Store is a librados instance of the gateway's own. Its calls do not mind contexts while they are under way.
type Store struct {
	opt     Options
	cluster *ceph.Cluster
	objects *ceph.IoCtx
}

// Connect makes the instance. Close ends it, after the gateway.
func Connect(opt Options) (*Store, error) {
	own := opt.Ceph
	own.MonTimeout, own.OSDTimeout = callLimit, callLimit
	c, x, err := connect(own, opt.Pool, opt.Namespace)
	if err != nil {
		return nil, err
	}
	return &Store{opt, c, x}, nil
}

func connect(o ceph.Options, pool, namespace string) (*ceph.Cluster, *ceph.IoCtx, error) {
	c, err := ceph.Connect(o)
	if err != nil {
		return nil, nil, err
	}
	x, err := c.Pool(pool, namespace)
	if err != nil {
		c.Shutdown()
		return nil, nil, err
	}
	return c, x, nil
}

// Close ends the instance.
func (s *Store) Close() {
	s.objects.Close()
	s.cluster.Shutdown()
}

// said turns what the cluster answered into the words of gateway.
func said(err error) error {
	for errno, is := range map[unix.Errno]error{
		unix.ENOENT: gateway.ErrNotFound, unix.ERANGE: gateway.ErrChanged, unix.EOVERFLOW: gateway.ErrChanged, unix.EEXIST: gateway.ErrChanged,
		unix.EBUSY: gateway.ErrLocked, unix.ESHUTDOWN: gateway.ErrBlocklisted, unix.ETIMEDOUT: gateway.ErrUnsure,
	} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%w: %w", is, err)
		}
	}
	return err
}

// Read implements gateway.Store.
func (s *Store) Read(ctx context.Context, object string, most int) (data []byte, version uint64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	data, version, err = s.objects.Read(object, most)
	return data, version, said(err)
}

// Write implements gateway.Store.
func (s *Store) Write(ctx context.Context, object string, data []byte, version uint64) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if data == nil {
		data = []byte{}
	}
	now, err := s.objects.Write(object, &ceph.WriteOp{CreateExclusive: version == 0, AssertVersion: version, WriteFull: data})
	if errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("%w: %w", gateway.ErrChanged, err) // it has gone
	}
	return now, said(err)
}

// Blocklist implements gateway.Store.
func (s *Store) Blocklist(ctx context.Context, address string, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return said(s.cluster.BlocklistAdd(address, d))
}

// Unblock implements gateway.Store.
func (s *Store) Unblock(ctx context.Context, address string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.cluster.BlocklistRemove(address); !errors.Is(err, unix.ENOENT) {
		return said(err)
	}
	return nil
}

// Lockers implements gateway.Store.
func (s *Store) Lockers(ctx context.Context, object string) ([]gateway.Locker, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	held, err := s.objects.Lockers(object, lockName)
	if err != nil {
		return nil, said(err)
	}
	var l []gateway.Locker
	for _, k := range held {
		l = append(l, gateway.Locker{Client: k.Client, Cookie: k.Cookie, Address: plain(k.Address)})
	}
	return l, nil
}

// plain is an address as the blocklist has it. That of a locker begins with a version of the messenger, and not always with the one that
// the instance speaks.
func plain(address string) string {
	for _, kind := range []string{"v1:", "v2:", "any:"} {
		if rest, is := strings.CutPrefix(address, kind); is {
			return rest
		}
	}
	return address
}

// BreakLock implements gateway.Store.
func (s *Store) BreakLock(ctx context.Context, object string, l gateway.Locker) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.objects.BreakLock(object, lockName, l.Client, l.Cookie); !errors.Is(err, unix.ENOENT) {
		return said(err)
	}
	return nil
}

// Open implements gateway.Store. The instance waits for OSDs as long as Options say.
func (s *Store) Open(ctx context.Context) (gateway.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, x, err := connect(s.opt.Ceph, s.opt.Pool, s.opt.Namespace)
	if err != nil {
		return nil, said(err)
	}
	addrs, err := c.BlocklistAddrs()
	if err != nil {
		x.Close()
		c.Shutdown()
		return nil, said(err)
	}
	return &Instance{cluster: c, objects: x, addrs: addrs}, nil
}

// Instance is the librados instance of one claim.
type Instance struct {
	cluster *ceph.Cluster
	objects *ceph.IoCtx
	addrs   []string
	once    sync.Once
}

// Cluster is what a Medium opens its data by. It is shut down by Close, behind the Medium's Abort.
func (i *Instance) Cluster() *ceph.Cluster { return i.cluster }

// Addresses implements gateway.Instance.
func (i *Instance) Addresses() []string { return i.addrs }

// WaitForMap implements gateway.Instance.
func (i *Instance) WaitForMap(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return said(i.cluster.WaitForLatestOSDMap())
}

// Lock implements gateway.Instance. EEXIST is of a lock that this instance has already, by a call that was not answered.
func (i *Instance) Lock(ctx context.Context, object, cookie string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := i.objects.LockExclusive(object, lockName, cookie, "the gateway that owns the volume", 0, false)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return said(err)
}

// Unlock implements gateway.Instance.
func (i *Instance) Unlock(ctx context.Context, object, cookie string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return said(i.objects.Unlock(object, lockName, cookie))
}

// Close implements gateway.Instance.
func (i *Instance) Close() {
	i.once.Do(func() {
		i.objects.Close()
		i.cluster.Shutdown()
	})
}
