package attachcmd

import (
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// Status is how a live attachment is, as its helper says.
type Status struct {
	Paths []PathStatus `json:"paths,omitempty"`
	Log   []string     `json:"log,omitempty"` // what became of paths, the oldest first
}

// PathStatus is one path of a volume.
type PathStatus struct {
	URL   string `json:"url"`
	State string `json:"state"` // active, standby, down
	Group uint16 `json:"group,omitempty"`
	Error string `json:"error,omitempty"`
}

func (o *owner) status() *Status {
	o.mu.Lock()
	v := o.vol
	o.mu.Unlock()
	st := &Status{Log: o.events.lines()}
	if v == nil {
		return st
	}
	for _, p := range v.Paths() {
		ps := PathStatus{URL: p.URL, State: "down", Group: p.Group}
		switch {
		case p.InUse:
			ps.State = "active"
		case p.Up:
			ps.State = "standby"
		}
		if p.Err != nil {
			ps.Error = p.Err.Error()
		}
		st.Paths = append(st.Paths, ps)
	}
	return st
}

// statusLimit is how long a list waits for one helper.
const statusLimit = 5 * time.Second

// status asks a live helper how it is; nil if it does not say.
func (r *Record) status() *Status {
	if r.Broken {
		return nil
	}
	a, err := r.ask()
	if err != nil {
		return nil
	}
	defer a.close()
	a.say(question{Op: opStatus})
	got, err := a.hear(statusLimit)
	if err != nil {
		return nil
	}
	return got.Status
}

// rows shows it to a person.
func (s *Status) rows(t *ui.Table) {
	for _, p := range s.Paths {
		t.Row("path", p.URL, p.State, p.Error)
	}
	for _, l := range s.Log {
		t.Row("log", l)
	}
}

// maxEvents bounds what a helper remembers of its paths.
const maxEvents = 64

// events is the log of a helper, the last of which it keeps for who asks.
type events struct {
	mu sync.Mutex
	l  []string
}

func (e *events) lines() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.l...)
}

func (e *events) add(line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.l) >= maxEvents {
		e.l = append(e.l[:0], e.l[1:]...)
	}
	e.l = append(e.l, line)
}

// Write takes a line of the log.
func (e *events) Write(p []byte) (int, error) {
	e.add(strings.Join(strings.Fields(string(p)), " "))
	return len(p), nil
}

// logger writes for people into the helper's log, and keeps the last lines.
func (e *events) logger(log zapcore.WriteSyncer) *zap.Logger {
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.ISO8601TimeEncoder
	c.ConsoleSeparator = " "
	enc := zapcore.NewConsoleEncoder(c)
	return zap.New(zapcore.NewTee(zapcore.NewCore(enc, log, zap.InfoLevel), zapcore.NewCore(enc, zapcore.AddSync(e), zap.InfoLevel)))
}
