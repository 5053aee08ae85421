package iscsi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/peerlog"
	"github.com/sluice-storage/sluice/target/scsi"
)

// login is the state of one login (RFC 7143 section 6.3). The owner's.
type login struct {
	neg     *iscsi.Negotiator
	pdus    int
	stage   iscsi.Stage
	started bool // the first request is complete: names are known
	first   iscsi.LoginRequest
	cmdSN   uint32

	early     []byte // text of the first request, while it is incomplete
	initiator string
	target    *targetEntry
	auth      *Auth
	chap      *iscsi.CHAPTarget
	proved    bool
	bound     bool // the proved user is configured for this initiator's name
	declared  bool // our operational declarations are queued
	hold      *iscsi.LoginRequest
	final     bool // the final response is decided; text may still be on its way out
}

// refusalError ends a login with a status, and tells the operator why.
type refusalError struct {
	status iscsi.LoginStatus
	detail string // what happened
	hint   string // what to change
	addr   string // of a redirection
}

func (r *refusalError) Error() string { return r.detail }

func refuse(s iscsi.LoginStatus, hint, format string, a ...any) error {
	return &refusalError{status: s, hint: hint, detail: fmt.Sprintf(format, a...)}
}

// loginPDU takes one PDU before full-feature phase. An error ends the connection; a refusal has been answered.
func (c *conn) loginPDU(b iscsi.BHS, data []byte) error {
	if c.login == nil {
		c.login = &login{}
	}
	c.hold()
	state := c.state
	c.letGo()
	switch state {
	case stateEnding:
		return nil // refused already; the connection ends as soon as the answer has left
	case stateHeld:
		return broken("6.3", iscsi.RejectProtocol, "a request while the final response is awaited")
	}
	l := c.login
	var q iscsi.LoginRequest
	if b.Opcode() != iscsi.OpLoginRequest {
		return c.refuseLogin(&q, b, refuse(iscsi.LoginInvalidRequest, "", "%s before the login is complete", b.Opcode()))
	}
	q.Parse(b)
	err := c.loginStep(l, &q, data)
	if err != nil {
		return c.refuseLogin(&q, b, err)
	}
	return nil
}

func (c *conn) loginStep(l *login, q *iscsi.LoginRequest, data []byte) error {
	c.rec.Note("login request %d: stage %d, transit %t to %d, %d bytes of keys", l.pdus+1, q.CSG, q.Transit, q.NSG, len(data))
	if l.pdus++; l.pdus > iscsi.MaxLoginPDUs {
		return refuse(iscsi.LoginInitiatorError, "", "the login takes more than %d requests", iscsi.MaxLoginPDUs)
	}
	if l.pdus == 1 {
		l.first, l.stage, l.cmdSN = *q, q.CSG, q.CmdSN
		l.neg = iscsi.NewNegotiator(iscsi.NegotiatorOptions{Target: true, ISER: c.iser})
		c.want(l.neg)
		c.hold()
		c.expCmdSN, c.maxCmdSN = q.CmdSN, q.CmdSN
		c.letGo()
	}
	switch {
	case q.VersionMin > 0:
		return refuse(iscsi.LoginUnsupportedVersion, "", "the initiator speaks iSCSI version %d and up", q.VersionMin)
	case q.CSG == 2 || q.CSG == iscsi.StageFullFeature || q.CSG < l.stage:
		return refuse(iscsi.LoginInitiatorError, "", "login stage %d after %d", q.CSG, l.stage)
	case q.Transit && (q.NSG == 2 || q.NSG <= q.CSG):
		return refuse(iscsi.LoginInitiatorError, "", "transit from stage %d to %d", q.CSG, q.NSG)
	case q.Transit && q.Continue:
		return refuse(iscsi.LoginInitiatorError, "", "T and C in one request")
	case q.ISID != l.first.ISID || q.TSIH != l.first.TSIH || q.CID != l.first.CID || q.ITT != l.first.ITT:
		return refuse(iscsi.LoginInitiatorError, "", "the session's identity changes in mid-login")
	case q.CSG > l.stage:
		// The stage moves only by an agreed transit, except that a login may begin at the second.
		return refuse(iscsi.LoginInitiatorError, "", "stage %d begins without a transit", q.CSG)
	}
	if !l.started {
		// Who wants what decides which answers are right, that to AuthMethod above all: the names are read first.
		if len(l.early)+len(data) > iscsi.MaxText {
			return refuse(iscsi.LoginOutOfResources, "", "more than %d bytes of text", iscsi.MaxText)
		}
		l.early = append(l.early, data...)
		if !q.Continue {
			if err := c.identify(l, q); err != nil {
				return err
			}
			l.early = nil
		}
	}
	kvs, err := l.neg.Receive(q.CSG, data, q.Continue)
	if err != nil {
		return err
	}
	if q.Continue || l.final {
		return c.loginRespond(l, q, false)
	}
	transit := q.Transit
	if q.CSG == iscsi.StageSecurity {
		if err := c.security(l, kvs); err != nil {
			return err
		}
		transit = transit && (l.auth == nil || l.proved)
	} else {
		if l.auth != nil && !l.proved {
			return refuse(iscsi.LoginAuthFailed, "configure CHAP on the initiator", "the initiator skips the authentication that is required")
		}
		c.operational(l)
	}
	if transit && q.NSG == iscsi.StageFullFeature {
		if l.auth != nil && !l.proved {
			return refuse(iscsi.LoginAuthFailed, "configure CHAP on the initiator", "the initiator skips the authentication that is required")
		}
		if l.neg.Open() {
			transit = false
		}
	}
	return c.loginRespond(l, q, transit)
}

