package block

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// Portal is one address of a target.
type Portal struct {
	Addr  string // "host:port"
	Group string // target portal group tag
}

// Target is an answer to discovery.
type Target struct {
	Name    string
	Alias   string
	Portals []Portal
}

// Discover asks the portal of a URL for its targets: a discovery session and SendTargets=All (RFC 7143 appendix C).
func (i *Initiator) Discover(ctx context.Context, rawURL string) ([]Target, error) {
	u, err := i.parse(rawURL)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, loginTimeout, &ConnectError{u.at(), fmt.Errorf("it did not answer the discovery in %v", loginTimeout)})
	defer cancel()
	p := loginParams{name: i.o.Name, url: u, isid: iscsi.RandomISID(0), discovery: true, iser: u.ISER}
	if u.Initiator != "" {
		p.name = u.Initiator
	}
	var w wire
	if u.ISER {
		c, err := i.dialISER(ctx, u, nil, 1, true)
		if err != nil {
			return nil, err
		}
		defer func() { c.drain(nil); c.release() }()
		w = c
	} else {
		c, err := i.dialTCP(ctx, u, nil, 1)
		if err != nil {
			return nil, err
		}
		defer func() { c.close(nil); c.release() }()
		w = c
	}
	r, err := login(ctx, w, p)
	if err != nil {
		return nil, err
	}
	text, err := sendTargets(ctx, w, u.at(), &r)
	if err != nil {
		return nil, err
	}
	// The answer to a logout is waited for, so that the target has no half-open session; a failure changes nothing.
	out := iscsi.LogoutRequest{Immediate: true, Reason: iscsi.LogoutSession, ITT: 3, CmdSN: r.cmdSN, ExpStatSN: r.statSN}
	_, _, _ = w.exchange(ctx, iscsi.Append(nil, &out), nil)
	if c, ok := w.(*iserConn); ok {
		c.linger()
	}
	return parseTargets(text, u)
}

func sendTargets(ctx context.Context, w wire, addr string, r *loginResult) (string, error) {
	var all strings.Builder
	ask := []byte("SendTargets=All\x00")
	req := iscsi.TextRequest{Final: true, ITT: 2, TTT: iscsi.Reserved}
	for {
		req.CmdSN, req.ExpStatSN, req.DataLen = r.cmdSN, r.statSN, len(ask)
		b, data, err := w.exchange(ctx, iscsi.Append(nil, &req), ask)
		if err != nil {
			return "", unanswered(ctx, addr, err)
		}
		switch b.Opcode() {
		case iscsi.OpTextResponse:
		case iscsi.OpNopIn, iscsi.OpAsync:
			return "", fmt.Errorf("block: %s in answer to SendTargets", b.Opcode())
		default:
			return "", &iscsi.ProtocolError{Clause: "11.11", Detail: fmt.Sprintf("%s in answer to SendTargets", b.Opcode())}
		}
		var p iscsi.TextResponse
		p.Parse(b)
		all.Write(data)
		if all.Len() > iscsi.MaxText {
			return "", &iscsi.ProtocolError{Clause: "11.11", Detail: "an endless answer to SendTargets"}
		}
		r.statSN, r.cmdSN = p.StatSN+1, p.ExpCmdSN
		if p.Final && !p.Continue || p.TTT == iscsi.Reserved {
			return all.String(), nil
		}
		ask = nil
		req.TTT, req.LUN = p.TTT, p.LUN
	}
}

// parseTargets reads TargetName and TargetAddress records (appendix C.2).
func parseTargets(text string, u *URL) ([]Target, error) {
	var out []Target
	for item := range strings.SplitSeq(text, "\x00") {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			continue
		}
		switch key {
		case "TargetName":
			if err := iscsi.CheckName(strings.ToLower(value)); err != nil {
				return nil, err
			}
			out = append(out, Target{Name: value})
		case "TargetAlias", "TargetAddress":
			if len(out) == 0 {
				return nil, &iscsi.ProtocolError{Clause: "C.2", Detail: key + " before any TargetName"}
			}
			t := &out[len(out)-1]
			if key == "TargetAlias" {
				t.Alias = value
				break
			}
			addr, group, _ := strings.Cut(value, ",")
			t.Portals = append(t.Portals, Portal{Addr: withPort(addr), Group: group})
		case "SendTargets":
			return nil, errors.New("block: the target does not answer SendTargets: " + value)
		}
	}
	for k := range out {
		if len(out[k].Portals) == 0 {
			// No address means the one that was asked.
			out[k].Portals = []Portal{{Addr: u.Addr()}}
		}
	}
	return out, nil
}

func withPort(addr string) string {
	if i := strings.LastIndexByte(addr, ':'); i < 0 || strings.HasSuffix(addr, "]") {
		return addr + ":" + DefaultPort
	}
	return addr
}
