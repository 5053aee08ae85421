package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const warning = `[   12.000000] eth0: link up
[   21.104233] ------------[ cut here ]------------
[   21.104880] WARNING: CPU: 1 PID: 412 at drivers/net/some.c:212 some_function+0x9d/0xb0 [some]
[   21.106001] Modules linked in: some(OE) veth
[   21.107000] RIP: 0010:some_function+0x9d/0xb0 [some]
[   21.108000] Call Trace:
[   21.108100]  <TASK>
[   21.108200]  caller.constprop.0+0x4b/0x90 [some]
[   21.108300]  ? maybe_caller+0x1/0x2
[   21.108400]  worker+0x11c/0x3b0
[   21.108500]  </TASK>
[   21.109000] ---[ end trace 0000000000000000 ]---
[   22.000000] eth0: still up
`

var exemption = []known{{why: "a test", at: "some_function", trace: []string{"caller", "worker"}}}

func TestComplaintsOfAHealthyLogAreNone(t *testing.T) {
	log := "[    0.000000] Linux version 6.1.0\n[    1.1] traps: iscsi-test-cu[279] general protection fault ip:7f71 sp:7f71 error:0 in libc.so.6[1000+1000]\n[    1.2] scsi 0:0:0:0: Direct-Access\n[    2.0] debug: nothing\n"
	if got := complaints(log, nil); len(got) != 0 {
		t.Fatalf("complaints = %q", got)
	}
}

func TestComplaintsAreFoundInEveryForm(t *testing.T) {
	for _, line := range []string{
		"[   1.0] BUG: kernel NULL pointer dereference, address: 0000000000000000",
		"[   1.0] WARNING: CPU: 0 PID: 1 at x.c:1 f+0x1/0x2",
		"[ 241.0] INFO: task fio:412 blocked for more than 120 seconds.",
		"<4>[   9.9] watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [kworker/1:2:123]",
		"[   1.0] general protection fault, probably for non-canonical address",
		"[   1.0] traps: sluiced[279] general protection fault ip:7f71 sp:7f71 error:0 in sluiced[1000+1000]",
		"[   1.0] sluice[613]: segfault at be00000005 ip 00007f1c sp 00007ffc error 4 in sluice[1000+1000]",
		"[   1.0] refcount_t: underflow; use-after-free.",
		"[  99.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
		"Kernel panic - not syncing: Fatal exception\r",
	} {
		if got := complaints(line+"\n", nil); len(got) != 1 {
			t.Errorf("%q gives %q", line, got)
		}
	}
}

func TestComplaintsLeaveOutAKnownBlockOnly(t *testing.T) {
	if got := complaints(warning, exemption); len(got) != 0 {
		t.Errorf("the known block: %q", got)
	}
	for what, log := range map[string]string{
		"another place":         strings.ReplaceAll(warning, "212 some_function", "212 other_function"),
		"another way there":     strings.ReplaceAll(warning, "worker", "interrupt"),
		"one caller less":       strings.ReplaceAll(warning, "[   21.108400]  worker+0x11c/0x3b0\n", ""),
		"a second fault inside": strings.ReplaceAll(warning, "[   21.107000]", "[   21.107000] BUG: KASAN"),
		"no end":                strings.ReplaceAll(warning, "---[ end trace", "---"),
		"no exemption at all":   strings.ReplaceAll(warning, "some_function", "x_function"),
	} {
		if got := complaints(log, exemption); len(got) == 0 {
			t.Errorf("%s: no complaint", what)
		}
	}
}

// The exemptions are for the very blocks that were seen; each has its file.
func TestExemptionsAreForWhatWasSeen(t *testing.T) {
	files := []string{"iscsi-unbind.txt"}
	if len(files) != len(exempt) {
		t.Fatalf("%d exemptions, %d files", len(exempt), len(files))
	}
	for i, f := range files {
		b, err := os.ReadFile(filepath.Join("testdata", f))
		if err != nil {
			t.Fatal(err)
		}
		log := string(b)
		if got := complaints(log, exempt); len(got) != 0 {
			t.Errorf("%s: %q", f, got)
		}
		for what, other := range map[string]string{
			"nothing exempted": "", "says": exempt[i].says, "place": exempt[i].at, "a caller": exempt[i].trace[len(exempt[i].trace)/2],
		} {
			changed, list := strings.ReplaceAll(log, other, "somewhere_else"), exempt
			if other == "" {
				changed, list = log, nil
			}
			if len(complaints(changed, list)) == 0 {
				t.Errorf("%s, other %s: no complaint", f, what)
			}
		}
	}
}

func TestKernelVerdictReadsBothLogs(t *testing.T) {
	dir := t.TempDir()
	if err := kernelVerdict(dir); err != nil {
		t.Fatalf("no logs: %v", err)
	}
	line := "[  1.0] Oops: 0000 [#1] PREEMPT SMP\n"
	if err := os.WriteFile(filepath.Join(dir, "console.txt"), []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := kernelVerdict(dir); !errors.Is(err, errKernel) {
		t.Fatalf("an oops on the console: %v", err)
	}
}

func TestChoose(t *testing.T) {
	all := []Scenario{{Name: "a", Class: short}, {Name: "b", Class: long}, {Name: "c", Class: reference}}
	for _, c := range []struct{ class, names, want string }{
		{"short", "", "a"}, {"all", "", "abc"}, {"reference", "", "c"}, {"short", "c,a", "ca"},
	} {
		got, err := choose(t.Context(), all, c.class, c.names)
		s := ""
		for _, x := range got {
			s += x.Name
		}
		if err != nil || s != c.want {
			t.Errorf("choose(%q, %q) = %q, %v; want %q", c.class, c.names, s, err, c.want)
		}
	}
	if _, err := choose(t.Context(), all, "tiny", ""); err == nil {
		t.Error("an unknown class is taken")
	}
	if _, err := choose(t.Context(), all, "short", "z"); err == nil {
		t.Error("an unknown scenario is taken")
	}
}

func TestRegistryIsComplete(t *testing.T) {
	var scripts, names []string
	for _, s := range scenarios {
		script := s.Script
		if script == "" {
			script = s.Name + ".sh"
		}
		scripts = append(scripts, script)
		if s.Second != "" {
			scripts = append(scripts, s.Second)
		}
		if _, err := os.Stat(filepath.Join("scenarios", script)); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if slices.Contains(names, s.Name) || s.About == "" || s.Limit == 0 || (s.Class != short && s.Class != long && s.Class != soak && s.Class != reference) {
			t.Errorf("%s is not well described", s.Name)
		}
		names = append(names, s.Name)
	}
	files, err := filepath.Glob("scenarios/*.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(scripts, filepath.Base(f)) && !strings.HasSuffix(f, "-lib.sh") { // what scripts share
			t.Errorf("%s belongs to no scenario", f)
		}
	}
}
