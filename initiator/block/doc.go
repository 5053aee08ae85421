// Package block is the initiator of block volumes: it logs in to an iSCSI target over iSER (RFC 7145) or TCP (RFC 7143)
// and offers a logical unit as a Volume.
//
// # How it hangs together
//
// An Initiator has the memory, the fabric and the name. A Volume is one logical unit, reached over one path or several;
// a path is one portal and, while it is up, one session of one connection. A Request given to Volume.Submit is put into
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
// ErrOutcomeUnknown: after that login it either happened or never will.
package block
