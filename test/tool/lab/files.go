package main

import (
	"time"

	fioreport "github.com/sluice-storage/sluice/test/lib/fioreport"
)

var fileScenarios = []Scenario{
	{
		Name: "durable-dmlog", Class: short, Limit: 10 * time.Minute, Files: []string{"sluiced", "sluice", "logreplay"},
		About:   "the file engine on dm-log-writes: each replayed prefix holds what was acknowledged as durable",
		Prepare: func(r *Run) error { r.Env = []string{"TARGET=" + iqn}; return nil },
	},
	{
		Name: "nfs-mount", Class: short, Limit: 10 * time.Minute, Files: []string{"sluiced"},
		About: "the kernel's NFSv3 client over RDMA and over TCP: mount, a tree, fio verify, what both see",
	},
	{
		Name: "numbers", Class: long, Limit: 20 * time.Minute, Files: []string{"sluiced"}, Memory: 2048,
		About:   "fio on the kernel's iSER disk, served by Sluice and by LIO: ratios, without CRC",
		Prepare: func(r *Run) error { r.Env = []string{"TARGET=" + iqn}; return nil },
	},
	{
		Name: "fio", Class: long, Limit: 20 * time.Minute, Files: []string{"sluiced"}, Memory: 2048,
		About: "configs/fio on the kernel's iSER disk and on its NFS mount over RDMA; one report",
		Prepare: func(r *Run) error {
			r.Env = []string{"TARGET=" + iqn}
			return r.give("configs/fio/run", "configs/fio/random-4k.fio", "configs/fio/sequential-128k.fio", "configs/fio/sequential-1m.fio",
				"configs/fio/mixed-70-30.fio", "configs/fio/sync-writes.fio", "configs/fio/verify.fio")
		},
		Finish: fioReport,
	},
	{
		Name: "numbers-crc", Class: soak, Limit: 20 * time.Minute, Files: []string{"sluiced"}, Memory: 2048, Script: "numbers.sh",
		About:   "the same with CRC at both",
		Prepare: func(r *Run) error { r.Env = []string{"TARGET=" + iqn, "CRC=on"}; return nil },
	},
}

// fioReport makes the report of test/tool/fio of what the guest's fio measured.
func fioReport(r *Run) error {
	rs, err := fioreport.ParseDir(r.Dir, []string{"iser", "nfs"}, map[string]string{"iser": "the kernel's iSER disk, over siw", "nfs": "the kernel's NFS mount, over RDMA"})
	if err != nil {
		return err
	}
	rep := fioreport.Report{Title: "fio through the kernel's initiators", When: time.Now(), Machine: fioreport.Machine(2) + ", in a guest without KVM", Results: rs,
		Notes: []string{"Target and initiator are in one emulated guest, a veth pair of MTU 9000 with CRC between them: the figures say which of two is more, and not how fast either is."}}
	if err := rep.Write(r.Dir); err != nil {
		return err
	}
	rep.Print()
	return rep.Check()
}
