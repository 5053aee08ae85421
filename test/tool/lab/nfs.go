package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

var nfsScenarios = []Scenario{
	{
		Name: "nfs-work", Class: long, Limit: 30 * time.Minute, Memory: 1536, Files: []string{"sluiced", "fsx"}, Prepare: giveSource,
		About: "work on NFSv3 mounts by RDMA and TCP: a source tree, a build, fio, fsx, churn, users, a large directory, holes",
	},
	{
		Name: "nfs-locks", Class: long, Limit: 20 * time.Minute, Files: []string{"sluiced"}, Prepare: giveNFS, Finish: finishLocks,
		About: "the lock managers of two kernels: ranges, hand-over within a second by GRANTED in the capture, cancel, several waiters, a lost connection, a client that restarts",
	},
	{
		Name: "nfs-restart", Class: long, Turn: true, Limit: 20 * time.Minute, Files: []string{"sluiced"}, Prepare: giveNFS, Finish: finishRestart,
		About: "SIGKILL of the file server: SM_NOTIFY, reclaim in grace, no new lock before its end, the mounts go on",
	},
	{
		Name: "nfs-durable", Class: long, Limit: 20 * time.Minute, Files: []string{"sluiced"},
		About: "power failures of the file server on dm-flakey: the verifier changes, clients send again, nothing acknowledged is lost; servers that lie are found out",
		Prepare: func(r *Run) error {
			if err := giveNFS(r); err != nil {
				return err
			}
			return r.giveLiars("sluiced", nfsLies...)
		},
	},
	{
		Name: "nfs-knfsd", Class: long, Limit: 20 * time.Minute, Files: []string{"sluice"}, Prepare: giveSource,
		About: "our NFS client against knfsd over RDMA and TCP: commands, a tree there and back, several at once, a server that restarts",
	},
	{
		Name: "nfs-gateway", Class: long, Limit: 20 * time.Minute, Files: []string{"sluiced", "sluice", "fsx"}, Prepare: giveSource,
		About: "the kernel's NFS/TCP client through sluice gateway to RDMA: a tree, fio, fsx, names, a restart of the server",
	},
}

// giveSource packs this source tree for the guest.
func giveSource(r *Run) error {
	file := filepath.Join(r.Tmp, "source.tar")
	top := r.lab.top
	if out, err := r.tool("tar", "-C", top, "--exclude=./.git", "--exclude=./dist", "--exclude=./bin", "-cf", file, "./docs", "./internal", "./transport", "./test/tool/lab"); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	r.Give = append(r.Give, file)
	return giveNFS(r)
}

// giveNFS gives the guest what the NFS scenarios with two clients share.
func giveNFS(r *Run) error {
	r.Give = append(r.Give, filepath.Join(r.lab.src, "scenarios", "nfs-lib.sh"))
	return nil
}

// seen counts the packets of a capture that a filter lets through.
func (r *Run) seen(pcap, filter string) (int, error) {
	out, err := command(r.Ctx, "tshark", "-r", filepath.Join(r.Dir, pcap), "-Y", filter, "-T", "fields", "-e", "frame.number").Output()
	if err != nil {
		return 0, fmt.Errorf("tshark on %s: %w", pcap, err)
	}
	n := len(strings.Fields(string(out)))
	r.Logf("%s: %d packets of %s", pcap, n, filter)
	return n, nil
}

// wants is how many packets a filter must find at least; 0 is none at all.
type wants struct {
	pcap, filter string
	atLeast      int
}

func (r *Run) captured(all ...wants) error {
	for _, w := range all {
		n, err := r.seen(w.pcap, w.filter)
		if err != nil {
			return err
		}
		if n < w.atLeast || w.atLeast == 0 && n > 0 {
			return fmt.Errorf("%s has %d packets of %s, not %d", w.pcap, n, w.filter, w.atLeast)
		}
	}
	return nil
}

func finishLocks(r *Run) error {
	granted := func(client string) string { return "nlm.procedure_v4 == 5 && rpc.msgtyp == 0 && ip.dst == " + client }
	return r.captured(
		wants{"one.pcap", granted("10.9.0.1"), 3},
		wants{"two.pcap", granted("10.8.0.1"), 3},
		wants{"one.pcap", "(nlm || stat) && _ws.malformed", 0},
		wants{"two.pcap", "(nlm || stat) && _ws.malformed", 0},
	)
}

func finishRestart(r *Run) error {
	var all []wants
	for _, pcap := range []string{"one.pcap", "two.pcap"} {
		all = append(all,
			wants{pcap, "stat.procedure_v1 == 6 && rpc.msgtyp == 0 && (ip.src == 10.9.0.2 || ip.src == 10.8.0.2)", 1},
			wants{pcap, "nlm.procedure_v4 == 2 && rpc.msgtyp == 0 && nlm.reclaim == 1", 1},
			wants{pcap, "nlm.procedure_v4 == 2 && rpc.msgtyp == 1 && nlm.stat == 4", 1}, // NLM4_DENIED_GRACE_PERIOD
			wants{pcap, "(nlm || stat) && _ws.malformed", 0})
	}
	return r.captured(all...)
}
