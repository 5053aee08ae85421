package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/iscsi"
)

// Sessions implements admin.Backend.
func (d *Daemon) Sessions() []admin.Session {
	out := []admin.Session{}
	for _, s := range d.server.Sessions() {
		out = append(out, sessionOf(s))
	}
	return out
}

func sessionOf(s iscsi.SessionInfo) admin.Session {
	return admin.Session{
		ID: strconv.Itoa(int(s.TSIH)), Target: s.Target, Initiator: s.Initiator, Transport: s.Transport, Peer: s.Remote, Since: s.Since,
		Commands: s.Commands, Inflight: s.Active, Read: s.BytesOut, Written: s.BytesIn,
	}
}

// CloseSession implements admin.Backend.
func (d *Daemon) CloseSession(_ context.Context, id string) (admin.Done, error) {
	tsih, err := strconv.ParseUint(id, 10, 16)
	if err != nil {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a session's id is a number, as \"sluice session list\" shows it"}
	}
	err = d.server.CloseSession(uint16(tsih))
	if errors.Is(err, iscsi.ErrNoSession) {
		return admin.Done{}, &admin.Error{Kind: admin.NotFound, Msg: "there is no session " + id}
	}
	if err != nil {
		return admin.Done{}, err
	}
	return admin.Done{Changes: []string{"session " + id + " ended"}}, nil
}

// cloneFile makes the file to share all blocks of a volume's file (ioctl_ficlone(2)): one moment's content, at once and
// at no cost. A file system that cannot share gets no slow copy instead, for that would not be one moment's.
func (d *Daemon) cloneFile(ctx context.Context, volume, to string) (string, error) {
	d.mu.Lock()
	v := d.volumes[volume]
	d.mu.Unlock()
	if v == nil || v.cfg.Engine != "file" {
		return "", &admin.Error{Kind: admin.Conflict, Msg: "only volumes of the file engine can be cloned"}
	}
	if err := blockdev.Do(ctx, v.dev, &blockdev.Request{Op: blockdev.Flush}); err != nil {
		return "", err
	}
	cloner, ok := v.dev.(blockdev.Cloner)
	if !ok {
		return "", &admin.Error{Kind: admin.Conflict, Msg: "volume " + volume + " cannot share its blocks"}
	}
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", &admin.Error{Kind: admin.Conflict, Msg: err.Error()}
	}
	// A log of atomic writes that an older volume of that name left behind is nothing to this one.
	if err = os.Remove(to + ".redo"); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = cloner.Clone(dst)
	}
	if err == nil {
		err = dst.Sync()
	}
	err = errors.Join(err, dst.Close())
	if err == nil {
		return "sharing its blocks", nil
	}
	err = errors.Join(err, os.Remove(to))
	if errors.Is(err, blockdev.ErrUnsupported) {
		return "", &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("the file system of %s cannot share blocks (btrfs and xfs can); copy the volume with sluice cp instead", to)}
	}
	return "", err
}
