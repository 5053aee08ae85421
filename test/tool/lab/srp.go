package main

import (
	"os"
	"path/filepath"
	"time"
)

// srpScenarios are those of Linux's SRP initiator, ib_srp, on our target over RoCE.
var srpScenarios = []Scenario{
	{
		Name: "srp-rxe", Class: short, Limit: 15 * time.Minute, Files: both, Verbs: true, Prepare: giveSRP(),
		About: "ib_srp over RoCE to our target: login with two channels, fio verify, ext4, logout",
	},
	{
		Name: "srp-forms", Class: long, Limit: 30 * time.Minute, Files: []string{"sluiced", "sluice", "fsx"}, Verbs: true, Memory: 1536, Prepare: giveSRP(),
		About: "ib_srp to our target: each form of data descriptor under fio verify, ext4, xfs, fsx, UNMAP",
	},
	{
		Name: "srp-life", Class: long, Limit: 30 * time.Minute, Files: both, Verbs: true, Prepare: giveSRP(),
		About: "ib_srp to our target: growth, reservations beside iSER and iSCSI, ABORT TASK and LUN RESET by timeouts, SIGKILL of the daemon under fio",
	},
	{
		Name: "srp-multipath", Class: long, Limit: 30 * time.Minute, Files: both, Verbs: true, Systemd: true, Prepare: giveSRP(),
		About: "dm-multipath over ib_srp and ib_iser to one volume, sg_persist through both; each port goes under fio, and the daemon is killed",
	},
	{
		Name: "srp-numbers", Class: soak, Limit: 40 * time.Minute, Files: both, Verbs: true, Memory: 1536,
		Prepare: giveSRP("ROUNDS="+os.Getenv("LAB_ROUNDS"), "SECONDS_EACH="+os.Getenv("LAB_SECONDS")),
		About:   "ib_srp on ours beside ib_srpt: ratios of medians",
	},
}

// giveSRP gives the guest what the scenarios of Linux's SRP drivers share.
func giveSRP(env ...string) func(*Run) error {
	return func(r *Run) error {
		r.Env = append(r.Env, "TARGET="+iqn)
		r.Env = append(r.Env, env...)
		for _, f := range []string{"verbs-lib.sh", "srp-lib.sh"} {
			r.Give = append(r.Give, filepath.Join(r.lab.src, "scenarios", f))
		}
		return nil
	}
}
