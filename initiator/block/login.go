package block

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// wire is a connection during login: one request, one response.
type wire interface {
	// exchange sends a PDU and returns the one that answers; what it returns is valid until the next call.
	exchange(ctx context.Context, h iscsi.BHS, data []byte) (iscsi.BHS, []byte, error)
	// prepare makes ready for full-feature phase; it is called before the request that may end the login.
	prepare() error
}

// loginParams say what a login is to reach.
type loginParams struct {
	name      string
	url       *URL
	isid      iscsi.ISID
	discovery bool
	iser      bool
	noImm     bool
	algs      []iscsi.CHAPAlgorithm
}

// misnumbered is a refused login in which the target had chosen algorithm 7. tgt (seen in 1.0.85) means SHA-1 by it,
// where the registry of RFC 7143 section 12.1.3 has SHA-256: with such a target MD5 is what both understand.
type misnumbered struct{ error }

func (e misnumbered) Unwrap() error { return e.error }

// loginResult is what a login reached.
type loginResult struct {
	params          iscsi.Params
	tsih            uint16
	cmdSN, maxCmdSN uint32
	statSN          uint32
	portalGroup     string
}

// login runs the login phase (RFC 7143 section 6.3).
func login(ctx context.Context, w wire, p loginParams) (loginResult, error) {
	l := &loginRun{w: w, p: p, n: iscsi.NewNegotiator(iscsi.NegotiatorOptions{ISER: p.iser && !p.discovery}), csg: iscsi.StageOperational}
	n := l.n
	n.Send("InitiatorName", p.name)
	if p.discovery {
		n.SetDiscovery()
		n.Send("SessionType", "Discovery")
	} else {
		n.Send("SessionType", "Normal")
		n.Send("TargetName", p.url.Target)
	}
	if p.url.CHAP.Name != "" {
		l.csg = iscsi.StageSecurity
		l.chap = &iscsi.CHAPInitiator{Own: iscsi.Secret(p.url.CHAP), Target: iscsi.Secret(p.url.MutualCHAP), Algorithms: p.algs}
		offer := "CHAP,None"
		if p.url.MutualCHAP.Secret != "" {
			offer = "CHAP" // the target has to prove itself
		}
		n.Want("AuthMethod", offer)
		n.Offer("AuthMethod")
	} else {
		l.operational()
	}
	for range iscsi.MaxLoginPDUs {
		done, err := l.round(ctx)
		if err != nil {
			if errors.Is(err, iscsi.ErrAuth) {
				err = unproven{err}
			}
			var le *LoginError
			if l.chap != nil && l.chap.Chosen() == iscsi.CHAPSHA256 && errors.As(err, &le) && iscsi.LoginStatus(le.Status).Class() == 2 {
				err = misnumbered{err}
			}
			return loginResult{}, err
		}
		if done {
			return l.result()
		}
	}
	return loginResult{}, errors.New("block: the login does not end")
}

type loginRun struct {
	w        wire
	p        loginParams
	n        *iscsi.Negotiator
	csg      iscsi.Stage
	chap     *iscsi.CHAPInitiator
	proving  bool // CHAP has begun
	prepared bool
	statSN   uint32
	begun    bool
	last     iscsi.LoginResponse
	text     []byte
	group    string
}

// operational queues our offers. Over iSER they are Linux's, and RFC 7145's declarations that Linux leaves out.
func (l *loginRun) operational() {
	n, u := l.n, l.p.url
	digest := func(key string, on bool) {
		n.Want(key, "None")
		if on {
			n.Want(key, "CRC32C")
		}
		n.Offer(key)
	}
	n.WantInt("MaxRecvDataSegmentLength", recvTCP)
	n.Want("DefaultTime2Wait", "0")
	if l.p.discovery {
		if l.p.iser {
			n.WantInt("MaxRecvDataSegmentLength", iscsi.DefaultRecvData)
		}
		n.Offer("MaxRecvDataSegmentLength")
		if !l.p.iser {
			// LIO digests what it was not asked not to.
			digest("HeaderDigest", false)
			digest("DataDigest", false)
		}
		return
	}
	n.Want("ImmediateData", map[bool]string{true: "No", false: "Yes"}[l.p.noImm])
	n.Want("InitialR2T", "Yes")
	n.WantInt("MaxBurstLength", wantBurst)
	n.WantInt("FirstBurstLength", wantFirst)
	n.WantInt("MaxOutstandingR2T", 1)
	n.WantInt("DefaultTime2Retain", 0)
	if l.p.iser {
		n.Offer("RDMAExtensions")
		n.WantInt("InitiatorRecvDataSegmentLength", recvData)
		n.WantInt("TargetRecvDataSegmentLength", iscsi.DefaultRecvData)
		n.Offer("InitiatorRecvDataSegmentLength")
		n.Offer("TargetRecvDataSegmentLength")
		n.Want("TaggedBufferForSolicitedDataOnly", "Yes")
		n.Offer("TaggedBufferForSolicitedDataOnly")
		n.WantInt("MaxOutstandingUnexpectedPDUs", unexpected)
		n.Offer("MaxOutstandingUnexpectedPDUs")
	} else {
		digest("HeaderDigest", u.HeaderDigest)
		digest("DataDigest", u.DataDigest)
		n.Offer("MaxRecvDataSegmentLength")
	}
	for _, k := range []string{"ErrorRecoveryLevel", "InitialR2T", "ImmediateData", "MaxBurstLength", "FirstBurstLength", "MaxOutstandingR2T",
		"MaxConnections", "DataPDUInOrder", "DataSequenceInOrder", "DefaultTime2Wait", "DefaultTime2Retain"} {
		n.Offer(k)
	}
}

