package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// errKernel marks a run in which the guest's kernel found fault with itself.
var errKernel = errors.New("the guest's kernel complains")

// complaint matches what a healthy kernel never logs. Debug kernels say more of it, stock ones at least this.
var complaint = regexp.MustCompile(`BUG:|WARNING:|Oops|general protection|segfault at|KASAN|UBSAN|refcount_t|Kernel panic|` +
	`INFO: task .* blocked for more than|INFO: rcu|rcu: INFO|soft lockup|hard LOCKUP|list_add corruption|list_del corruption|` +
	`use-after-free|Unable to handle|possible circular locking|inconsistent lock state|possible recursive locking`)

// crashes are programs of the guest's that are known to end that way, whoever their target is. A crash of any other, Sluice's
// own first of all, is a complaint like the kernel's.
var crashes = regexp.MustCompile(`^(traps: )?iscsi-test-cu\[\d+\](: segfault at| general protection fault ip:)`)

// stamp is the time at the beginning of a kernel line; it differs from run to run.
var stamp = regexp.MustCompile(`^(<\d+>)?\[ *\d+\.\d+\] ?`)

// known is a complaint of a stock kernel that has nothing to do with what is tested. The whole block between "cut
// here" and "end trace" is compared: the place it was raised at and every function of its call trace, so that the
// same warning reached on another way still fails the scenario.
type known struct {
	why   string
	says  string   // what the line before the warning has in it
	at    string   // the function named after "at FILE:LINE"
	trace []string // the functions of the call trace, without offsets, "?" entries left out
}

var exempt = []known{{
	// The work queue on which Linux 6.1 takes a session apart is one that must make progress when memory is short, and
	// it waits for one that need not. The kernel notices only when the device's power management happens to be busy;
	// any logout from any target can meet it.
	why:  "ends of iSCSI sessions, in scsi_transport_iscsi itself",
	says: "__iscsi_unbind_session [scsi_transport_iscsi] is flushing !WQ_MEM_RECLAIM pm:pm_runtime_work",
	at:   "check_flush_dependency",
	trace: []string{"start_flush_work", "flush_work", "pm_runtime_remove", "device_pm_remove", "device_del", "scsi_target_reap",
		"scsi_remove_target", "__iscsi_unbind_session", "process_one_work", "worker_thread", "kthread", "ret_from_fork"},
}}

// kernelVerdict reads the logs of a run. dmesg.txt is missing when the guest died; the console has its last words.
func kernelVerdict(dir string) error {
	var lines []string
	for _, f := range []string{"dmesg.txt", "console.txt"} {
		b, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		lines = append(lines, complaints(string(b), exempt)...)
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	if len(lines) == 0 {
		return nil
	}
	if len(lines) > 6 {
		lines = append(lines[:6], "...")
	}
	return fmt.Errorf("%w:\n\t%s", errKernel, strings.Join(lines, "\n\t"))
}

// complaints returns the lines of a kernel log that match, blocks that are known left out.
func complaints(log string, exempt []known) []string {
	var got, block []string
	in := false
	for _, line := range strings.Split(strings.ReplaceAll(log, "\r", ""), "\n") {
		line = stamp.ReplaceAllString(line, "")
		switch {
		case strings.Contains(line, "[ cut here ]"):
			got = append(got, judge(block, nil)...) // a block that never ended
			in, block = true, nil
		case in:
			block = append(block, line)
			if strings.Contains(line, "---[ end trace") {
				got = append(got, judge(block, exempt)...)
				in, block = false, nil
			}
		case complaint.MatchString(line) && !crashes.MatchString(line):
			got = append(got, line)
		}
	}
	return append(got, judge(block, nil)...)
}

var (
	raisedAt = regexp.MustCompile(`(?:WARNING|BUG): .* at \S+:\d+ (\w+)(?:\.\w+)*\+0x`)
	frame    = regexp.MustCompile(`^ (\w+)(?:\.\w+)*\+0x[0-9a-f]+/0x[0-9a-f]+`)
)

func judge(block []string, exempt []known) []string {
	var at string
	var trace, bad []string
	inTrace := false
	for _, l := range block {
		if m := raisedAt.FindStringSubmatch(l); m != nil {
			at = m[1]
		}
		switch {
		case strings.HasPrefix(l, "Call Trace:"):
			inTrace = true
		case strings.Contains(l, "</TASK>") || strings.HasPrefix(l, "---["):
			inTrace = false
		case inTrace:
			if m := frame.FindStringSubmatch(l); m != nil {
				trace = append(trace, m[1])
			}
		}
		if complaint.MatchString(l) {
			bad = append(bad, l)
		}
	}
	for _, k := range exempt {
		if k.at == at && len(bad) == 1 && slices.Equal(k.trace, trace) && strings.Contains(block[0], k.says) {
			return nil
		}
	}
	if len(bad) == 0 && len(block) > 0 {
		bad = block[:1] // a block is a complaint whatever it says
	}
	return bad
}
