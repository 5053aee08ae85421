// Package doctor looks at the machine and says what to change before Sluice serves or mounts well on it. It changes
// nothing.
package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/cmd/sluice/admincmd"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/internal/uring"
	"github.com/sluice-storage/sluice/target/daemon"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// Finding is the result of one look.
type Finding struct {
	What   string `json:"what"`
	State  string `json:"state"` // good, note, bad
	Saw    string `json:"saw"`
	Advice string `json:"advice,omitempty"`
}

const (
	good = "good"
	note = "note"
	bad  = "bad"
)

// machine is where to look, so that tests can show another one.
type machine struct {
	sys, proc, dev string
	stateDir       string
	listen         func(addr string) error
	rlimit         func(resource int) (uint64, error)
	release        func() string
	adapters       func() (none bool, err error)                  // why no RDMA adapter can be used
	list           func(fabric.Options) ([]fabric.Adapter, error) // what Sluice does with each
	sockets        func() []fabric.Socket                         // of daemons that offer shared memory
	canShare       func() error                                   // why no memory can be shared
	ring           func() error                                   // why there is no io_uring
	served         func() (admincmd.Served, error)                // what the daemon has, and with what problems
}

func here(stateDir string) machine {
	return machine{
		adapters: fabric.Adapters, list: fabric.List, sockets: fabric.Sockets, canShare: fabric.CanShare, ring: uring.Try,
		sys: "/sys", proc: "/proc", dev: "/dev", stateDir: stateDir,
		listen: func(addr string) error {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				return err
			}
			return l.Close()
		},
		rlimit: func(r int) (uint64, error) {
			var l unix.Rlimit
			err := unix.Getrlimit(r, &l)
			return l.Cur, err
		},
		release: func() string {
			var u unix.Utsname
			if unix.Uname(&u) != nil {
				return ""
			}
			return string(u.Release[:bytes.IndexByte(u.Release[:], 0)])
		},
	}
}

