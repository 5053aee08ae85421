package nfs

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
)

// Ports.
const (
	PortTCP  = 2049
	PortRDMA = 20049 // RFC 8267 section 7
)

// Target is a parsed nfs:// URL.
type Target struct {
	Host      string
	Port      int // of NFS, 0 to ask rpcbind
	MountPort int // of MOUNT, 0 to ask rpcbind
	Path      string
	RDMA      bool
	UID, GID  uint32
	Fixed     bool   // the URL names uid or gid
	Provider  string // what RDMA goes through: iwarp, verbs, shm; "" for the mount's own
	Socket    string // of shared memory, the path of the server's on this host; "" for the one that stands for host and port
	Exposure  string // what the server may reach through an RDMA adapter: windows, whole-slab; likewise
}

// ParseURL reads nfs://host[:port]/path?nfsport=&mountport=&uid=&gid=&rdma in libnfs's form; the scheme nfs+rdma is short
// for ?rdma, provider= names what RDMA goes through, socket= the path of a server's socket
// on this host, for provider=shm, and exposure= what the server may reach of this side's memory. Arguments of libnfs that mean nothing here are ignored.
func ParseURL(s string) (*Target, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("nfs: %w", err)
	}
	t := &Target{Host: u.Hostname(), Path: path.Clean("/" + u.Path), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	switch u.Scheme {
	case "nfs":
	case "nfs+rdma":
		t.RDMA = true
	default:
		return nil, fmt.Errorf("nfs: %q is no nfs:// or nfs+rdma:// URL", s)
	}
	q := u.Query()
	if t.Socket = q.Get("socket"); t.Socket != "" && t.Host == "" {
		t.Host = "localhost"
	}
	if t.Host == "" {
		return nil, fmt.Errorf("nfs: %q names no server", s)
	}
	if q.Has("rdma") {
		t.RDMA = q.Get("rdma") != "0"
	}
	number := func(v string, bits int, into func(uint64)) {
		n, e := strconv.ParseUint(v, 10, bits)
		if e != nil && err == nil {
			err = fmt.Errorf("nfs: %q in %q is no number", v, s)
		}
		into(n)
	}
	if p := u.Port(); p != "" {
		number(p, 16, func(n uint64) { t.Port = int(n) })
	}
	for k, v := range map[string]func(uint64){
		"nfsport":   func(n uint64) { t.Port = int(n) },
		"mountport": func(n uint64) { t.MountPort = int(n) },
		"uid":       func(n uint64) { t.UID = uint32(n) },
		"gid":       func(n uint64) { t.GID = uint32(n) },
	} {
		if q.Has(k) {
			number(q.Get(k), 32, v)
		}
	}
	if t.Provider = q.Get("provider"); t.Provider != "" && !t.RDMA {
		return nil, fmt.Errorf("nfs: provider=%s is for RDMA (nfs+rdma://, or ?rdma), and %q goes over TCP", t.Provider, s)
	}
	switch {
	case t.Socket == "":
	case t.Provider == "":
		return nil, fmt.Errorf("nfs: socket=%s needs the provider that it is of (provider=shm) in %q", t.Socket, s)
	case !path.IsAbs(t.Socket):
		return nil, fmt.Errorf("nfs: socket=%s in %q is no absolute path", t.Socket, s)
	}
	if t.Exposure = q.Get("exposure"); t.Exposure != "" && !t.RDMA {
		return nil, fmt.Errorf("nfs: exposure=%s is for RDMA (nfs+rdma://, or ?rdma), and %q goes over TCP", t.Exposure, s)
	}
	t.Fixed = q.Has("uid") || q.Has("gid")
	if v := q.Get("version"); v != "" && v != "3" {
		return nil, fmt.Errorf("nfs: version %s is asked for; only 3 is spoken here", v)
	}
	return t, err
}

func (t *Target) addr(port int) string { return net.JoinHostPort(t.Host, strconv.Itoa(port)) }

// at is what the device of an RDMA target dials.
func (t *Target) at(port int) string {
	if t.Socket != "" {
		return t.Socket
	}
	return t.addr(port)
}

// IsURL reports whether s looks like an nfs URL.
func IsURL(s string) bool {
	return strings.HasPrefix(s, "nfs://") || strings.HasPrefix(s, "nfs+rdma://")
}
