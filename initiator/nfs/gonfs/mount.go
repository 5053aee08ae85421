package gonfs

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/vmware/go-nfs-client/nfs/rpc"

	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/rpcclient"
)

// Open mounts the directory that an nfs:// or nfs+rdma:// URL names. Close the Target.
func Open(ctx context.Context, rawURL string, o nfs.Options) (*Target, error) {
	v, err := nfs.Open(ctx, rawURL, o)
	if err != nil {
		return nil, err
	}
	return newTarget(v), nil
}

// Mount is a server to mount from.
type Mount struct {
	Addr    string
	base    url.URL
	timeout time.Duration
}

// DialMount names the server: a host, for TCP, or an nfs:// or nfs+rdma:// URL without a path. The connection is made when Mount is
// called.
func DialMount(addr string) (*Mount, error) {
	full := addr
	if !strings.Contains(addr, "://") {
		if !strings.HasPrefix(addr, "[") && strings.Count(addr, ":") > 1 {
			addr = "[" + addr + "]" // an IPv6 address
		}
		full = "nfs://" + addr
	}
	u, err := url.Parse(full)
	if err != nil {
		return nil, fmt.Errorf("gonfs: %w", err)
	}
	if _, err := nfs.ParseURL(full); err != nil {
		return nil, err
	}
	return &Mount{Addr: addr, base: *u}, nil
}

// Mount mounts a directory under a credential. Close the Target.
func (m *Mount) Mount(dirpath string, auth rpc.Auth) (*Target, error) {
	u := m.base
	u.Path = dirpath
	ctx, end := context.Background(), context.CancelFunc(func() {})
	if m.timeout > 0 {
		ctx, end = context.WithTimeout(ctx, m.timeout)
	}
	defer end()
	v, err := Open(ctx, u.String(), nfs.Options{Credential: &rpcclient.Auth{Flavor: auth.Flavor, Body: auth.Body}})
	if err != nil {
		return nil, err
	}
	v.SetTimeout(m.timeout)
	return v, nil
}

// Unmount does nothing: a server's list of mounts is for people to read, and no file is reached by it (RFC 1813 section 5.2.3).
func (m *Mount) Unmount() error { return nil }

// Close does nothing: a Target has its own connection.
func (m *Mount) Close() error { return nil }

// SetTimeout bounds each later call of what is mounted from now on.
func (m *Mount) SetTimeout(d time.Duration) { m.timeout = d }