// Command is "sluice doctor".
func Command() *cobra.Command {
	var stateDir string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Look at this machine and say what to change",
		Long: `Look at kernel, limits, io_uring, RDMA devices, MTU, modules, file system and ports, and say what to change so that Sluice serves
and mounts well here; ask the daemon that runs which volumes, targets and exports of its configuration it does not serve, and why.
Nothing is changed. The exit code is 1 when something is bad.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			m := here(stateDir)
			m.served = func() (admincmd.Served, error) { return admincmd.AskServed(c) }
			if c.Flags().Changed("state-dir") && !c.Flags().Changed("socket") {
				if err := c.Flags().Set("socket", filepath.Join(stateDir, "admin.sock")); err != nil {
					return err
				}
			}
			fs := m.look()
			err := ui.Print(c, fs, func(t *ui.Table) {
				for _, f := range fs {
					t.Row(f.State, f.What, f.Saw)
					if f.Advice != "" {
						t.Row("", "", "-> "+f.Advice)
					}
				}
			})
			if err != nil {
				return err
			}
			for _, f := range fs {
				if f.State == bad {
					return errors.New("something above is bad")
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&stateDir, "state-dir", daemon.DefaultStateDir(), "where volumes live, or will")
	c.Flags().String("socket", "", "the daemon's admin.sock (default: in the state directory)")
	return c
}

func (m machine) look() []Finding {
	var fs []Finding
	for _, f := range []func() []Finding{m.kernel, m.limits, m.rings, m.rdma, m.shared, m.mtu, m.initiators, m.faces, m.fileSystem, m.ports, m.daemon} {
		fs = append(fs, f()...)
	}
	return fs
}

func (m machine) kernel() []Finding {
	rel := m.release()
	major, minor := versionOf(rel)
	if major > 5 || major == 5 && minor >= 6 {
		return []Finding{{What: "kernel", State: good, Saw: rel}}
	}
	return []Finding{{What: "kernel", State: bad, Saw: rel, Advice: "Sluice needs Linux 5.6 or later (openat2, RWF_NOWAIT on buffered files)"}}
}

func versionOf(rel string) (major, minor int) {
	parts := strings.SplitN(rel, ".", 3)
	if len(parts) < 2 {
		return 0, 0
	}
	major, _ = strconv.Atoi(parts[0])
	digits := strings.IndexFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' })
	if digits >= 0 {
		parts[1] = parts[1][:digits]
	}
	minor, _ = strconv.Atoi(parts[1])
	return major, minor
}

func (m machine) limits() []Finding {
	n, err := m.rlimit(unix.RLIMIT_NOFILE)
	f := Finding{What: "open files", State: good, Saw: strconv.FormatUint(n, 10)}
	if err != nil || n < 4096 {
		f.State, f.Advice = note, "a thousand sessions need as many descriptors: ulimit -n 65536, or LimitNOFILE= in the unit"
	}
	return []Finding{f}
}

func (m machine) mtu() []Finding {
	ifs, _ := filepath.Glob(filepath.Join(m.sys, "class/net/*"))
	var fs []Finding
	for _, i := range ifs {
		name := filepath.Base(i)
		b, err := os.ReadFile(filepath.Join(i, "mtu"))
		oper, _ := os.ReadFile(filepath.Join(i, "operstate"))
		if err != nil || name == "lo" || strings.TrimSpace(string(oper)) != "up" {
			continue
		}
		mtu, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		f := Finding{What: "MTU of " + name, State: good, Saw: strconv.Itoa(mtu)}
		if mtu < 9000 {
			f.State, f.Advice = note, "9000 on hosts and switches means a sixth of the frames: ip link set "+name+" mtu 9000"
		}
		fs = append(fs, f)
	}
	return fs
}

// loaded reports whether a kernel module is loaded or built in.
func (m machine) loaded(mod string) bool {
	_, err := os.Stat(filepath.Join(m.sys, "module", mod))
	return err == nil
}

func (m machine) initiators() []Finding {
	saw := []string{}
	for _, mod := range []string{"siw", "rdma_rxe", "ib_iser", "iscsi_tcp", "nbd", "ublk_drv", "rpcrdma"} {
		if m.loaded(mod) {
			saw = append(saw, mod)
		}
	}
	f := Finding{What: "kernel modules", State: good, Saw: strings.Join(saw, ", ")}
	if len(saw) == 0 {
		f.Saw, f.State = "none of siw, ib_iser, iscsi_tcp, nbd, rpcrdma is loaded", note
		f.Advice = "only the kernel's own initiators need them: modprobe ib_iser siw, then rdma link add siw0 type siw netdev IF"
	}
	return []Finding{f}
}

func (m machine) faces() []Finding {
	f := Finding{What: "/dev/fuse", State: good, Saw: "there"}
	file, err := os.OpenFile(filepath.Join(m.dev, "fuse"), os.O_RDWR, 0)
	if err != nil {
		f.State, f.Saw, f.Advice = note, "not usable: "+errno(err), "sluice mount of files needs it: modprobe fuse, or give the container --device /dev/fuse"
	} else {
		file.Close()
	}
	return []Finding{f}
}

func errno(err error) string {
	var e unix.Errno
	if errors.As(err, &e) {
		return e.Error()
	}
	return err.Error()
}

func (m machine) fileSystem() []Finding {
	dir := m.stateDir
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	f, err := os.CreateTemp(dir, ".sluice-doctor-*")
	if err != nil {
		return []Finding{{What: "state directory", State: bad, Saw: dir + " cannot be written: " + errno(err), Advice: "choose another with state_dir, or create it for the daemon's user"}}
	}
	defer func() {
		f.Close()
		_ = os.Remove(f.Name()) // a left-over file is empty and hidden
	}()
	fs := []Finding{{What: "state directory", State: good, Saw: dir + " can be written"}}
	punch := Finding{What: "hole punching", State: good, Saw: "supported below " + dir}
	err = errors.Join(f.Truncate(1<<20), unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<16))
	if err != nil {
		punch.State, punch.Saw, punch.Advice = note, "not supported below "+dir, "UNMAP will not give space back; ext4, xfs, btrfs and tmpfs can"
	}
	free := Finding{What: "free space", State: good}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil {
		n := int64(st.Bavail) * st.Bsize
		free.Saw = ui.Bytes(n)
		if n < 1<<30 {
			free.State, free.Advice = note, "volumes are sparse: when the disk is full, writes fail with SPACE ALLOCATION FAILED"
		}
		fs = append(fs, punch, free)
	}
	return fs
}

func (m machine) ports() []Finding {
	var fs []Finding
	for _, p := range []struct{ addr, what string }{{"127.0.0.1:3260", "iSCSI and iSER"}, {"127.0.0.1:2049", "NFS over TCP"}, {"127.0.0.1:20049", "NFS over RDMA"}} {
		f := Finding{What: "port " + p.addr, State: good, Saw: "free (" + p.what + ")"}
		if err := m.listen(p.addr); err != nil {
			f.State, f.Saw = note, fmt.Sprintf("taken (%s): %s", p.what, errno(err))
			f.Advice = "fine if it is sluiced; else see who has it with ss -ltnp, and choose another port in the configuration"
		}
		fs = append(fs, f)
	}
	return fs
}
