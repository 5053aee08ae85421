package scsi

import (
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
)

// formatUnit stands for FORMAT UNIT where SANITIZE has its service action.
const formatUnit = 0

// erasureNote is what the state file has of a FORMAT UNIT or SANITIZE. SBC-4 section 4.11 lets neither end without
// being complete, so the next start goes on with what a crash interrupts.
//
// A command that was refused must erase nothing then. So the note is written twice. The first one is an intention,
// which a start passes over; the command is refused if it cannot be written, and it may be on the disk all the same.
// After that the command is not refused any more: it waits until Begun is on the disk, and the unit is NOT READY
// meanwhile. The end is noted in the same way.
type erasureNote struct {
	Action  int    `json:"action"` // service action of SANITIZE, or formatUnit
	Passes  int    `json:"passes,omitempty"`
	Invert  bool   `json:"invert,omitempty"`
	Pattern []byte `json:"pattern,omitempty"`
	// AUSE lets EXIT FAILURE MODE open a medium on which it failed (SBC-3 section 5.24.1).
	AUSE bool `json:"ause,omitempty"`
	// Medium is what is to be erased: another one that has come to be at its place is not.
	Medium string `json:"medium,omitempty"`
	Begun  bool   `json:"begun,omitempty"`
	// Failed says that it ended with an error, or of an intention, that an earlier one did.
	Failed bool `json:"failed,omitempty"`
}

func (n *erasureNote) String() string {
	if n.Action == formatUnit {
		return "FORMAT UNIT"
	}
	return "SANITIZE"
}

// flag is that of LogicalUnit.flags while it runs.
func (n *erasureNote) flag() uint32 {
	if n.Action == formatUnit {
		return flagFormatting
	}
	return flagSanitizing
}

// failed is that after it has failed.
func (n *erasureNote) failed() uint32 {
	if n.Action == formatUnit {
		return flagFormatBad
	}
	return flagSanitizeBad
}

// unerased is the answer of a unit with the flags f while its medium may be erased in part (SBC-3 section 4.11.3).
// SANITIZE that succeeds, EXIT FAILURE MODE, or FORMAT UNIT ends that.
func unerased(f uint32) error {
	switch {
	case f&flagSanitizeBad != 0:
		return check(MediumError, ASCSanitizeFailed)
	case f&flagFormatBad != 0:
		return check(MediumError, ASCFormatFailed)
	}
	return nil
}

// Unerased says what of the unit's medium is not over, "" where nothing is: it is not to be read by other ways.
func (lu *LogicalUnit) Unerased() string {
	switch f := lu.flags.Load(); {
	case f&flagSanitizing != 0:
		return "SANITIZE runs"
	case f&flagFormatting != 0:
		return "FORMAT UNIT runs"
	case f&flagSanitizeBad != 0:
		return "SANITIZE is incomplete; repeat it"
	case f&flagFormatBad != 0:
		return "FORMAT UNIT is incomplete; repeat it"
	}
	return ""
}

func (lu *LogicalUnit) swapNote(n *erasureNote) *erasureNote {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	was := lu.erasure
	lu.erasure = n
	return was
}

// intend writes down that n is to be. After an error it is not to be, whatever is on the disk.
func (lu *LogicalUnit) intend(n *erasureNote) error {
	id, err := blockdev.Identity(lu.dev)
	if err != nil {
		return ofDevice(blockdev.Write, err, 0)
	}
	n.Medium, n.Failed = id, lu.has(flagsUnerased)
	lu.mu.Lock()
	was := lu.erasure
	lu.erasure = &erasureNote{Action: n.Action, Medium: id, Failed: n.Failed, AUSE: was != nil && was.AUSE}
	lu.mu.Unlock()
	if err := lu.persist(); err != nil {
		lu.swapNote(was)
		return err
	}
	return nil
}