// want sets what this target supports beyond the table.
func (c *conn) want(n *iscsi.Negotiator) {
	lim := &c.srv.opt.Limits
	n.WantInt("MaxBurstLength", lim.MaxBurst)
	n.WantInt("FirstBurstLength", lim.FirstBurst)
	n.Want("ImmediateData", "Yes")
	n.WantInt("MaxOutstandingR2T", 1)
	n.WantInt("DefaultTime2Wait", 0)
	n.WantInt("iSCSIProtocolLevel", 2) // RFC 7144 section 7.1.1
	if c.iser {
		// Unsolicited Data-Out would cost receives that no window counts; immediate data is enough (RFC 7145 section 8.1.1.2).
		n.Want("InitialR2T", "Yes")
		n.WantInt("TargetRecvDataSegmentLength", recvSegmentISER)
		n.WantInt("MaxOutstandingUnexpectedPDUs", unexpectedPDUs)
		n.WantInt("MaxAHSLength", maxAHSISER)
		return
	}
	n.Want("InitialR2T", "No")
	n.WantInt("MaxRecvDataSegmentLength", lim.RecvSegment)
}

// identify reads who logs in to what, from the first complete request (section 6.3.1 and 13).
func (c *conn) identify(l *login, q *iscsi.LoginRequest) error {
	l.started = true
	name, _ := early(l.early, "InitiatorName")
	if name == "" {
		return refuse(iscsi.LoginMissingParameter, "", "the login names no initiator")
	}
	if err := iscsi.CheckName(name); err != nil {
		return refuse(iscsi.LoginInitiatorError, "give the initiator a legal name", "%v", err)
	}
	l.initiator = name
	switch t, ok := early(l.early, "SessionType"); {
	case !ok || t == "Normal":
	case t == "Discovery":
		c.discovery = true
		l.auth = c.srv.opt.DiscoveryAuth
		if q.TSIH != 0 {
			return refuse(iscsi.LoginNoSession, "", "a discovery session is to be joined")
		}
		if l.auth != nil {
			l.neg.Want("AuthMethod", "CHAP")
		}
		return nil
	default:
		return refuse(iscsi.LoginSessionType, "", "session type %q", clip(t))
	}
	tn, _ := early(l.early, "TargetName")
	if tn == "" {
		return refuse(iscsi.LoginMissingParameter, "", "the login names no target")
	}
	t := c.srv.target(tn)
	if t == nil {
		return refuse(iscsi.LoginNotFound, "correct the name on the initiator or add the target to the configuration", "there is no target %q", clip(tn))
	}
	l.target = t
	if _, ok := t.allow(name); !ok {
		return refuse(iscsi.LoginNotAuthorized, fmt.Sprintf("add %s to the target's initiators", name), "initiator %q is not on the access list of %s", clip(name), t.Name)
	}
	if r := t.Redirect; r != nil {
		return r.refusal()
	}
	l.auth = t.Auth
	if q.TSIH != 0 {
		// MaxConnections is 1: nothing can be added to a session, and recovery of a connection needs ErrorRecoveryLevel 2.
		if c.srv.hasSession(q.TSIH) {
			return refuse(iscsi.LoginTooManyConnections, "set one connection a session on the initiator", "a second connection for session %d", q.TSIH)
		}
		return refuse(iscsi.LoginNoSession, "", "there is no session %d", q.TSIH)
	}
	// Section 13.9: the first response after the target is known carries the group.
	l.neg.Send("TargetPortalGroupTag", strconv.Itoa(int(c.portal.Group)))
	if t.Alias != "" {
		l.neg.Send("TargetAlias", t.Alias)
	}
	if l.auth != nil {
		l.neg.Want("AuthMethod", "CHAP")
	}
	return nil
}

