package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// verbsScenarios are those of the provider for adapters: the kernel's soft devices stand for them, rxe for RoCE and siw for iWARP.
// Both ends are in one guest, on its own address, but where a wire has to be cut.
var verbsScenarios = []Scenario{
	{
		Name: "rxe-rping", Class: short, Limit: 20 * time.Minute, Files: []string{"sluice"}, Verbs: true, Prepare: giveVerbs(),
		About: "the kernel's rping over RoCE against ours by libibverbs, both ways, ours to ours, IPv4 and IPv6",
	},
	{
		Name: "rxe-iser", Class: short, Limit: 20 * time.Minute, Files: both, Verbs: true, Prepare: giveVerbs(),
		About: "ib_iser over RoCE to our target: login, Send with Invalidate, ext4, fio verify, fsck",
	},
	{
		Name: "rxe-suite", Class: short, Limit: 25 * time.Minute, Script: "verbs-suite.sh", Files: []string{"verbs.test"}, Verbs: true,
		Prepare: adapterSuite("rxe", 50, "FLAP=1", "LEFT_OUT=ExactWindows RandomSTags Terminates"),
		About:   "the rules of the transport contract on rxe by libibverbs, case by case, and the shim's own tests",
	},
	{
		Name: "siw-suite", Class: long, Limit: 25 * time.Minute, Script: "verbs-suite.sh", Files: []string{"verbs.test"}, Verbs: true,
		Prepare: adapterSuite("siw", 35, "LEFT_OUT=ExactWindows PerIOWindows RandomSTags Terminates", "HAS_NOT=needs an adapter with windows of type 2"),
		About:   "the same on siw",
	},
	{
		Name: "siw-verbs", Class: long, Limit: 20 * time.Minute, Files: both, Verbs: true, Prepare: giveVerbs(),
		About: "siw by libibverbs: rping, an initiator refused for want of windows, and with whole slabs to our engine, LIO and knfsd, data compared",
	},
	{
		Name: "verbs-without", Class: long, Limit: 20 * time.Minute, Files: both, Verbs: true, Prepare: giveVerbs(),
		About: "no modules, no rdma-core, no providers, little lockable memory: a sentence each, and the rest is served",
	},
	{
		Name: "rxe-delete", Class: long, Limit: 25 * time.Minute, Files: both, Verbs: true, Prepare: giveVerbs(),
		About: "the adapter is deleted and made again while ib_iser writes: a sentence, and no I/O is lost",
	},
	{
		Name: "rxe-initiator", Class: long, Limit: 20 * time.Minute, Files: both, Verbs: true, Prepare: giveVerbs(),
		About: "our initiator by libibverbs to LIO's ib_isert and to our target: discover, inquiry, cp, write, read, load",
	},
}

// giveVerbs gives the guest what these scenarios share.
func giveVerbs(env ...string) func(*Run) error {
	return func(r *Run) error {
		r.Env = append(r.Env, "TARGET="+iqn)
		r.Env = append(r.Env, env...)
		r.Give = append(r.Give, filepath.Join(r.lab.src, "scenarios", "verbs-lib.sh"))
		return nil
	}
}

// adapterSuite gives verbs-suite.sh the tests that want an adapter: those of the files that are built with the provider only. At
// least so many cases are to pass. LAB_RUN chooses others.
func adapterSuite(device string, least int, env ...string) func(*Run) error {
	return func(r *Run) error {
		tests, err := adapterTests(filepath.Join(r.lab.top, "transport/verbs"))
		if err != nil {
			return err
		}
		r.Args = []string{device}
		r.Env = append(r.Env, "RUN="+getenv("LAB_RUN", "^("+strings.Join(tests, "|")+")$"), "FEW="+os.Getenv("LAB_RUN"), fmt.Sprint("LEAST=", least))
		r.Env = append(r.Env, env...)
		return nil
	}
}

var (
	wantsAdapter = regexp.MustCompile(`^//go:build verbs\b`)
	testNamed    = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
)

func adapterTests(dir string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if !wantsAdapter.Match(b) {
			continue
		}
		for _, m := range testNamed.FindAllSubmatch(b, -1) {
			names = append(names, string(m[1]))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no test in %s wants an adapter", dir)
	}
	return names, nil
}
