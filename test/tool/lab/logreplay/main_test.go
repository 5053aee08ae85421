package main

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

const stepSize = 4096

// logged builds a log of dm-log-writes.
type logged struct{ bytes.Buffer }

func (l *logged) entry(where, sectors, flags uint64, mark string, data []byte) {
	e := make([]byte, sector)
	for i, v := range []uint64{where, sectors, flags, uint64(len(mark))} {
		binary.LittleEndian.PutUint64(e[8*i:], v)
	}
	copy(e[32:], mark)
	l.Write(e)
	l.Write(data)
}

func (l *logged) replay(entries int) error {
	head := make([]byte, sector)
	for i, v := range []uint64{magic, version, uint64(entries), sector} {
		binary.LittleEndian.PutUint64(head[8*i:], v)
	}
	r := &replay{image: make([]byte, 1<<20), size: stepSize}
	return r.all(bytes.NewReader(append(head, l.Bytes()...)))
}

func TestReplayTakesAPromiseThatIsKept(t *testing.T) {
	var l logged
	l.entry(0, 8, 0, "", pattern(0, stepSize))
	l.entry(0, 0, flagFlush, "", nil)
	l.entry(0, 0, flagMark, "durable-0", nil)
	l.entry(8, 8, flagFUA, "", pattern(1, stepSize))
	l.entry(0, 0, flagMark, "durable-1", nil)
	l.entry(1024, 8, flagDiscard, "", nil)
	if err := l.replay(6); err != nil {
		t.Fatal(err)
	}
}

func TestReplayFindsABrokenPromise(t *testing.T) {
	for what, build := range map[string]func(*logged) int{
		"the mark before the data": func(l *logged) int {
			l.entry(0, 0, flagMark, "durable-0", nil)
			l.entry(0, 8, 0, "", pattern(0, stepSize))
			return 2
		},
		"data damaged later": func(l *logged) int {
			l.entry(0, 8, 0, "", pattern(0, stepSize))
			l.entry(0, 0, flagMark, "durable-0", nil)
			l.entry(4, 1, 0, "", make([]byte, sector))
			return 3
		},
		"a discard of promised data": func(l *logged) int {
			l.entry(0, 8, 0, "", pattern(0, stepSize))
			l.entry(0, 0, flagMark, "durable-0", nil)
			l.entry(0, 8, flagDiscard, "", nil)
			return 3
		},
	} {
		var l logged
		if err := l.replay(build(&l)); err == nil || !strings.Contains(err.Error(), "promise") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestReplayRefusesWhatIsNoLog(t *testing.T) {
	r := &replay{image: make([]byte, 1<<20), size: stepSize}
	if err := r.all(bytes.NewReader(make([]byte, 4*sector))); err == nil {
		t.Error("zeroes are taken for a log")
	}
	var l logged
	l.entry(1<<40, 8, 0, "", pattern(0, stepSize))
	if err := l.replay(1); err == nil {
		t.Error("a write beyond the device is taken")
	}
	var m logged
	m.entry(0, 8, 0, "", nil)
	if err := m.replay(1); err == nil {
		t.Error("data that are missing are taken")
	}
}
