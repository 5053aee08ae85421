package scsi

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// dir says which way a command's data goes.
type dir uint8

const (
	dirNone dir = iota
	dirIn
	dirOut
)

// conflict is how a command behaves for an I_T nexus that holds no right under the reservation of another (SPC-4 tables
// 43 and 44, SBC-3 table 13).
type conflict uint8

const (
	conflictNever  conflict = iota + 1 // allowed whatever is reserved
	conflictReads                      // allowed under write exclusive, conflicts with exclusive access
	conflictWrites                     // conflicts with every reservation of another
	conflictOwn                        // has rules of its own: RESERVE, RELEASE, PERSISTENT RESERVE OUT
	conflictSPC2                       // allowed under persistent reservations, conflicts with an SPC-2 reservation
)

// trait is what else the dispatcher must know of a command.
type trait uint8

const (
	anyTime     trait = 1 << iota // runs whatever the task set holds and whatever unit attention waits (SAM-5 5.14, 8.6)
	inStandby                     // allowed in ALUA state standby (SPC-4 section 5.15.2.4.4)
	inUnavail                     // allowed in ALUA states unavailable and offline too
	notReadyToo                   // allowed while the medium is stopped, absent, being formatted or sanitized
	mutates                       // writes the medium: subject to write protection
)

// row describes one operation code, or one service action of it: the one place that knows its shape. The dispatcher,
// REPORT SUPPORTED OPERATION CODES, metrics and fuzz seeds all read it.
type row struct {
	op     Opcode
	sa     int // noSA, or the service action
	name   string
	length int    // of the CDB in bytes
	usage  string // CDB usage data (SPC-4 section 6.35.3) in hexadecimal: the bits that may be set
	dir    dir
	class  conflict
	traits trait
	// recommended is the command timeout in seconds (SPC-4 section 6.35.4); no nominal time is reported.
	recommended uint32
	// offered says whether a unit has the command at all; nil means always.
	offered func(*LogicalUnit) bool
	// begin checks the CDB and starts the command. It may be called for an itl without a logical unit only where the
	// command is INQUIRY, REPORT LUNS or REQUEST SENSE.
	begin func(*Command) stepResult

	mask []byte
}

// opEntry is one of 256 dispatch entries: a row, or several by service action.
type opEntry struct {
	row *row
	sas []*row
}

func (e *opEntry) empty() bool { return e.row == nil && e.sas == nil }

var table [256]opEntry

func init() { table = mustTable() }

// serviceAction extracts the service action of a CDB whose opcode has them.
func serviceAction(cdb []byte) int {
	if Opcode(cdb[0]) == OpVariableLength {
		if len(cdb) < 10 {
			return noSA
		}
		return int(binary.BigEndian.Uint16(cdb[8:]))
	}
	if len(cdb) < 2 {
		return noSA
	}
	return int(cdb[1] & 0x1F)
}

func (e *opEntry) find(sa int) *row {
	for _, r := range e.sas {
		if r.sa == sa {
			return r
		}
	}
	return nil
}

// CommandName is the name of the command that a CDB with this first byte is, or of the first of several: for people.
func CommandName(op byte) string {
	e := &table[op]
	switch {
	case e.empty():
		return fmt.Sprintf("opcode %02Xh", op)
	case e.row != nil:
		return e.row.name
	}
	return e.sas[0].name
}

// lookup finds the row of a CDB, or the sense that says why there is none.
func lookup(cdb []byte) (*row, *SenseError) {
	if len(cdb) == 0 {
		return nil, check(IllegalRequest, ASCInvalidOpcode)
	}
	e := &table[cdb[0]]
	if e.empty() {
		return nil, check(IllegalRequest, ASCInvalidOpcode)
	}
	r := e.row
	if r == nil {
		if r = e.find(serviceAction(cdb)); r == nil {
			if Opcode(cdb[0]) == OpVariableLength {
				return nil, badCDB(8)
			}
			return nil, badCDBBit(1, 4)
		}
	}
	if len(cdb) < r.length {
		return nil, badCDB(len(cdb) - 1)
	}
	if r.op == OpVariableLength && int(cdb[7]) != r.length-8 {
		return nil, badCDB(7)
	}
	for i, m := range r.mask {
		if i > 0 && cdb[i]&^m != 0 {
			bit := uint8(7)
			for cdb[i]&^m&(1<<bit) == 0 {
				bit--
			}
			return nil, badCDBBit(i, bit)
		}
	}
	return r, nil
}

// mustTable builds the dispatch table and panics where rows contradict each other or themselves.
func mustTable() [256]opEntry {
	t, err := buildTable(rows())
	if err != nil {
		panic(err)
	}
	return t
}

func buildTable(rows []*row) (t [256]opEntry, err error) {
	for _, r := range rows {
		if err := r.prepare(); err != nil {
			return t, err
		}
		e := &t[r.op]
		switch {
		case e.row != nil, r.sa == noSA && !e.empty(), r.sa != noSA && e.find(r.sa) != nil:
			return t, fmt.Errorf("scsi: %s: two rows for one command", r.name)
		case r.sa == noSA:
			e.row = r
		default:
			e.sas = append(e.sas, r)
		}
	}
	return t, nil
}

// cdbLength is the length that the group code of an opcode implies, 0 where it implies none (SPC-4 section 4.2.5.1).
func cdbLength(op Opcode) int { return [8]int{6, 10, 10, 0, 16, 12, 0, 0}[op>>5] }

func (r *row) prepare() error {
	bad := func(why string) error { return fmt.Errorf("scsi: row %s (%02Xh): %s", r.name, uint8(r.op), why) }
	mask, err := hex.DecodeString(strings.ReplaceAll(r.usage, " ", ""))
	switch {
	case err != nil:
		return bad("usage: " + err.Error())
	case len(mask) != r.length:
		return bad(fmt.Sprintf("usage has %d bytes, the CDB %d", len(mask), r.length))
	case r.op != OpVariableLength && cdbLength(r.op) != r.length:
		return bad("length does not follow from the group code")
	case mask[0] != byte(r.op):
		return bad("usage does not begin with the operation code")
	case r.sa != noSA && r.sa != serviceAction(mask)&r.sa:
		return bad("usage does not hold the service action")
	case r.class == 0 || r.begin == nil || r.name == "" || r.recommended == 0:
		return bad("incomplete")
	case r.traits&mutates != 0 && r.class != conflictWrites:
		return bad("writes the medium, yet is allowed under reservations")
	case r.traits&inUnavail != 0 && r.traits&inStandby == 0:
		return bad("allowed in unavailable but not in standby")
	}
	r.mask = mask
	return nil
}