// round sends one request and takes its response; it reports true once full-feature phase is reached.
func (l *loginRun) round(ctx context.Context) (bool, error) {
	text, more := l.n.Fill(l.text[:0], iscsi.DefaultRecvData)
	l.text = text
	req := iscsi.LoginRequest{Continue: more, CSG: l.csg, ISID: l.p.isid, ITT: 1, CmdSN: 1, ExpStatSN: l.statSN, DataLen: len(text)}
	if !more && (l.csg == iscsi.StageOperational || l.chap.Last() || !l.proving && l.begun) {
		req.Transit, req.NSG = true, iscsi.StageFullFeature
		if l.csg == iscsi.StageSecurity {
			req.NSG = iscsi.StageOperational
		} else if !l.prepared {
			l.prepared = true
			if err := l.w.prepare(); err != nil {
				return false, err
			}
		}
	}
	b, data, err := l.w.exchange(ctx, iscsi.Append(nil, &req), text)
	if err != nil {
		return false, unanswered(ctx, l.p.url.at(), err)
	}
	if err := l.check(b, data, &req); err != nil {
		return false, err
	}
	if err := l.take(data); err != nil {
		return false, err
	}
	if !l.last.Transit {
		return false, nil
	}
	if l.csg = l.last.NSG; l.csg == iscsi.StageOperational {
		if l.p.url.MutualCHAP.Secret != "" && !l.chap.Done() {
			return false, fmt.Errorf("the target did not prove itself: %w", iscsi.ErrAuth)
		}
		l.operational()
	}
	return l.csg == iscsi.StageFullFeature, nil
}

// check verifies what every Login Response must keep to (section 11.13).
func (l *loginRun) check(b iscsi.BHS, data []byte, req *iscsi.LoginRequest) error {
	r := &l.last
	switch b.Opcode() {
	case iscsi.OpLoginResponse:
	case iscsi.OpReject:
		var p iscsi.Reject
		p.Parse(b)
		return fmt.Errorf("block: the target rejects the login: %s", p.Reason)
	default:
		return &iscsi.ProtocolError{Clause: "6.3", Detail: fmt.Sprintf("%s in answer to a login", b.Opcode())}
	}
	r.Parse(b)
	if r.Status != iscsi.LoginSuccess {
		e := &LoginError{Status: uint16(r.Status)}
		if r.Status.Class() == 1 {
			kv, err := iscsi.NewNegotiator(iscsi.NegotiatorOptions{}).Receive(l.csg, data, false)
			if err != nil {
				return err
			}
			for _, p := range kv {
				if p.Key == "TargetAddress" {
					e.Address = p.Value
				}
			}
		}
		return e
	}
	switch {
	case r.ITT != req.ITT:
		return &iscsi.ProtocolError{Clause: "11.13", Detail: "a login response with another task tag"}
	case r.VersionActive != 0:
		return &iscsi.ProtocolError{Clause: "11.13.2", Detail: fmt.Sprintf("version %d, which was not offered", r.VersionActive)}
	case r.CSG != req.CSG:
		return &iscsi.ProtocolError{Clause: "11.13", Detail: "a login response of another stage"}
	case r.Transit && (!req.Transit || r.NSG > req.NSG || r.NSG <= r.CSG || r.NSG == 2):
		return &iscsi.ProtocolError{Clause: "6.3", Detail: "a change of stage that was not proposed"}
	case r.Continue && (r.Transit || len(data) == 0):
		return &iscsi.ProtocolError{Clause: "11.13.7", Detail: "a login response that continues and ends"}
	}
	l.begun, l.statSN = true, r.StatSN+1
	return nil
}

// take reads the text and queues what follows from it.
func (l *loginRun) take(data []byte) error {
	pairs, err := l.n.Receive(l.csg, data, l.last.Continue)
	if err != nil || l.last.Continue {
		return err
	}
	var chap []iscsi.KV
	for _, p := range pairs {
		switch p.Key {
		case "TargetPortalGroupTag":
			l.group = p.Value
		case "CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R":
			chap = append(chap, p)
		}
	}
	if l.csg != iscsi.StageSecurity {
		return nil
	}
	var next []iscsi.KV
	switch {
	case !l.proving && l.n.Value("AuthMethod") == "CHAP":
		next, l.proving = l.chap.Start(), true
	case l.proving && len(chap) > 0:
		if next, err = l.chap.Step(chap); err != nil {
			return err
		}
	}
	for _, p := range next {
		l.n.Send(p.Key, p.Value)
	}
	return nil
}

func (l *loginRun) result() (loginResult, error) {
	if l.last.Transit && l.last.TSIH == 0 {
		return loginResult{}, &iscsi.ProtocolError{Clause: "11.13.3", Detail: "the session has no handle"}
	}
	p := l.n.Params()
	if l.p.iser && !l.p.discovery && !p.RDMA {
		return loginResult{}, errors.New("block: the target does not agree to RDMAExtensions; is it an iSER target?")
	}
	return loginResult{params: p, tsih: l.last.TSIH, cmdSN: 1, maxCmdSN: l.last.MaxCmdSN, statSN: l.statSN, portalGroup: l.group}, nil
}
