package filelock

import "strconv"

// Verdict is what a Table says of a request.
type Verdict uint8

// The verdicts. The zero value is none.
const (
	// Granted says that the request is done.
	Granted Verdict = iota + 1
	// Denied says that a lock or a share of another owner stands in the way.
	Denied
	// Blocked says that the request waits, and that its Waiter will be told.
	Blocked
	// NoRoom says that the client, the file or the table has as much as it may have. Nothing has changed.
	NoRoom
	// Grace says that clients recover what they had, and that until they have, nothing else is granted.
	Grace
	// NoGrace says that the time in which clients recover what they had is over.
	NoGrace
)

func (v Verdict) String() string {
	switch v {
	case Granted:
		return "granted"
	case Denied:
		return "denied"
	case Blocked:
		return "blocked"
	case NoRoom:
		return "no room"
	case Grace:
		return "grace"
	case NoGrace:
		return "no grace"
	}
	return "verdict " + strconv.Itoa(int(v))
}
