// Package block is the initiator of block volumes: it logs in to an iSCSI target over iSER (RFC 7145) or TCP (RFC 7143)
// and offers a logical unit as a Volume.
//
// # How it is used
//
// One line opens a volume, by a URL such as iser://192.0.2.1/iqn.2026-11.io.sluice:default/0:
//
//	v, err := block.Open(ctx, url, block.Options{})
//
// It has an initiator, memory and a fabric device of its own, which its Close ends too. Programs with many volumes make an
// Initiator, with Options.Memory and Options.Device of their own where they like, and call its Open.
//
// A Volume is used in two ways:
//
//   - As the standard library means it: ReadAt, WriteAt, Size, Sync, Close, at any offset and of any length, and Reader and
//     Writer for io.Copy. They copy between the caller's slices and registered memory.
//   - As a blockdev.Device, in whole blocks and without a copy: Submit, SubmitAll and Do with blockdev's requests, whose memory
//     comes from Volume.Memory. ReadSpans, WriteSpans, Flush, Discard, WriteZeroes, CompareAndWrite and Status are the same one
//     by one; Raw sends any SCSI command.
//
// Rule 3 of package blockdev differs in one point: when a target has lost writes that were acknowledged, one Flush (those
// under way at the loss, too) fails with ErrPowerLost, and later ones are about later writes, as with fsync(2).
//
// # Errors
//
// errors.Is tells apart, of Open: ErrAuth (a wrong name or secret, of either end), ErrDenied (the target's access list),
// ErrNoTarget, ErrNoUnit (no such LUN), ErrNoPath (the address cannot be reached, or nothing there answers),
// ErrTimeout (the unit does not say what it is), ErrBusy. A URL that cannot be used is a
// *URLError, a refused login a *LoginError, and a failed connection a *ConnectError.
//
// Of requests: the errors of package blockdev (ErrRange, ErrUnsupported, ErrReadOnly, ErrMiscompare, ErrMedium, ErrNoSpace,
// ErrClosed), and ErrReserved, ErrBusy, ErrTimeout, ErrNoPath, ErrOtherUnit, ErrPowerLost, ErrCancelled, ErrOutcomeUnknown,
// ErrUnsettled, ErrBadRequest. errors.As finds what the target said: *SenseError for CHECK CONDITION, with its key and codes, and
// *StatusError for other statuses. Why a session ended is a *SessionError.
//
// # How it hangs together
//
// An Initiator has the memory, the fabric and the name. A Volume is one logical unit, reached over one path or several;
// a path is one portal and, while it is up, one session of one connection. A request given to Volume.Submit is put into
// the queue of a path, cut into pieces of one SCSI command each, and completed by a call of its Done.
//
// Each session has one owner goroutine, which receives; any goroutine sends. A path has one lock. Callbacks run without
// it, on the owner; commands they submit leave together once they are done.
//
// # Exposure
//
// Over iSER a command opens a window for exactly its bytes. The request is complete only when that STag is dead: the
// target's Send with Invalidate killed it, or this side did and saw the completion. A Send that invalidates anything
// else ends the session.
//
// # Loss of a connection
//
// The path logs in again with the same ISID, so that the target ends the old session and all its tasks before it
// answers (RFC 7143 section 6.3.5). Then requests whose outcome is not known are sent again in their order, if doing
// them twice is the same as once; a COMPARE AND WRITE, and a raw command that is not known to read, ends with
// ErrOutcomeUnknown: after that login it either happened or never will. What changes the medium and is given up before that login,
// because its context or Options.ReconnectLimit has ended, ends with ErrUnsettled: it may still happen. Nothing newer of the same Volume is
// sent until that is over.
package block
