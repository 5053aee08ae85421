package main

import (
	"path/filepath"
	"time"
)

// verbsScenarios are those of the provider for adapters: the kernel's soft devices stand for them, rxe for RoCE and siw for iWARP.
// Both ends are in one guest, on its own address, but where a wire has to be cut.
var verbsScenarios = []Scenario{
	{
		Name: "rxe-rping", Class: long, Limit: 20 * time.Minute, Files: []string{"sluice"}, Verbs: true, Prepare: giveVerbs(),
		About: "the kernel's rping over RoCE against ours by libibverbs, both ways, ours to ours, IPv4 and IPv6",
	},
	{
		Name: "rxe-iser", Class: long, Limit: 20 * time.Minute, Files: both, Verbs: true, Prepare: giveVerbs(),
		About: "ib_iser over RoCE to our target: login, Send with Invalidate, ext4, fio verify, fsck",
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
