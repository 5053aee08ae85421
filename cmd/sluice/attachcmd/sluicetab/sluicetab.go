// Package sluicetab reads /etc/sluicetab, the list of volumes that a machine attaches at boot. Each line has up to four
// fields, as crypttab(5) has them:
//
//	NAME  URL[,URL...]  CREDENTIALS  OPTION[,OPTION...]
//
// The third may be "-" or "none" for no credentials. A line that begins with # is a comment. Reading is strict: what is
// not understood is an error with its line and column, because a volume that is silently attached in another way than
// was meant costs more than one that is not attached.
package sluicetab

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// Limits of a table, with their reasons.
const (
	maxFile    = 1 << 20 // bytes: some thousand volumes, more than a kernel has devices for
	maxLine    = 4096    // bytes: sixteen paths with long names
	maxName    = 64      // bytes: a name becomes part of file names and of units' names
	maxEntries = 1024
)

// Path is where the table is.
const Path = "/etc/sluicetab"

// Forever is the reconnect limit of a volume whose users wait for it, however long it takes.
const Forever time.Duration = -1

// Entry is one volume.
type Entry struct {
	Name        string
	URLs        []string // paths of one volume
	Credentials string   // a file, or ""
	Face        string   // auto, device, file, socket, ublk
	Socket      string   // where the socket goes, "" for the usual place
	CRC         string   // "" for the default
	Provider    string   // likewise
	Exposure    string   // likewise
	Initiator   string   // iSCSI name, "" for the default
	AckTimeout  time.Duration
	Reconnect   time.Duration
	ReadOnly    bool
	NoAuto      bool // attached only when asked for by name
	NoFail      bool // a failure is reported and does not count
	Line        int
}

// Error says what is wrong with a table, and where.
type Error struct {
	File   string
	Line   int // from 1
	Column int // from 1, in bytes
	Text   string
	Detail string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Detail)
	}
	// The caret stands below the column also where tabs are.
	pad := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, e.Text[:min(e.Column-1, len(e.Text))])
	return fmt.Sprintf("%s:%d:%d: %s\n  %s\n  %s^", e.File, e.Line, e.Column, e.Detail, e.Text, pad)
}

// Parse reads a table; file is its name in errors.
func Parse(file string, b []byte) ([]Entry, error) {
	if len(b) > maxFile {
		return nil, &Error{File: file, Detail: fmt.Sprintf("the table has %d bytes; at most %d are read", len(b), maxFile)}
	}
	out := []Entry{}
	lines := map[string]int{}
	for i, text := range strings.Split(string(b), "\n") {
		p := &line{file: file, n: i + 1, text: strings.TrimSuffix(text, "\r")}
		e, err := p.parse()
		if err != nil {
			return nil, err
		}
		if e == nil {
			continue
		}
		if first, ok := lines[e.Name]; ok {
			return nil, p.wrong(p.fields[0], "the name %q stands in line %d already", e.Name, first)
		}
		if len(out) == maxEntries {
			return nil, p.wrong(p.fields[0], "more than %d volumes", maxEntries)
		}
		lines[e.Name] = e.Line
		out = append(out, *e)
	}
	return out, nil
}

// line is the line under way.
type line struct {
	file   string
	n      int
	text   string
	fields []field
}

type field struct {
	at   int // bytes before it
	text string
}

func (p *line) wrong(f field, format string, a ...any) error {
	return &Error{File: p.file, Line: p.n, Column: f.at + 1, Text: p.text, Detail: fmt.Sprintf(format, a...)}
}

func blank(c byte) bool { return c == ' ' || c == '\t' }

