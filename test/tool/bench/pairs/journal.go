package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
)

// task is what is compared; a journal is of one.
type task struct {
	Old   string   `json:"old"`
	New   string   `json:"new"`
	Parts string   `json:"parts"`
	Args  []string `json:"args"`
}

// pair is what both commits did a second, by row.
type pair struct {
	Old map[string]float64 `json:"old"`
	New map[string]float64 `json:"new"`
}

// journal keeps the pairs that are done in a file, a line of JSON each below the task's.
type journal struct{ f *os.File }

// openJournal makes the file, or reads what an earlier call of the same task has done. A line that was cut is no pair.
func openJournal(path string, t task) (*journal, []pair, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1]
	var done []pair
	for i, line := range bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n")) {
		if len(b) == 0 {
			break
		}
		if i == 0 {
			var was task
			if err := json.Unmarshal(line, &was); err != nil || !reflect.DeepEqual(was, t) {
				return nil, nil, fmt.Errorf("%s is of another comparison: %s", path, line)
			}
			continue
		}
		var p pair
		if err := json.Unmarshal(line, &p); err != nil {
			return nil, nil, fmt.Errorf("%s, line %d: %w", path, i+1, err)
		}
		done = append(done, p)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, err
	}
	j := &journal{f}
	if err = f.Truncate(int64(len(b))); err == nil {
		_, err = f.Seek(int64(len(b)), 0)
	}
	if err == nil && len(b) == 0 {
		err = j.line(t)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return j, done, nil
}

func (j *journal) line(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = j.f.Write(append(b, '\n'))
	}
	return err
}

// add notes a pair; without a file it does nothing.
func (j *journal) add(p pair) error {
	if j == nil {
		return nil
	}
	return j.line(p)
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	return j.f.Close()
}