// early finds a key in text that the negotiator has not seen yet. The negotiator says later what is wrong with the
// text.
func early(text []byte, key string) (string, bool) {
	for item := range strings.SplitSeq(string(text), "\x00") {
		if k, v, ok := strings.Cut(item, "="); ok && k == key {
			return v, true
		}
	}
	return "", false
}

func (s *Server) hasSession(tsih uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[tsih] != nil
}

// operational queues what the target itself has to say.
func (c *conn) operational(l *login) {
	if l.declared {
		return
	}
	l.declared = true
	if !c.iser {
		l.neg.Offer("MaxRecvDataSegmentLength")
		return
	}
	if c.discovery {
		return
	}
	// Linux knows neither key. An initiator that declares one understands ours.
	for _, k := range []string{"MaxOutstandingUnexpectedPDUs", "MaxAHSLength"} {
		if _, ok := l.neg.Peer(k); ok {
			l.neg.Offer(k)
		}
	}
}

// loginRespond sends the response to q, in several parts where it is long.
func (c *conn) loginRespond(l *login, q *iscsi.LoginRequest, transit bool) error {
	if transit || l.final {
		l.final = true
		if l.hold == nil {
			p := *q
			l.hold = &p
		}
	}
	text, more := l.neg.Fill(nil, iscsi.DefaultRecvData)
	r := iscsi.LoginResponse{Continue: more, CSG: q.CSG, ISID: q.ISID, TSIH: q.TSIH, ITT: q.ITT, DataLen: len(text)}
	if more || !l.final {
		c.hold()
		c.sendLoginLocked(&r, text)
		c.letGo()
		return nil
	}
	l.final = false
	r.Transit, r.NSG = true, l.hold.NSG
	l.hold = nil
	if r.NSG != iscsi.StageFullFeature {
		l.stage = r.NSG
		c.hold()
		c.sendLoginLocked(&r, text)
		c.letGo()
		return nil
	}
	return c.enter(l, &r, text)
}

func (c *conn) sendLoginLocked(r *iscsi.LoginResponse, text []byte) {
	var h [iscsi.BHSLen]byte
	r.Put(h[:])
	c.numbersLocked(h[:], true)
	c.controlLocked(h[:], text)
	c.kickLocked()
}

// enter makes the session and sends the final response once what it replaces is gone.
func (c *conn) enter(l *login, r *iscsi.LoginResponse, text []byte) error {
	c.params = l.neg.Params()
	c.rec.Note("negotiated: %d bytes at most in a PDU to it, bursts of %d, first bursts of %d", c.params.MaxSend, c.params.MaxBurst, c.params.FirstBurst)
	c.initiator = l.initiator
	if c.iser && !c.discovery && !c.params.RDMA {
		return refuse(iscsi.LoginInitiatorError, "use an iser or tcp interface on the initiator, not a mixture", "a login over RDMA without RDMAExtensions=Yes (RFC 7145 section 6.3)")
	}
	if c.params.HelloRequired && c.iser {
		return refuse(iscsi.LoginInitiatorError, "", "iSERHelloRequired=Yes: this target has no Hello exchange")
	}
	ss := &session{cid: l.first.CID, conn: c, initiator: l.initiator, user: l.user(), since: time.Now(),
		key: sessionKey{initiator: l.initiator, isid: l.first.ISID, group: c.portal.Group}}
	if l.target != nil {
		ss.key.target = l.target.Name
	}
	c.hold()
	if c.state != stateLogin {
		c.letGo()
		return nil
	}
	connLife.Move(&c.state, stateHeld)
	c.sess = ss
	c.loginTimer.Stop() // an old session on a slow medium is not this peer's fault
	c.letGo()
	cmdSN := l.cmdSN
	err := errStale
	for errors.Is(err, errStale) {
		err = nil
		if l.target != nil {
			ss.target, err = c.judge(l)
			ss.bound = l.bound
		}
		if err == nil {
			c.target = ss.target
			err = c.srv.install(ss, func() { c.full(ss, r, text, cmdSN) })
		}
	}
	if err != nil {
		c.hold()
		connLife.Move(&c.state, stateLogin)
		c.sess = nil
		c.letGo()
	}
	switch {
	case errors.Is(err, ErrClosed):
		return refuse(iscsi.LoginUnavailable, "", "the target is shutting down")
	case err != nil:
		return err
	}
	c.login = nil // a session lives for weeks: what was negotiated is in params
	return nil
}

