package main

import (
	"os"
	"time"
)

// roceScenarios are the longer ones over RoCE by way of libibverbs: Linux's initiators and servers against ours, and what is built on
// our initiator.
var roceScenarios = []Scenario{
	{
		Name: "rxe-iser-long", Class: long, Limit: 30 * time.Minute, Files: []string{"sluiced", "sluice", "fsx"}, Verbs: true, Memory: 1536, Prepare: giveVerbs(),
		About: "ib_iser over RoCE to our target: fio verify, ext4, xfs, UNMAP, three transports at one portal, SIGKILL of the daemon under fio",
	},
	{
		Name: "rxe-nfs", Class: long, Limit: 20 * time.Minute, Files: []string{"sluiced", "sluice", "fsx"}, Verbs: true, Memory: 1536, Prepare: giveVerbs(),
		About: "NFS over RDMA over RoCE: the kernel's mount of our server, killed under fio; our client to knfsd and to ours",
	},
	{
		Name: "rxe-attach", Class: long, Limit: 20 * time.Minute, Files: both, Verbs: true, Prepare: giveVerbs(),
		About: "attach, mount, /etc/fstab and gateway over RoCE: fio verify, ext4, fsck, trees",
	},
	{
		Name: "rxe-libiscsi", Class: long, Limit: 60 * time.Minute, Script: "libiscsi-iser.sh", Files: both, Verbs: true,
		Prepare: func(r *Run) error {
			r.Args = []string{"rxe"}
			return giveVerbs("FAMILIES=" + getenv("LAB_FAMILIES", dataFamilies))(r)
		},
		About: "libiscsi's own iSER over RoCE to our target: the families of its suite that move data",
	},
	{
		Name: "wire-iser", Class: long, Limit: 30 * time.Minute, Second: "wire-target.sh", Files: both, Verbs: true, Prepare: giveVerbs("LIO="+lioBeside(), "ACK="+os.Getenv("LAB_ACK")),
		About: "two guests and a wire, ib_iser to our target: packets are lost, the wire is cut until the session is lost, all under fio verify",
	},
	{
		Name: "wire-port", Class: long, Limit: 30 * time.Minute, Second: "wire-target.sh", Files: both, Verbs: true, Prepare: giveVerbs(),
		About: "two guests and a wire: the target's interface goes down and comes back under ib_iser, Linux's NFS mount and our attach, which come back",
	},
	{
		Name: "rxe-numbers", Class: soak, Limit: 60 * time.Minute, Files: both, Verbs: true, Memory: 2048,
		Prepare: giveVerbs("ROUNDS="+os.Getenv("LAB_ROUNDS"), "SECONDS_EACH="+os.Getenv("LAB_SECONDS"), "JOBS="+os.Getenv("LAB_JOBS")),
		About:   "ib_iser and NFS/RDMA on ours beside LIO and knfsd, our initiator beside perftest: ratios of medians",
	},
}

// dataFamilies are those of iscsi-test-cu that move data, and what an initiator asks first. The rest has nothing to do with the
// adapter, and runs over siw (libiscsi-iser). LAB_FAMILIES='[A-Za-z0-9]+' is all.
const dataFamilies = "TestUnitReady|Inquiry|ReadCapacity16|Read10|Read16|Write10|Write16|WriteVerify16|WriteSame16|CompareAndWrite|Unmap"

// lioBeside names a target of LIO's beside ours in wire-iser where LAB_LIO is set.
func lioBeside() string {
	if os.Getenv("LAB_LIO") == "" {
		return ""
	}
	return "iqn.2024-01.lab:lio"
}
