package filesystem

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// HungError says that an export's directory does not answer.
type HungError struct{ Path, Dir string }

func (e *HungError) Error() string {
	return fmt.Sprintf("nfs: export %s: directory %s does not answer, its medium seems to hang; take the export out until it is back", e.Path, e.Dir)
}

// OpenError says why exports cannot be opened, by their paths.
type OpenError struct{ Why map[string]error }

func (e *OpenError) Error() string {
	var l []string
	for _, path := range slices.Sorted(maps.Keys(e.Why)) {
		l = append(l, e.Why[path].Error())
	}
	return strings.Join(l, "; ")
}

// Unwrap has every one of them.
func (e *OpenError) Unwrap() []error { return slices.Collect(maps.Values(e.Why)) }

// opening are the directories that are being opened. One that hangs keeps one goroutine, however often it is asked for.
type opening struct {
	mu   sync.Mutex
	dirs map[string]chan struct{} // closed when it is open, or not
}

func (o *opening) begin(ctx context.Context, dir string) bool {
	for {
		o.mu.Lock()
		before := o.dirs[dir]
		if before == nil {
			if o.dirs == nil {
				o.dirs = make(map[string]chan struct{})
			}
			o.dirs[dir] = make(chan struct{})
			o.mu.Unlock()
			return true
		}
		o.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return false
		}
	}
}

func (o *opening) end(dir string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.dirs[dir])
	delete(o.dirs, dir)
}

// open opens an export within a time, or says HungError; then nothing of e but what prepare made may be used.
func (o *opening) open(e *Served, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	hung := &HungError{e.Path, e.Dir}
	if !o.begin(ctx, e.Dir) {
		return hung
	}
	done := make(chan error, 1)
	go func() {
		err := e.open()
		o.end(e.Dir)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	go func() {
		if <-done == nil {
			_ = unix.Close(e.root)
		}
	}()
	return hung
}

// openExports makes a table of exports, with those of was that are in it already. What is served and unchanged stays where its
// medium hangs. It opens all or none: OpenError names each that it could not open.
func (s *FS) openExports(was *exportTable, log *zap.Logger, exports []Export) (*exportTable, error) {
	all := make([]*Served, len(exports))
	for i, x := range exports {
		var err error
		if all[i], err = x.prepare(); err != nil {
			return nil, err
		}
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, e := range all {
		within := openTime
		if was.unchanged(e) != nil {
			within = gateTime
		}
		wg.Go(func() { errs[i] = s.opening.open(e, within) })
	}
	wg.Wait()
	t := &exportTable{byID: make(map[uint32]*Served), byPath: make(map[string]*Served)}
	why := make(map[string]error)
	for i, e := range all {
		err := errs[i]
		var hung *HungError
		old := was.unchanged(e)
		switch {
		case err == nil && len(why) > 0:
			e.close()
			continue
		case err == nil:
			e = was.keep(e)
			if e.Data == nil && s.newData != nil {
				e.Data = s.newData()
			}
		case errors.As(err, &hung) && old != nil:
			log.Warn("an export stays as it is: its medium hangs", zap.String("export", e.Path))
			e = old
		default:
			why[e.Path] = err
			continue
		}
		if e.medium == nil { // what is served already has one
			e.medium = mediumFor(e, was.list, t.list)
		}
		if t.byID[e.ID] != nil {
			why[e.Path] = fmt.Errorf("nfs: exports %s and %s have the same ID; set one", e.Path, t.byID[e.ID].Path)
			if was.byID[e.ID] != e {
				e.close()
			}
			continue
		}
		if e.kind == kindInode && was.byID[e.ID] != e {
			log.Warn("file handles are made of inode numbers: after a restart the export is walked to find a file", zap.String("export", e.Path))
		}
		t.byID[e.ID], t.byPath[e.Path] = e, e
		t.list = append(t.list, e)
	}
	if len(why) > 0 {
		t.closeBut(was)
		return nil, &OpenError{why}
	}
	return t, nil
}

// unchanged returns the export that t has with the same path and the same rules, or nil.
func (t *exportTable) unchanged(e *Served) *Served {
	if old := t.byPath[e.Path]; old != nil && reflect.DeepEqual(old.Export, e.Export) {
		return old
	}
	return nil
}

// keep returns the export that t has for e, closing e, where both are the same; otherwise e goes on with its Data.
func (t *exportTable) keep(e *Served) *Served {
	old := t.byPath[e.Path]
	if old == nil {
		return e
	}
	if old.dev == e.dev && old.ino == e.ino && t.unchanged(e) != nil {
		e.close()
		return old
	}
	e.Data = old.Data
	return e
}

// mediumFor is an export's medium: that of one that is served already or is about to be, or a new one. The replacement of a
// file system that hangs is another.
func mediumFor(e *Served, lists ...[]*Served) *medium {
	for _, l := range lists {
		for _, x := range l {
			if x.dev == e.dev {
				return x.medium
			}
		}
	}
	return &medium{}
}

// closeBut closes what is not in other.
func (t *exportTable) closeBut(other *exportTable) {
	for _, e := range t.list {
		if other == nil || other.byID[e.ID] != e {
			e.close()
		}
	}
}
