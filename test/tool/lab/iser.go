package main

import "time"

var both = []string{"sluiced", "sluice"}

var iserScenarios = []Scenario{
	{
		Name: "iser-mem", Class: short, Limit: 10 * time.Minute, Host: []string{"sluiced"},
		About: "ib_iser logs in, asks who is there, and verifies 16 MiB on a mem device",
		Prepare: func(r *Run) error {
			_, err := r.serve(unit{"mem", "mem", "64MiB"})
			return err
		},
	},
	{
		Name: "iser-ext4", Class: short, Limit: 10 * time.Minute, Host: []string{"sluiced"},
		About:   "ext4 on a file-backed volume over ib_iser: a tree, fio verify, fstrim, fsck in the guest and of the backing file",
		Script:  "iser-fs.sh",
		Prepare: prepareFS("iser", "ext4"),
		Finish:  func(r *Run) error { return r.fsck("e2fsck", "disk") },
	},
	{
		Name: "iser-ext4-long", Class: soak, Limit: 30 * time.Minute, Host: []string{"sluiced"},
		About:   "the same with more of everything",
		Script:  "iser-fs.sh",
		Prepare: prepareFS("iser", "ext4", bigTree, bigFIO),
		Finish:  func(r *Run) error { return r.fsck("e2fsck", "disk") },
	},
	{
		Name: "iser-xfs", Class: long, Limit: 30 * time.Minute, Host: []string{"sluiced"},
		About:   "the same with xfs",
		Script:  "iser-fs.sh",
		Prepare: prepareFS("iser", "xfs", bigTree, bigFIO),
		Finish:  func(r *Run) error { return r.fsck("xfs_repair", "disk") },
	},
	{
		Name: "tcp-ext4", Class: long, Limit: 30 * time.Minute, Host: []string{"sluiced"},
		About:   "the same with ext4 over iscsi_tcp, no digests",
		Script:  "iser-fs.sh",
		Prepare: prepareFS("tcp", "ext4", bigTree, bigFIO),
		Finish:  func(r *Run) error { return r.fsck("e2fsck", "disk") },
	},
	{
		Name: "tcp-digests", Class: short, Limit: 10 * time.Minute, Host: []string{"sluiced"},
		About:   "ext4 over iscsi_tcp with header and data digests",
		Script:  "iser-fs.sh",
		Prepare: prepareFS("tcp", "ext4", "DIGESTS=CRC32C"),
		Finish:  func(r *Run) error { return r.fsck("e2fsck", "disk") },
	},
	{
		Name: "sg3-iser", Class: long, Limit: 15 * time.Minute, Host: []string{"sluiced"}, Script: "sg3.sh",
		About:   "sg3-utils over iSER: reservations, COMPARE AND WRITE, provisioning, copies, logs, resets as their manuals say",
		Prepare: prepareSG3("iser"),
	},
	{
		Name: "sg3-tcp", Class: long, Turn: true, Limit: 15 * time.Minute, Host: []string{"sluiced"}, Script: "sg3.sh",
		About:   "the same over iSCSI/TCP, with CDBs of 32 bytes",
		Prepare: prepareSG3("tcp"),
	},
	{
		Name: "iser-login", Class: short, Limit: 10 * time.Minute, Files: []string{"sluiced"},
		About: "discovery and login: two targets, four units, two portals, IPv4 and IPv6, logout, a wrong name, a refusal",
	},
}

// The long forms copy some hundred megabytes and let fio write more.
const (
	bigTree = "TREE=etc usr/sbin usr/bin usr/lib"
	bigFIO  = "FIO_SIZE=128m"
)

func prepareFS(transport, fs string, env ...string) func(*Run) error {
	return func(r *Run) error {
		r.Args = []string{transport, fs}
		r.Env = append(r.Env, env...)
		_, err := r.serve(unit{"disk", "file", "1GiB"})
		return err
	}
}

func prepareSG3(transport string) func(*Run) error {
	return func(r *Run) error {
		r.Args = []string{transport}
		_, err := r.serve(unit{"one", "file", "64MiB"}, unit{"two", "file", "64MiB"})
		return err
	}
}