func (p *line) parse() (*Entry, error) {
	if len(p.text) > maxLine {
		p.text = p.text[:64] + "..."
		return nil, p.wrong(field{at: 64}, "the line is longer than %d bytes", maxLine)
	}
	for i := range len(p.text) {
		if c := p.text[i]; c < ' ' && c != '\t' || c >= 0x7f {
			f := field{at: i}
			p.text = strings.Map(func(r rune) rune {
				if r < ' ' && r != '\t' || r == 0x7f || r == 0xfffd {
					return '?'
				}
				return r
			}, p.text)
			return nil, p.wrong(f, "byte 0x%02x is neither printable ASCII nor a tab", c)
		}
	}
	for i := 0; i < len(p.text); {
		if blank(p.text[i]) {
			i++
			continue
		}
		from := i
		for i < len(p.text) && !blank(p.text[i]) {
			i++
		}
		p.fields = append(p.fields, field{from, p.text[from:i]})
	}
	f := p.fields
	switch {
	case len(f) == 0 || f[0].text[0] == '#':
		return nil, nil
	case len(f) == 1:
		return nil, p.wrong(field{at: f[0].at + len(f[0].text)}, "the URL is missing; a line is: NAME URL [CREDENTIALS|-] [OPTIONS]")
	case len(f) > 4:
		return nil, p.wrong(f[4], "a fifth field; a line is: NAME URL [CREDENTIALS|-] [OPTIONS]")
	}
	e := &Entry{Name: f[0].text, Face: "auto", Line: p.n}
	if bad := CheckName(e.Name); bad != "" {
		return nil, p.wrong(f[0], "%s", bad)
	}
	if err := p.urls(e, f[1]); err != nil {
		return nil, err
	}
	if len(f) > 2 && f[2].text != "-" && f[2].text != "none" {
		if !filepath.IsAbs(f[2].text) {
			return nil, p.wrong(f[2], "%q is no absolute path of a file with credentials; - stands for none", f[2].text)
		}
		e.Credentials = f[2].text
	}
	if len(f) > 3 {
		if err := p.options(e, f[3]); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// CheckName says what is wrong with the name of an attachment, or nothing: it becomes a part of paths and of units' names.
func CheckName(s string) string {
	switch {
	case s == "":
		return "the name is empty"
	case len(s) > maxName:
		return fmt.Sprintf("a name has at most %d bytes", maxName)
	case s[0] == '.' || s[0] == '-':
		return fmt.Sprintf("the name %q begins with %q", s, s[:1])
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-:", r) {
			return fmt.Sprintf("the name %q has %q in it; letters, digits and . _ - : are allowed", s, r)
		}
	}
	return ""
}

func (p *line) urls(e *Entry, f field) error {
	at := f.at
	for _, s := range strings.Split(f.text, ",") {
		here := field{at, s}
		at += len(s) + 1
		if strings.HasPrefix(s, "nfs") {
			return p.wrong(here, "an NFS export needs a directory: write it to /etc/fstab with the type sluice")
		}
		u, err := block.ParseURL(s)
		switch {
		case err != nil:
			return p.wrong(here, "%v", err)
		case u.Target == "":
			return p.wrong(here, "the URL names no target; a volume is iser://HOST/TARGET/LUN")
		}
		e.URLs = append(e.URLs, s)
	}
	return nil
}

// faces are the values of as=, with the names that the kernel's world has for them.
var faces = map[string]string{
	"auto": "auto", "device": "device", "nbd": "device", "file": "file", "fuse": "file", "socket": "socket", "ublk": "ublk",
}

// Face is the face of a name of it.
func Face(name string) (string, bool) {
	f, ok := faces[name]
	return f, ok
}

const knownOptions = "as=, auto, noauto, nofail, ro, rw, reconnect=, crc=, provider=, exposure=, ack_timeout=, initiator=, socket=, _netdev"

func (p *line) options(e *Entry, f field) error {
	at := f.at
	seen := map[string]bool{}
	for _, s := range strings.Split(f.text, ",") {
		here := field{at, s}
		at += len(s) + 1
		key, value, has := strings.Cut(s, "=")
		if seen[key] {
			return p.wrong(here, "%s stands here twice", key)
		}
		seen[key] = true
		if bad := e.option(key, value, has); bad != "" {
			return p.wrong(here, "%s", bad)
		}
	}
	switch {
	case seen["auto"] && seen["noauto"]:
		return p.wrong(f, "auto and noauto contradict one another")
	case seen["ro"] && seen["rw"]:
		return p.wrong(f, "ro and rw contradict one another")
	case e.Socket != "" && e.Face != "socket":
		return p.wrong(f, "socket= goes with as=socket")
	}
	return nil
}

// AckTimeout parses how long an RDMA adapter waits for an acknowledgement.
func AckTimeout(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("ack_timeout=%s is no duration; 60ms and 1s are", value)
	}
	if err := fabric.CheckAckTimeout(d); err != nil {
		return 0, fmt.Errorf("ack_timeout=%s: %w", value, err)
	}
	return d, nil
}

// option applies one option and says what is wrong with it.
func (e *Entry) option(key, value string, has bool) string {
	flags := map[string]*bool{"auto": nil, "noauto": &e.NoAuto, "nofail": &e.NoFail, "ro": &e.ReadOnly, "rw": nil, "_netdev": nil}
	if b, ok := flags[key]; ok {
		if has {
			return key + " takes no value"
		}
		if b != nil {
			*b = true
		}
		return ""
	}
	switch key {
	case "as":
		f, ok := faces[value]
		if !ok {
			return fmt.Sprintf("as=%s is none of auto, nbd, ublk, fuse, socket", value)
		}
		e.Face = f
	case "reconnect":
		d, err := Limit(value)
		if err != nil {
			return err.Error()
		}
		e.Reconnect = d
	case "crc":
		if !slices.Contains(fabric.CRCs, value) {
			return fmt.Sprintf("crc=%s is none of on, always, peer, off", value)
		}
		e.CRC = value
	case "provider":
		if !slices.Contains(fabric.Providers, value) {
			return fmt.Sprintf("provider=%s is none of %s", value, strings.Join(fabric.Providers, ", "))
		}
		e.Provider = value
	case "exposure":
		if !slices.Contains(fabric.Exposures, value) {
			return fmt.Sprintf("exposure=%s is none of %s", value, strings.Join(fabric.Exposures, ", "))
		}
		e.Exposure = value
	case "ack_timeout":
		d, err := AckTimeout(value)
		if err != nil {
			return err.Error()
		}
		e.AckTimeout = d
	case "initiator":
		if err := iscsi.CheckName(value); err != nil {
			return err.Error()
		}
		e.Initiator = value
	case "socket":
		if !filepath.IsAbs(value) {
			return "socket= wants an absolute path"
		}
		e.Socket = value
	default:
		return fmt.Sprintf("unknown option %q; known are %s", key, knownOptions)
	}
	return ""
}

// Limit reads a reconnect limit: "90s", "5m" or "forever".
func Limit(s string) (time.Duration, error) {
	if s == "forever" {
		return Forever, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is no reconnect limit; 30s, 5m and forever are", s)
	}
	return d, nil
}
