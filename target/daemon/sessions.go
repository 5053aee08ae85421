package daemon

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/srp"
	"github.com/sluice-storage/sluice/transport"
)

// Sessions implements admin.Backend.
func (d *Daemon) Sessions() []admin.Session {
	out := []admin.Session{}
	for _, s := range d.server.Sessions() {
		out = append(out, sessionOf(s))
	}
	for _, s := range d.srp.Sessions() {
		out = append(out, srpSessionOf(s))
	}
	return out
}

func sessionOf(s iscsi.SessionInfo) admin.Session {
	out := admin.Session{
		ID: strconv.Itoa(int(s.TSIH)), Target: s.Target, Initiator: s.Initiator, Transport: s.Transport, Peer: s.Remote, Since: s.Since,
		Commands: s.Commands, Inflight: s.Active, Read: s.BytesOut, Written: s.BytesIn,
	}
	out.Path = pathOf(s.Path)
	return out
}

func pathOf(p *transport.Path) *admin.Path {
	if p == nil {
		return nil
	}
	return &admin.Path{Provider: p.Provider, Device: p.Device, Port: p.Port, GID: p.GID, Exposure: p.Exposure}
}

// srpPrefix begins the id of a session of SRP; that of an iSCSI session is a number.
const srpPrefix = "srp"

func srpSessionOf(s srp.SessionInfo) admin.Session {
	return admin.Session{
		ID: srpPrefix + strconv.FormatUint(uint64(s.ID), 10), Target: s.Target, Initiator: s.Initiator, Transport: transportSRP, Channels: s.Channels, Peer: s.Remote, Since: s.Since,
		Commands: s.Commands, Inflight: s.Active, Read: s.BytesOut, Written: s.BytesIn, Path: pathOf(s.Path),
	}
}

// parseID reads the id of a session: whose it is, and its handle there.
func parseID(id string) (overSRP bool, handle uint32, err error) {
	digits, overSRP := strings.CutPrefix(id, srpPrefix)
	bits := 16
	if overSRP {
		bits = 32
	}
	n, err := strconv.ParseUint(digits, 10, bits)
	if err != nil {
		return false, 0, &admin.Error{Kind: admin.Invalid, Msg: "a session's id is a number, or of SRP \"srp\" and a number, as \"sluice session list\" shows it"}
	}
	return overSRP, uint32(n), nil
}

// CloseSession implements admin.Backend.
func (d *Daemon) CloseSession(_ context.Context, id string) (admin.Done, error) {
	overSRP, handle, err := parseID(id)
	if err != nil {
		return admin.Done{}, err
	}
	if overSRP {
		err = d.srp.CloseSession(handle)
	} else {
		err = d.server.CloseSession(uint16(handle))
	}
	if errors.Is(err, iscsi.ErrNoSession) || errors.Is(err, srp.ErrNoSession) {
		return admin.Done{}, &admin.Error{Kind: admin.NotFound, Msg: "there is no session " + id}
	}
	if err != nil {
		return admin.Done{}, err
	}
	return admin.Done{Changes: []string{"session " + id + " ended"}}, nil
}
