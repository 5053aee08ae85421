package lock

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/filesystem/filelock"
)

// protocol is what clients of this lock manager have in common.
const protocol = "nlm4"

// clientOf is a client by what it calls itself.
func clientOf(name string, addr netip.Addr) filelock.Client {
	return filelock.Client{Protocol: protocol, Name: name, Addr: addr}
}

// lockOf is what a client asks for. An owner is its svid and its owner handle.
func lockOf(l *nlm4.Lock, exclusive bool, to answerTo) filelock.Lock {
	return filelock.Lock{Owner: filelock.Owner{Client: clientOf(string(l.Caller), to.addr), Name: strconv.FormatUint(uint64(l.SVID), 10) + " " + string(l.Owner)},
		Range: filelock.RangeOf(l.Off, l.Len), Exclusive: exclusive, Privileged: to.secure}
}

// holderOf is what TEST says of a lock. An owner of another protocol has no svid, and of its name what an owner handle takes.
func holderOf(l *filelock.Lock) nlm4.Holder {
	h := nlm4.Holder{Exclusive: l.Exclusive, Owner: []byte(l.Owner.Name[:min(len(l.Owner.Name), maxOwner)]), Off: l.Start, Len: l.Len()}
	if l.Owner.Client.Protocol == protocol {
		svid, oh, _ := strings.Cut(l.Owner.Name, " ")
		n, _ := strconv.ParseUint(svid, 10, 32) // lockOf has made it
		h.SVID, h.Owner = uint32(n), []byte(oh)
	}
	return h
}

// statOf is what a lock manager says of a handle that cannot be used.
func statOf(e filesystem.Errno) nlm4.Stat {
	switch e {
	case filesystem.OK:
		return nlm4.Granted
	case filesystem.Errno(unix.ESTALE), filesystem.ErrBadHandle:
		return nlm4.StaleFH
	case filesystem.Errno(unix.EROFS):
		return nlm4.Rofs
	}
	return nlm4.Failed
}

// statOfVerdict is a verdict as a status. nlm4_stats has one for a lock that is refused in grace and for a reclaim that comes after it.
func statOfVerdict(v filelock.Verdict) nlm4.Stat {
	switch v {
	case filelock.Granted:
		return nlm4.Granted
	case filelock.Denied:
		return nlm4.Denied
	case filelock.Blocked:
		return nlm4.Blocked
	case filelock.NoRoom:
		return nlm4.DeniedNolocks
	case filelock.Grace, filelock.NoGrace:
		return nlm4.DeniedGrace
	}
	return nlm4.Failed
}
