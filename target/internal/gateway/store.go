package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors of a Store. Others are of the cluster: nothing is known but that the call failed.
var (
	ErrNotFound    = errors.New("gateway: there is no such object in RADOS")
	ErrChanged     = errors.New("gateway: the object in RADOS was changed since it was read; read it again")
	ErrLocked      = errors.New("gateway: another librados instance has the lock of the volume")
	ErrBlocklisted = errors.New("gateway: this librados instance is on the cluster's blocklist: another gateway has taken over")
	// ErrUnsure is of a change that was not answered in time: it may have taken effect, and may yet.
	ErrUnsure = errors.New("gateway: the cluster did not answer in time, and the change may take effect all the same")
)

// Store is what a gateway asks of RADOS by a librados instance of its own, which has no part in the data of volumes. Its methods may be
// called by any goroutine. A call ends within a time of the store's, whether or not it minds the context.
type Store interface {
	// Read returns an object of at most max bytes and its version, or ErrNotFound.
	Read(ctx context.Context, object string, max int) (data []byte, version uint64, err error)
	// Write replaces an object as a whole where its version is still the given one, 0 meaning that there is none. It returns the new
	// version, or ErrChanged.
	Write(ctx context.Context, object string, data []byte, version uint64) (uint64, error)
	// Blocklist returns when the monitors have the entry in an OSD map. One that is there gets the new time.
	Blocklist(ctx context.Context, address string, d time.Duration) error
	// Unblock takes an entry away; one that is not there is no error.
	Unblock(ctx context.Context, address string) error
	// Lockers are the holders of an object's lock: one at most.
	Lockers(ctx context.Context, object string) ([]Locker, error)
	// BreakLock takes the lock away from that holder; one that has it no longer is no error.
	BreakLock(ctx context.Context, object string, l Locker) error
	// Open makes a librados instance with addresses of its own.
	Open(ctx context.Context) (Instance, error)
}

// Instance is a librados instance: what a blocklist names. Each is of one claim, and moves the data of one volume.
type Instance interface {
	// Addresses are what the blocklist takes.
	Addresses() []string
	// WaitForMap returns when the instance has the newest OSD map.
	WaitForMap(ctx context.Context) error
	// Lock takes an object's exclusive lock, which does not expire, or returns ErrLocked.
	Lock(ctx context.Context, object, cookie string) error
	Unlock(ctx context.Context, object, cookie string) error
	// Close ends the instance. Operations under way fail; the cluster may perform them all the same, and later.
	Close()
}

// Locker is the holder of a lock as RADOS names it.
type Locker struct{ Client, Cookie, Address string }

// Step is a step of a claim.
type Step uint8

// The steps of a claim, in order.
const (
	StepSurvey Step = iota
	StepOpenInstance
	StepBlocklist
	StepMap
	StepBreak
	StepLock
	StepRaise
	StepOpenData
	StepRules
)

var stepNames = [...]string{"read who owns it", "make a librados instance", "blocklist the earlier instances", "wait for the OSD map",
	"break the earlier lock", "take the lock", "raise the term", "open the volume", "load the reservations"}

func (s Step) String() string { return stepNames[s] }

// StepError is a claim that failed. The volume is as it was, but for instances that were blocklisted.
type StepError struct {
	Volume string
	Step   Step
	Err    error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("gateway: volume %s was not taken over: cannot %v: %v", e.Volume, e.Step, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }
