package nbdlink

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A kernel thread's flags in field 9 of proc(5)'s stat (Linux include/linux/sched.h).
const pfKthread = 0x00200000

// Receivers are the kernel's threads that wait for a device's replies: one a connection.
type Receivers struct {
	Busy    int  // that are receiving
	Rescuer bool // one of them is the work queue's rescuer, which keeps to itself what else was queued
	Hidden  bool // kernel threads cannot be seen from here: a container has process numbers of its own
}

// receivers looks for them in a proc file system. A worker bears the name of the queue that it is at work for behind a plus
// sign: "kworker/u5:1+nbd0-recv" (Linux kernel/workqueue.c, wq_worker_comm; a queue a device since 5.16).
func receivers(proc string, index int) (Receivers, error) {
	r := Receivers{Hidden: true}
	stats, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	if err != nil {
		return r, err
	}
	queue := fmt.Sprintf("+nbd%d-recv", index)
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		name, kernel := parseStat(string(b))
		if !kernel {
			continue
		}
		r.Hidden = false
		if worker, ok := strings.CutSuffix(name, queue); ok {
			r.Busy++
			r.Rescuer = r.Rescuer || !strings.HasPrefix(worker, "kworker/u")
		}
	}
	return r, nil
}

// parseStat takes a thread's name and whether it is the kernel's from a stat file.
func parseStat(s string) (name string, kernel bool) {
	from, to := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if from < 0 || to < from {
		return "", false
	}
	f := strings.Fields(s[to+1:]) // from field 3
	if len(f) < 7 {
		return "", false
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	return s[from+1 : to], err == nil && flags&pfKthread != 0
}

const (
	receiverPoll   = 5 * time.Millisecond
	receiverLimit  = 5 * time.Second        // for all of them to begin on a machine that is busy
	rescuerPatient = 500 * time.Millisecond // for the others to begin when the rescuer has one: it may have taken only that
)

// awaitReceivers waits until n threads receive; false says that some will not.
func awaitReceivers(look func() (Receivers, error), n int) (bool, error) {
	begin := time.Now()
	var rescued time.Time
	for {
		r, err := look()
		now := time.Now()
		switch {
		case err != nil:
			return false, err
		case r.Busy >= n:
			return true, nil
		case now.Sub(begin) > receiverLimit:
			return false, nil
		case !r.Rescuer:
			rescued = time.Time{}
		case rescued.IsZero():
			rescued = now
		case now.Sub(rescued) > rescuerPatient:
			return false, nil
		}
		time.Sleep(receiverPoll) // a thread's beginning has no event
	}
}
