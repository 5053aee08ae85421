package main

import "time"

// roceScenarios are the longer ones over RoCE by way of libibverbs: Linux's initiators and servers against ours, and what is built on
// our initiator.
var roceScenarios = []Scenario{
	{
		Name: "rxe-attach", Class: long, Limit: 20 * time.Minute, Files: both, Verbs: true, Prepare: giveVerbs(),
		About: "attach, mount, /etc/fstab and gateway over RoCE: fio verify, ext4, fsck, trees",
	},
}
