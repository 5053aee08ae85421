package block

import (
	"sync"
	"time"
)

// Event is something that happened to a path of a volume.
type Event struct {
	Time time.Time
	Path string // its URL, without secrets
	Text string
	Err  error // why, where there is a reason
}

// maxEvents bounds a volume's log.
const maxEvents = 128

// events are the last ones.
type events struct {
	mu   sync.Mutex
	list []Event
}

// tell notes an event of a path in the volume's log and the initiator's. Any lock may be held.
func (v *Volume) tell(p *path, text string, err error) {
	e := &v.events
	url := p.u.String()
	e.mu.Lock()
	if len(e.list) == maxEvents {
		copy(e.list, e.list[1:])
		e.list = e.list[:maxEvents-1]
	}
	e.list = append(e.list, Event{Time: time.Now(), Path: url, Text: text, Err: err})
	e.mu.Unlock()
	if err == nil {
		v.ini.o.Log.Info(text, "path", url)
	} else {
		v.ini.o.Log.Warn(text, "path", url, "error", err)
	}
}

// Events are the last things that happened to the volume's paths, oldest first.
func (v *Volume) Events() []Event {
	v.events.mu.Lock()
	defer v.events.mu.Unlock()
	return append([]Event(nil), v.events.list...)
}
