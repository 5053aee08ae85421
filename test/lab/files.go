package main

import "time"

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
		Name: "numbers-crc", Class: long, Limit: 20 * time.Minute, Files: []string{"sluiced"}, Memory: 2048, Script: "numbers.sh",
		About:   "the same with CRC at both",
		Prepare: func(r *Run) error { r.Env = []string{"TARGET=" + iqn, "CRC=on"}; return nil },
	},
}
