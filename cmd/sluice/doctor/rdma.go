package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// wantLocked is what a process that uses adapters should be able to lock: registered memory of a daemon as configured by default, and
// queues.
const wantLocked = 1 << 30

// rdma looks at RDMA adapters: what there is, whether it is up, and whether this program can use it.
func (m machine) rdma() []Finding {
	devs, _ := filepath.Glob(filepath.Join(m.sys, "class/infiniband/*"))
	if len(devs) == 0 {
		return []Finding{{What: "RDMA devices", State: good, Saw: "none; the built-in software RNIC needs none"}}
	}
	var names []string
	var fs []Finding
	for _, d := range devs {
		names = append(names, filepath.Base(d))
		fs = append(fs, portsOf(d)...)
	}
	fs = append([]Finding{{What: "RDMA devices", State: good, Saw: strings.Join(names, ", ")}}, fs...)
	fs = append(fs, m.access()...)
	fs = append(fs, m.exposure()...)
	return append(fs, m.locked())
}

// shared looks at shared memory: whether this machine has it, and which daemons offer it to this user.
func (m machine) shared() []Finding {
	f := Finding{What: "shared memory", State: good, Saw: "can be shared between processes; no daemon here offers volumes through it"}
	if err := m.canShare(); err != nil {
		f.State, f.Saw = note, "no memory can be shared: "+err.Error()
		f.Advice = "daemons and initiators on this host go through TCP; Linux 5.1 has what is missing, unless a sandbox forbids memfd_create"
		return []Finding{f}
	}
	l := m.sockets()
	if len(l) > 0 {
		f.Saw = "can be shared between processes"
	}
	fs := []Finding{f}
	for _, s := range l {
		f := Finding{What: "socket " + s.Path, State: good, Saw: "a daemon offers shared memory for port " + s.Port}
		if s.Problem != "" {
			f.State, f.Saw = note, s.Problem+" (owner "+strconv.Itoa(int(s.Owner))+", group "+strconv.Itoa(int(s.Group))+", mode "+s.Mode+")"
			f.Advice = "mode and group of the provider shm in the daemon's configuration say who may; a socket without a daemon goes when one starts: docs/shm.md"
		}
		fs = append(fs, f)
	}
	return fs
}

// portsOf looks at the ports of an adapter.
func portsOf(dev string) []Finding {
	states, _ := filepath.Glob(filepath.Join(dev, "ports/*/state"))
	var fs []Finding
	for _, s := range states {
		b, err := os.ReadFile(s)
		if err != nil {
			continue
		}
		port := filepath.Base(filepath.Dir(s))
		_, state, _ := strings.Cut(strings.TrimSpace(string(b)), ": ") // "4: ACTIVE"
		f := Finding{What: fmt.Sprintf("port %s of %s", port, filepath.Base(dev)), State: good, Saw: strings.ToLower(state)}
		if state != "ACTIVE" {
			f.State, f.Advice = note, "connections through it wait until it is up: look at the cable, the switch, and ip link set IF up (rdma link names the interface)"
		}
		fs = append(fs, f)
	}
	return fs
}

// access looks at the way from a program to the adapters.
func (m machine) access() []Finding {
	var fs []Finding
	for _, mod := range []struct{ name, node string }{{"ib_uverbs", "infiniband/uverbs0"}, {"rdma_ucm", "infiniband/rdma_cm"}} {
		f := Finding{What: "kernel module " + mod.name, State: good, Saw: "loaded"}
		if _, err := os.Stat(filepath.Join(m.dev, mod.node)); err != nil {
			f.State, f.Saw = note, "/dev/"+mod.node+" is not there"
			f.Advice = "no program can use the adapters without it: modprobe " + mod.name + ", and a line in /etc/modules-load.d for the next start"
		}
		fs = append(fs, f)
	}
	f := Finding{What: "rdma-core", State: good, Saw: "the adapters can be used"}
	if _, err := m.adapters(); err != nil {
		f.State, f.Saw = note, "the adapters cannot be used: "+err.Error()
		f.Advice = "software iWARP serves all the same; for the adapters do what is said here: docs/rdma.md goes from an adapter in the machine to the first I/O"
	}
	return append(fs, f)
}

// exposure looks at adapters that are not used by default, for what they would expose.
func (m machine) exposure() []Finding {
	l, err := m.list(fabric.Options{})
	if err != nil {
		return nil // access says why
	}
	var fs []Finding
	for _, a := range l {
		switch {
		case a.Problem != "": // access says so
		case !a.AsTarget:
			fs = append(fs, Finding{What: "adapter " + a.Name, State: note, Saw: "a target does not use it: " + a.Target,
				Advice: "software iWARP serves the same clients. Where all clients are trusted with the daemon's memory, in its configuration: " + a.TargetToUse})
		case !a.AsInit:
			fs = append(fs, Finding{What: "adapter " + a.Name, State: note, Saw: "a target uses it, an initiator does not: " + a.Initiator,
				Advice: "where the target is trusted with all memory of the program that reaches it: " + a.InitiatorToUse})
		}
	}
	return fs
}

// locked looks at how much memory may be locked: an adapter's is.
func (m machine) locked() Finding {
	n, err := m.rlimit(unix.RLIMIT_MEMLOCK)
	f := Finding{What: "locked memory", State: good, Saw: "no limit"}
	if n != unix.RLIM_INFINITY {
		f.Saw = ui.Bytes(int64(n))
	}
	if err != nil || n < wantLocked {
		f.State, f.Advice = note, "memory that adapters use is locked: LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited, where the daemon is not root with CAP_IPC_LOCK"
	}
	return f
}
