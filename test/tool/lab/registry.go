package main

import (
	"slices"
	"time"
)

// The classes. The gate runs short and two of the long ones in turn (turn.go): each scenario boots a guest of its own, so
// small things go together. With long
// it is every scenario there is; soak repeats some of them with more of everything.
const (
	short     = "short"
	long      = "long"
	soak      = "soak"
	reference = "reference"
	every     = "every" // short and long
)

// scenarios in the order they run in: the fabric before what stands on it.
var scenarios = slices.Concat(fabricScenarios, verbsScenarios, roceScenarios, srpScenarios, iserScenarios, failureScenarios, remapScenarios, powerScenarios, initiatorScenarios, attachmentScenarios, fileScenarios, nfsScenarios, serviceScenarios, referenceScenarios)

// referenceScenarios have no Sluice in them. When one of these fails, the lab or the machine is at fault.
var referenceScenarios = []Scenario{
	{Name: "reference-rping", Class: reference, About: "rping between two ends of the guest's siw", Script: "reference-rping.sh", Limit: 20 * time.Minute},
	{Name: "reference-lio", Class: reference, About: "ib_iser and LIO's ib_isert over siw: login, verify, ext4", Limit: 20 * time.Minute, Prepare: arguments("siw")},
	{Name: "reference-knfsd", Class: reference, About: "NFS over RDMA between two ends of the guest", Limit: 20 * time.Minute, Prepare: arguments("siw")},
	{Name: "reference-rxe", Class: reference, About: "RoCE between two ends of the guest: ibv_rc_pingpong, rping, perftest", Limit: 20 * time.Minute},
	{Name: "reference-rxe-lio", Class: reference, About: "ib_iser and ib_isert over RoCE: login, verify, ext4", Script: "reference-lio.sh", Limit: 20 * time.Minute, Prepare: arguments("rxe")},
	{Name: "reference-rxe-knfsd", Class: reference, About: "NFS over RDMA over RoCE", Script: "reference-knfsd.sh", Limit: 20 * time.Minute, Prepare: arguments("rxe")},
	{Name: "reference-srp", Class: reference, About: "ib_srp and ib_srpt over RoCE: login, verify, ext4, logout", Limit: 20 * time.Minute, Prepare: giveSRP()},
	{Name: "reference-port", Class: reference, About: "RoCE whose interface goes down and comes back: what the kernel's own connection manager makes of it", Limit: 20 * time.Minute},
	{Name: "reference-port-6.12", Class: reference, Script: "reference-port.sh", Kernel: "6.12", About: "the same on the newer kernel", Limit: 20 * time.Minute},
	{Name: "reference-wire", Class: reference, About: "two guests with RoCE on a wire: rping, lost packets", Second: "wire-serve.sh", Limit: 20 * time.Minute},
}

// arguments are those of the script.
func arguments(a ...string) func(*Run) error {
	return func(r *Run) error {
		r.Args = a
		return nil
	}
}
