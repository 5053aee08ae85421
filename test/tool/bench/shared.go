package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A volume over iSER through shared memory, beside one thread of this process that calls preadv2 on a file that is the same, again and again, and does
// nothing else: what a program gets that opens the file itself.
var sharedWorks = []work{
	{false, 4 << 10, 32, 0.4},
	{false, 128 << 10, 16, 0.6},
}

func benchShared(dir string, o options, report map[string]any) (missed []error, err error) {
	volume, plain := filepath.Join(dir, "volume"), filepath.Join(dir, "plain")
	for _, p := range []string{volume, plain} {
		if err := fill(p); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.Remove(p)) }()
	}
	f, err := os.Open(plain)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	o.shared = true
	s, err := startSluice(dir, volume, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var results []*result
	for _, w := range sharedWorks {
		r := &result{Work: w.String() + " shared memory", Bar: w.bar, work: w}
		if !strings.Contains(r.Work, o.only) {
			continue
		}
		if err := measure(r, &reader{f: f, b: make([]byte, rawData)}, s, o); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Work, err)
		}
		results = append(results, r)
	}
	print(fmt.Sprintf("iSER through shared memory, sluiced (engine %s) and this client as two processes, beside one thread that calls preadv2", o.engine), "preadv2", results)
	report["shared"] = results
	return judge(results), nil
}

// reader reads a file by preadv2.
type reader struct {
	f *os.File
	b []byte
}

func (*reader) pids() []int { return []int{os.Getpid()} }

// run reads for about d. Each of w.depth reads in turn has its own buffer, as the requests under way of any client have.
func (p *reader) run(w work, d time.Duration) (int, time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, iov := int(p.f.Fd()), make([][]byte, 1)
	start := time.Now()
	for n := 0; ; n++ {
		if n%64 == 0 && time.Since(start) >= d {
			return n, time.Since(start), nil
		}
		iov[0] = p.b[n%w.depth*w.size:][:w.size]
		if k, err := unix.Preadv2(fd, iov, w.offset(n), 0); err != nil || k != w.size {
			return 0, 0, fmt.Errorf("preadv2 gave %d of %d bytes: %w", k, w.size, err)
		}
	}
}
