package filesystem

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"path"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Squash says whose requests run as the anonymous user.
type Squash uint8

const (
	// SquashRoot maps uid and gid 0 to the anonymous ids.
	SquashRoot Squash = iota
	// SquashNone maps no user.
	SquashNone
	// SquashAll maps all users.
	SquashAll
)

// Nobody is the default anonymous uid and gid.
const Nobody = 65534

// Rights are what a client may do on an export.
type Rights struct {
	ReadOnly bool
	Squash   Squash
	Insecure bool // calls from ports of 1024 and above are taken
}

// Client is a rule: who it is for and what they may do. The first rule that matches counts.
type Client struct {
	// Match is "*", an address, a CIDR prefix, a host name, or a host name pattern like "*.example.org", which is
	// looked up in reverse and confirmed forward.
	Match string
	Rights
}

// Export is a directory that clients can mount.
type Export struct {
	Path string // what clients name, absolute
	Dir  string // where it is
	// ID goes into file handles; it is derived from Path when 0. Give both servers one ID to move an export between them.
	ID      uint32
	Clients []Client // none: everyone, with the Rights below
	Rights
	AnonUID, AnonGID uint32 // 0 means Nobody
	// Async answers changes of metadata before they are durable. Data follows WRITE and COMMIT in any case.
	Async bool
	// InodeHandles makes file handles of inode numbers even where the kernel's own could be had.
	InodeHandles bool
	// SubtreeCheck refuses handles of files that have been moved out of Dir.
	SubtreeCheck bool
}

type rule struct {
	prefix netip.Prefix // valid for addresses and prefixes
	name   string       // lower case, for names and patterns
	any    bool
	rights Rights
}

// Served is an export as it is served.
type Served struct {
	Export
	rules []rule
	root  int // O_RDONLY|O_DIRECTORY; handles are opened relative to it
	dev   uint64
	ino   uint64
	kind  handleKind
	table *pathTable // for kindInode, and SubtreeCheck

	// Data is what the protocol above keeps of an export, under any of its rules.
	Data any

	medium   *medium
	mayHang  bool
	block    int64       // of its file system, bytes
	shares   bool        // its files may have blocks in common
	inMemory bool        // its files are nowhere else, so that a call hardly ever blocks
	noLoans  atomic.Bool // the file system lends no pages
	flushes  rounds      // of the whole file system

	users atomic.Int64 // nodes, calls that look for some, and the table that has it
}

// prepare makes what can be made of an export without its directory.
func (e Export) prepare() (*Served, error) {
	if !strings.HasPrefix(e.Path, "/") || len(e.Path) > MaxExportPath {
		return nil, fmt.Errorf("nfs: the export path %q must be absolute and at most %d bytes long", e.Path, MaxExportPath)
	}
	e.Path = path.Clean(e.Path)
	if e.ID == 0 {
		h := sha256.Sum256([]byte(e.Path))
		e.ID = binary.BigEndian.Uint32(h[:]) | 1
	}
	if e.AnonUID == 0 {
		e.AnonUID = Nobody
	}
	if e.AnonGID == 0 {
		e.AnonGID = Nobody
	}
	x := &Served{Export: e}
	x.users.Store(1)
	for _, c := range e.Clients {
		r, err := parseRule(c)
		if err != nil {
			return nil, fmt.Errorf("nfs: export %s: %w", e.Path, err)
		}
		x.rules = append(x.rules, r)
	}
	return x, nil
}

// open opens the export's directory.
func (e *Served) open() error {
	fd, err := unix.Open(e.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("nfs: export %s: directory %s: %w", e.Path, e.Dir, err)
	}
	e.root = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("nfs: export %s: %w", e.Path, err)
	}
	e.dev, e.ino, e.mayHang, e.inMemory, e.block, e.shares = st.Dev, st.Ino, mayHang(fd), inMemory(fd), blockSize(fd), shares(fd)
	if e.kind = kindInode; !e.InodeHandles {
		e.kind = probeHandles(fd)
	}
	if e.kind == kindInode || e.SubtreeCheck {
		e.table = newPathTable(e)
	}
	return nil
}

// hold keeps an export open until close. It reports false for one that was replaced and is closed.
func (e *Served) hold() bool {
	for n := e.users.Load(); n > 0; n = e.users.Load() {
		if e.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// close ends what hold began, or the export's place in the table: the last of them closes the directory.
func (e *Served) close() {
	if e.users.Add(-1) == 0 {
		_ = unix.Close(e.root)
	}
}

// Check says what is wrong with the rule, for a configuration that is not served yet.
func (c Client) Check() error {
	_, err := parseRule(c)
	return err
}

func parseRule(c Client) (rule, error) {
	r := rule{rights: c.Rights}
	m := strings.ToLower(strings.TrimSpace(c.Match))
	switch p, err := netip.ParsePrefix(m); {
	case m == "":
		return r, fmt.Errorf("a client rule without a client")
	case m == "*":
		r.any = true
	case err == nil:
		r.prefix = p.Masked()
	case strings.Contains(m, "/"):
		return r, fmt.Errorf("client %q: %w", c.Match, err)
	default:
		if a, err := netip.ParseAddr(m); err == nil {
			r.prefix = netip.PrefixFrom(a, a.BitLen())
			break
		}
		if strings.Contains(strings.TrimPrefix(m, "*."), "*") {
			return r, fmt.Errorf("client %q: a * may only stand for the first label", c.Match)
		}
		r.name = m
	}
	return r, nil
}

// rightsOf finds what addr may do; ok is false for a client outside the rules. matches is asked whether it has the name of
// a rule; unsure says that this is not known.
func (e *Served) rightsOf(addr netip.Addr, matches func(question) (yes, known bool)) (r Rights, ok, unsure bool) {
	if len(e.rules) == 0 {
		return e.Rights, true, false
	}
	for i := range e.rules {
		m := &e.rules[i]
		switch {
		case m.any, m.prefix.IsValid() && m.prefix.Contains(addr):
			return m.rights, true, false
		case m.name != "":
			switch yes, known := matches(question{m.name, addr}); {
			case !known:
				return r, false, true
			case yes:
				return m.rights, true, false
			}
		}
	}
	return r, false, false
}

// MayHang reports a file system whose every call may wait for another machine or process.
func (e *Served) MayHang() bool { return e.mayHang }

// InMemory reports a file system that keeps its files in memory alone, so that a call hardly ever blocks.
func (e *Served) InMemory() bool { return e.inMemory }

// Groups are whom the rules name, for MOUNT's EXPORT.
func (e *Served) Groups() []string {
	var l []string
	for _, c := range e.Clients {
		l = append(l, c.Match)
	}
	return l
}
