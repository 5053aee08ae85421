package verbs

import (
	"fmt"
	"os"
	"sync"

	"go.uber.org/zap"
)

// manager takes the connection manager's events, of all connections of a device, on one goroutine. What an event means is
// for the id's owner; here nothing blocks and no id is destroyed, for rdma_destroy_id waits for events being taken.
type manager struct {
	d    *Device
	ch   handle
	file *os.File

	mu  sync.Mutex // held while events are taken and handed on: an id that is not in the map has none
	ids map[handle]eventSink
}

// eventSink owns an id. cmEvent must neither block nor call the library.
type eventSink interface{ cmEvent(cmEvent) }

func (m *manager) open(d *Device) error {
	m.d, m.ids = d, map[handle]eventSink{}
	ch, fd, err := d.tab.CreateEventChannel()
	if err != nil {
		return noManager(err)
	}
	if m.file, err = pollable(fd, "connection manager"); err != nil {
		d.tab.DestroyEventChannel(ch)
		return fmt.Errorf("verbs: connection manager: %w", err)
	}
	m.ch = ch
	d.wg.Add(1)
	go m.loop()
	return nil
}

// manages uses the connection manager once, to see whether it can be used.
func manages(tab table) error {
	ch, _, err := tab.CreateEventChannel()
	if err != nil {
		return noManager(err)
	}
	tab.DestroyEventChannel(ch)
	return nil
}

func (m *manager) loop() {
	defer m.d.wg.Done()
	watch(m.d, m.file, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		for {
			e, ok, err := m.d.tab.CMEvent(m.ch)
			if err != nil || !ok {
				return err
			}
			m.handLocked(e)
		}
	})
}

// handLocked gives e to who owns its id; mu is held.
func (m *manager) handLocked(e cmEvent) {
	if e.Kind == cmConnectRequest {
		if l, ok := m.ids[e.Listener].(*listener); ok {
			m.ids[e.ID] = l.requestLocked(e)
			return
		}
		m.d.aside(func() { _ = m.refuse(e.ID, nil) }) // the peer may be gone
		return
	}
	if s := m.ids[e.ID]; s != nil {
		s.cmEvent(e)
		return
	}
	m.d.opt.Log.Debug("an event of no connection", zap.String("event", e.Text))
}

// newID makes an id of the owner's.
func (m *manager) newID(s eventSink) (handle, error) {
	m.mu.Lock() // so that no event of it comes before it is in the map
	defer m.mu.Unlock()
	id, err := m.d.tab.CreateID(m.ch)
	if err != nil {
		return 0, fmt.Errorf("verbs: create a connection identifier: %w", err)
	}
	m.ids[id] = s
	return id, nil
}

// give makes s the owner of id.
func (m *manager) give(id handle, s eventSink) {
	m.mu.Lock()
	m.ids[id] = s
	m.mu.Unlock()
}

// dropID destroys an id. Its queue pair is destroyed already.
func (m *manager) dropID(id handle) {
	m.mu.Lock()
	delete(m.ids, id)
	m.mu.Unlock()
	m.d.warn("a connection identifier could not be destroyed", m.d.tab.DestroyID(id))
}

// refuse answers a request with no, and destroys its id.
func (m *manager) refuse(id handle, private []byte) error {
	err := m.d.tab.Reject(id, private)
	m.dropID(id)
	return err
}

func (m *manager) stopLoop() {
	if m.file != nil {
		_ = m.file.Close() // a descriptor of ours
	}
}

func (m *manager) close() {
	if m.ch != 0 {
		m.d.tab.DestroyEventChannel(m.ch)
	}
}