// full runs when the way is free, on any goroutine.
func (c *conn) full(ss *session, r *iscsi.LoginResponse, text []byte, cmdSN uint32) {
	c.srv.loggedIn(c)
	var nexus *scsi.Nexus
	quota := c.memory.Quota(c.srv.opt.Limits.SessionMemory)
	if ss.target != nil {
		transport := "iSCSI"
		if c.iser {
			transport = "iSER"
		}
		target, initiator := ss.target.Name, ss.initiator
		nexus = ss.target.SCSI.NewNexus(scsi.NexusOptions{InitiatorName: initiator, ISID: ss.key.isid, TargetPortGroup: c.portal.Group, Transport: transport,
			Memory: quota, Flusher: c, Visible: func(lun uint16) bool { return c.srv.visible(target, initiator, lun) }, Async: c.async, NextResponse: c.nextStatSN})
	}
	c.mu.Lock()
	if c.state != stateHeld {
		// The connection died while it waited; finish has gone by without the nexus.
		c.mu.Unlock()
		quota.Close()
		if nexus != nil {
			nexus.Close(func() {})
		}
		return
	}
	c.quota, c.nexus = quota, nexus
	r.TSIH = ss.tsih
	c.mu.Unlock()
	c.enterFull(ss, r, text, cmdSN, nil)
}

// refuseLogin answers with status class and detail, logs what the operator can do, and ends the connection.
func (c *conn) refuseLogin(q *iscsi.LoginRequest, b iscsi.BHS, err error) error {
	r := &refusalError{status: iscsi.LoginInitiatorError, detail: err.Error()}
	var neg *iscsi.NegotiationError
	switch {
	case errors.As(err, &r):
	case errors.As(err, &neg):
		r.status, r.detail = neg.Status, neg.Error()
	case errors.Is(err, iscsi.ErrAuth):
		r.status = iscsi.LoginAuthFailed
	}
	l := c.login
	f := []zap.Field{zap.Stringer("remote", c.remote), zap.String("status", fmt.Sprintf("%04x", uint16(r.status))), zap.String("why", r.detail)}
	if l.initiator != "" {
		f = append(f, zap.String("initiator", l.initiator))
	}
	if l.target != nil {
		f = append(f, zap.String("target", l.target.Name))
	}
	if u := l.user(); u != "" {
		f = append(f, zap.String("user", clip(u)))
	}
	if r.status == iscsi.LoginAuthFailed && r.hint == "" {
		r.hint = "compare user name and secret on both sides; this side's are in the secrets file"
	}
	if r.hint != "" {
		f = append(f, zap.String("hint", r.hint))
	}
	c.rec.Note("login refused with status %04x: %s", uint16(r.status), r.detail)
	c.srv.mu.Lock()
	if r.addr != "" {
		c.srv.counts.Redirected++
	} else {
		c.srv.counts.Refused[fmt.Sprintf("%04x", uint16(r.status))]++
	}
	c.srv.mu.Unlock()
	if r.addr != "" {
		c.plog.Record(peerlog.Refusals, zap.InfoLevel, "login redirected", append(f, zap.String("to", r.addr))...)
	} else {
		c.plog.Record(peerlog.Refusals, zap.WarnLevel, "login refused", f...)
	}
	resp := iscsi.LoginResponse{CSG: q.CSG, NSG: q.NSG, ISID: q.ISID, TSIH: q.TSIH, ITT: b.ITT(), Status: r.status}
	var text []byte
	if r.addr != "" {
		text = append(append(text, "TargetAddress="...), r.addr...)
		text = append(text, 0)
	}
	resp.DataLen = len(text)
	c.hold()
	if c.state == stateLogin {
		c.endingLocked()
		if c.killErr == nil {
			c.killErr = errRefused
		}
		c.sendLoginLocked(&resp, text)
		c.datamover.closeAfterFlushLocked()
		c.kickLocked()
	}
	c.letGo()
	return nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