// settle writes the note down until it is on the disk. Only the end of the unit ends it before.
func (lu *LogicalUnit) settle(n *erasureNote) error {
	lu.swapNote(n)
	for said := false; ; said = true {
		err := lu.persist()
		if err == nil {
			return nil
		}
		if !said {
			lu.log.Error("how far the erasure of a volume is cannot be written down; it is tried again, and the volume is not ready", zap.String("volume", lu.opt.Name), zap.Error(err))
		}
		t := time.NewTimer(settleAgain)
		select {
		case <-t.C:
		case <-lu.stop.Done():
			t.Stop()
			return lu.stop.Err()
		}
	}
}

// givenUp is the note of an erasure that does not go on by itself: one that was begun has failed.
func (n *erasureNote) givenUp() *erasureNote {
	if n == nil || !n.Begun {
		return n
	}
	g := *n
	g.Begun, g.Failed = false, true
	return &g
}

// mayGoOn reports whether the operator still wants an interrupted erasure, on the medium that is there. A medium of
// which only its place is known may be another one by now.
func (lu *LogicalUnit) mayGoOn(n *erasureNote) bool {
	allowed := lu.opt.AllowSanitize
	if n.Action == formatUnit {
		allowed = lu.opt.AllowFormat
	}
	distinct, err := blockdev.Distinct(lu.dev)
	return allowed && (distinct || err != nil) // after an error Identity fails too, and nothing is decided
}

// takeUpLocked decides what becomes of the note that a unit finds, and reports whether an erasure has been given up, which is to be written down.
func (lu *LogicalUnit) takeUpLocked(n *erasureNote) (gaveUp bool) {
	if n == nil || lu.opt.Volatile || !n.Begun && !n.Failed {
		return false
	}
	why := "it failed, or its volume was deleted before it was over"
	if n.Begun && !lu.mayGoOn(n) {
		n, gaveUp = n.givenUp(), true
		why = "it was interrupted, and does not go on because the volume has erase: false now, or because nothing but its place says which medium it is"
	}
	lu.erasure = n
	id, err := blockdev.Identity(lu.dev)
	if n.Begun && err == nil && id == n.Medium && !lu.readOnly() {
		lu.set(n.flag(), true)
		return false
	}
	lu.set(n.failed(), true)
	if n.Begun {
		why = "it was interrupted, and what is there is read-only or another file or device; serve the one that was there, and it goes on"
	}
	lu.log.Error("a volume was not erased to the end; it answers with MEDIUM ERROR until the command is repeated", zap.String("volume", lu.opt.Name),
		zap.Stringer("command", n), zap.String("why", why), zap.String("to_serve_it_as_it_is_remove", lu.statePathLocked()))
	return gaveUp
}

// goOn does from its beginning what takeUpLocked found interrupted.
func (lu *LogicalUnit) goOn(n erasureNote) {
	lu.log.Warn("an interrupted erasure of a volume goes on", zap.String("volume", lu.opt.Name), zap.Stringer("command", &n))
	lu.background.Add(1)
	go func() {
		defer lu.background.Done()
		_ = lu.complete(n) // it tells of an error
	}()
}

// exitFailureMode opens a medium that SANITIZE has not erased (SBC-3 section 4.11.3). The medium stays closed where
// that cannot be written down, and the unit is NOT READY until it is certain what the next start finds.
func (lu *LogicalUnit) exitFailureMode() error {
	if err := lu.claim(flagSanitizing); err != nil {
		return err
	}
	was := lu.swapNote(nil)
	if was == nil || !was.AUSE {
		lu.swapNote(was)
		lu.set(flagSanitizing, false)
		return badCDBBit(1, 4)
	}
	err := lu.persist()
	if err == nil {
		lu.flags.And(^uint32(flagSanitizing | flagSanitizeBad))
		return nil
	}
	lu.background.Add(1)
	go func() {
		defer lu.background.Done()
		if lu.settle(was) == nil {
			lu.set(flagSanitizing, false)
		}
	}()
	return err
}
