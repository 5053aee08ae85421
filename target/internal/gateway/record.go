package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Objects of a group, all in one pool and namespace. A lock lies on an object of its own, since taking it is a write, which would change the
// version of what is on it.
const (
	groupObject       = "group"
	definitionsObject = "definitions"
)

func memberObject(gateway string) string { return "gateway." + gateway }
func recordObject(volume string) string  { return "volume." + volume }
func lockObject(volume string) string    { return "lock." + volume }
func rulesObject(volume string) string   { return "reservations." + volume }
func appliedObject(volume string) string { return "applied." + volume }

// Cause is why a volume was taken over.
type Cause string

// The causes. Each has its time of detection in limits.go.
const (
	CauseFree       Cause = "no gateway owned it"
	CauseSilent     Cause = "nothing was heard of its owner" // Lost
	CauseRestart    Cause = "the owner's process had ended"  // a look
	CauseSetGroups  Cause = "an initiator asked by SET TARGET PORT GROUPS"
	CauseInitiators Cause = "initiators without a session at its owner asked for it" // AskedFor
	CauseOperator   Cause = "an operator asked"
	CauseRules      Cause = "its owner did not apply a reservation" // RulesWait
)

// Record says who owns a volume. Times are of the writer's clock and for people to read.
type Record struct {
	Volume string `json:"volume"`
	// Term is one more with each owner.
	Term uint64 `json:"term"`
	// Owner is a gateway, and Process the life of it; empty where no gateway owns the volume.
	Owner   string `json:"owner,omitempty"`
	Process string `json:"process,omitempty"`
	Machine string `json:"machine,omitempty"`
	// Addresses are of the librados instance that may have I/O under way. An owner that saw all of it end leaves none.
	Addresses []string  `json:"addresses,omitempty"`
	Cause     Cause     `json:"cause,omitempty"`
	Since     time.Time `json:"since"`
	// Wanted is a gateway that the owner shall give the volume up for.
	Wanted string `json:"wanted,omitempty"`
	// Moves counts owners in a row that came because initiators asked.
	Moves int `json:"moves,omitempty"`
	// Fenced are earlier instances whose process may live.
	Fenced []Fenced `json:"fenced,omitempty"`
}

// Fenced is an instance that was blocklisted, and whose it was. A locker that no record names has neither gateway nor process.
type Fenced struct {
	Address string    `json:"address"`
	Gateway string    `json:"gateway,omitempty"`
	Process string    `json:"process,omitempty"`
	Machine string    `json:"machine,omitempty"`
	Term    uint64    `json:"term"`
	At      time.Time `json:"at"`
}

// member is a gateway as it writes itself down, with each beat.
type member struct {
	Name    string `json:"name"`
	Process string `json:"process"`
	Machine string `json:"machine,omitempty"`
	// Alone says that earlier processes of that name on that machine are dead.
	Alone    bool   `json:"alone,omitempty"`
	Beat     uint64 `json:"beat"`
	Draining bool   `json:"draining,omitempty"`
	// Owns is the term of each volume that is served.
	Owns map[string]uint64 `json:"owns,omitempty"`
	// Sessions are pairs of volume and initiator port, see pair.
	Sessions []uint64 `json:"sessions,omitempty"`
	// Shut are addresses of instances that this process has shut down.
	Shut []string `json:"shut,omitempty"`
}

// members is who takes part. Group is the gateway's target port group, the same number for ever.
type members struct {
	Gateways map[string]uint16 `json:"gateways"`
}

// rules are the reservations of a volume. Number is one more with each change; the version of the object is not used for it, since the
// cluster alone gives that.
type rules struct {
	Number uint64 `json:"number"`
	Writer string `json:"writer"` // of the change, made up for it
	Data   []byte `json:"data,omitempty"`
}

// applied says which rules an owner serves by.
type applied struct {
	Term   uint64 `json:"term"`
	Number uint64 `json:"number"`
}

// DamagedError is an object that is not what its name says.
type DamagedError struct{ Object, Reason string }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("gateway: the object %s is damaged or of another program: %s", e.Object, e.Reason)
}

// CheckName says whether gateways and volumes may have that name: 1 to 100 of a to z, A to Z, 0 to 9, '.', '_', '-' and ':'.
func CheckName(s string) error {
	other := func(r rune) bool { return !strings.ContainsRune(nameRunes, r) }
	if len(s) == 0 || len(s) > maxName || strings.ContainsFunc(s, other) {
		return fmt.Errorf("gateway: %q is no name of a gateway or volume: it takes 1 to %d letters, digits and the characters %q", s[:min(len(s), maxName)], maxName, "._-:")
	}
	return nil
}

const nameRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:"

// decode reads an object strictly: a field that is not known is of a newer program, whose rules this one would break.
func decode(object string, data []byte, v interface{ fault() string }) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return &DamagedError{object, err.Error()}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return &DamagedError{object, "there is something behind it"}
	}
	if f := v.fault(); f != "" {
		return &DamagedError{object, f}
	}
	return nil
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structures of this file: none fails
	}
	return b
}

func addressesFault(l []string) string {
	if len(l) > maxAddresses {
		return "too many addresses"
	}
	for _, a := range l {
		if a == "" || len(a) > 2*maxName {
			return "an address is empty or too long"
		}
	}
	return ""
}

func (r *Record) fault() string {
	switch {
	case CheckName(r.Volume) != nil:
		return "no name of a volume"
	case r.Owner != "" && CheckName(r.Owner) != nil, r.Wanted != "" && CheckName(r.Wanted) != nil:
		return "no name of a gateway"
	case r.Owner != "" && (r.Process == "" || len(r.Addresses) == 0):
		return "an owner without a process or an address"
	case len(r.Process) > maxName, len(r.Machine) > maxName, r.Moves < 0:
		return "a field is out of range"
	case len(r.Fenced) > maxFenced:
		return "too many fenced instances"
	}
	for _, f := range r.Fenced {
		if f.Address == "" || len(f.Address) > 2*maxName || len(f.Gateway) > maxName || len(f.Process) > maxName || len(f.Machine) > maxName {
			return "a fenced instance is out of range"
		}
	}
	return addressesFault(r.Addresses)
}

func (m *member) fault() string {
	switch {
	case CheckName(m.Name) != nil:
		return "no name of a gateway"
	case m.Process == "" || len(m.Process) > maxName || len(m.Machine) > maxName:
		return "no process"
	case len(m.Sessions) > maxPairs, len(m.Shut) > maxShut*maxAddresses:
		return "too many sessions or instances"
	}
	return ""
}

func (g *members) fault() string {
	if len(g.Gateways) > maxGateways {
		return "too many gateways"
	}
	seen := map[uint16]bool{}
	for name, n := range g.Gateways {
		if CheckName(name) != nil || n == 0 || seen[n] {
			return "a gateway without a name or without a number of its own"
		}
		seen[n] = true
	}
	return ""
}

func (r *rules) fault() string {
	if r.Number == 0 || r.Writer == "" || len(r.Writer) > maxName || len(r.Data) > maxRules {
		return "reservations out of range"
	}
	return ""
}

func (*applied) fault() string { return "" }
