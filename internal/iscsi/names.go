package iscsi

import (
	"crypto/rand"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ISID is the initiator's part of a session identifier (RFC 7143 section 11.12.5).
type ISID [6]byte

func (i ISID) String() string { return fmt.Sprintf("%012x", i[:]) }

// RandomISID returns an ISID of the "Random" format: type 10b, 24 random bits and a qualifier.
func RandomISID(qualifier uint16) ISID {
	var i ISID
	// crypto/rand.Read never fails.
	_, _ = rand.Read(i[1:4])
	i[0] = 0x80
	i[4], i[5] = byte(qualifier>>8), byte(qualifier)
	return i
}

// NameError is an iSCSI name that RFC 7143 section 4.2.7 does not allow.
type NameError struct{ Name, Detail string }

func (e *NameError) Error() string {
	return fmt.Sprintf("iscsi: %q is not an iSCSI name: %s (RFC 7143 section 4.2.7)", e.Name, e.Detail)
}

// CheckName verifies an iSCSI name of the formats iqn., eui. and naa. in its normalised, lower-case form.
func CheckName(s string) error {
	bad := func(d string) error { return &NameError{Name: clip(s), Detail: d} }
	switch {
	case s == "":
		return bad("it is empty")
	case len(s) > MaxName:
		return bad("it is longer than 223 bytes")
	case !utf8.ValidString(s):
		return bad("it is not UTF-8")
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.', r == ':', r >= 0x80:
		case r >= 'A' && r <= 'Z':
			// eui. and naa. digits may be upper case; string preparation would have lowered the rest.
			if !strings.HasPrefix(s, "eui.") && !strings.HasPrefix(s, "naa.") {
				return bad("capital letters must be lower case")
			}
		default:
			return bad(fmt.Sprintf("character %q is not allowed", r))
		}
	}
	switch {
	case strings.HasPrefix(s, "iqn."):
		return checkIQN(s[4:], bad)
	case strings.HasPrefix(s, "eui."):
		if !isHex(s[4:], 16) {
			return bad("eui. must be followed by 16 hexadecimal digits")
		}
	case strings.HasPrefix(s, "naa."):
		if !isHex(s[4:], 16) && !isHex(s[4:], 32) {
			return bad("naa. must be followed by 16 or 32 hexadecimal digits")
		}
	default:
		return bad("it must begin with iqn., eui. or naa.")
	}
	return nil
}

func checkIQN(s string, bad func(string) error) error {
	if len(s) < 8 || s[4] != '-' || s[7] != '.' || !isDigits(s[:4]) || !isDigits(s[5:7]) {
		return bad("iqn. must be followed by yyyy-mm and a dot")
	}
	if m := s[5:7]; m < "01" || m > "12" {
		return bad("the month must be 01 to 12")
	}
	domain, _, _ := strings.Cut(s[8:], ":")
	if domain == "" || domain[0] == '.' {
		return bad("the naming authority's domain name is missing")
	}
	return nil
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range len(s) {
		c := s[i] | 0x20
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// clip keeps what a peer sent short enough for a log line.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
