package iscsi

import "fmt"

// ProtocolError says which rule a peer broke. The connection or the command ends as Reason and the RFC have it.
type ProtocolError struct {
	RFC    int    // 7143 if 0
	Clause string // section
	Reason RejectReason
	Detail string // one sentence without the full stop
}

func (e *ProtocolError) Error() string {
	rfc := e.RFC
	if rfc == 0 {
		rfc = 7143
	}
	return fmt.Sprintf("iscsi: the peer broke RFC %d section %s: %s", rfc, e.Clause, e.Detail)
}

func broken(clause string, r RejectReason, detail string) error {
	return &ProtocolError{Clause: clause, Reason: r, Detail: detail}
}

func brokenf(clause string, r RejectReason, format string, a ...any) error {
	return &ProtocolError{Clause: clause, Reason: r, Detail: fmt.Sprintf(format, a...)}
}

// NegotiationError is a login or text negotiation that cannot succeed. A target ends the login with Status.
type NegotiationError struct {
	Key    string
	Clause string // section of RFC 7143
	Detail string
	Status LoginStatus
}

func (e *NegotiationError) Error() string {
	s := "iscsi: negotiation failed"
	if e.Key != "" {
		s += fmt.Sprintf(" at key %q", e.Key)
	}
	return s + fmt.Sprintf(": %s (RFC 7143 section %s)", e.Detail, e.Clause)
}
