package attachcmd

import (
	"fmt"
	"os"
	"strings"
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
	// Since is when it came into that state; Logins and Losses count sessions, Commands what was sent over them.
	Since    time.Time `json:"since,omitzero"`
	Logins   int       `json:"logins"`
	Losses   int       `json:"losses"`
	Commands uint64    `json:"commands"`
}

func (o *owner) status() *Status {
	o.mu.Lock()
	v := o.vol
	o.mu.Unlock()
	st := &Status{}
	if v == nil {
		return st
	}
	for _, e := range v.Events() {
		line := e.Time.Format(time.RFC3339) + " " + e.Path + ": " + e.Text
		if e.Err != nil {
			line += ": " + e.Err.Error()
		}
		st.Log = append(st.Log, strings.Join(strings.Fields(line), " "))
	}
	for _, p := range v.Paths() {
		ps := PathStatus{URL: p.URL, State: "down", Group: p.Group, Since: p.Since, Logins: p.Logins, Losses: p.Losses, Commands: p.Commands}
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
		t.Row("path", p.URL, p.State, fmt.Sprintf("%d commands, lost %d times", p.Commands, p.Losses), p.Error)
	}
	for _, l := range s.Log {
		t.Row("log", l)
	}
}

// logger writes for people into the helper's log.
func logger() *zap.Logger {
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.ISO8601TimeEncoder
	c.ConsoleSeparator = " "
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(c), zapcore.Lock(os.Stderr), zap.InfoLevel))
}
