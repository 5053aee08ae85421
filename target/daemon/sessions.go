package daemon

import (
	"context"
	"errors"
	"strconv"

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
	out := admin.Session{
		ID: strconv.Itoa(int(s.TSIH)), Target: s.Target, Initiator: s.Initiator, Transport: s.Transport, Peer: s.Remote, Since: s.Since,
		Commands: s.Commands, Inflight: s.Active, Read: s.BytesOut, Written: s.BytesIn,
	}
	if p := s.Path; p != nil {
		out.Path = &admin.Path{Provider: p.Provider, Device: p.Device, Port: p.Port, GID: p.GID, Exposure: p.Exposure}
	}
	return out
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
