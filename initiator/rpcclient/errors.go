package rpcclient

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/sluice-storage/sluice/internal/oncrpc"
)

var (
	// ErrClosed ends the calls of a closed client; it is fs.ErrClosed too.
	ErrClosed error = closedError{}
	// ErrCredential is found in a ReplyError of a server that refused the credential.
	ErrCredential = errors.New("rpc: the server refused the credential")
)

type closedError struct{}

func (closedError) Error() string { return "rpc: the client is closed" }

func (closedError) Is(target error) bool { return target == fs.ErrClosed } //nolint:errorlint // a sentinel

// ProtocolError is a reply that breaks the protocol, for the reason that Err gives. It ends the connection; other calls are sent
// again over the next. Whether the server has executed the call is not known.
type ProtocolError struct{ Err error }

func (e *ProtocolError) Error() string { return fmt.Sprintf("rpc: the server's reply: %v", e.Err) }

// Unwrap is the reason.
func (e *ProtocolError) Unwrap() error { return e.Err }

// ReplyError is a call that the server did not execute: accepted and failed, or denied (RFC 5531 section 9).
type ReplyError struct {
	Denied    bool
	Accept    uint32 // accept_stat, not SUCCESS; without Denied
	Auth      uint32 // auth_stat, with Denied: 0 for a server of another RPC version, others for a refused credential
	Low, High uint32 // the server's versions, where the call's was none of them
}

func (e *ReplyError) Error() string { return e.Unwrap().Error() }

// Is finds ErrCredential.
func (e *ReplyError) Is(target error) bool {
	return target == ErrCredential && e.Denied && e.Auth != 0 //nolint:errorlint // a sentinel
}

// Unwrap leads to the reply as it was decoded.
func (e *ReplyError) Unwrap() error {
	return &oncrpc.ReplyError{Denied: e.Denied, Accept: oncrpc.AcceptStat(e.Accept), Auth: oncrpc.AuthStat(e.Auth), Low: e.Low, High: e.High}
}

func replyError(err error) error {
	var r *oncrpc.ReplyError
	if !errors.As(err, &r) {
		return err
	}
	return &ReplyError{Denied: r.Denied, Accept: uint32(r.Accept), Auth: uint32(r.Auth), Low: r.Low, High: r.High}
}
