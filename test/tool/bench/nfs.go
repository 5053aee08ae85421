package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nfsEnv marks the process that runs in namespaces of its own, and names the file that it leaves its results in. nfs-ganesha ends when it finds no rpcbind at
// /run/rpcbind.sock and port 111; one that lives only there disturbs no other service, and neither do the ports of NFS.
const nfsEnv = "SLUICE_BENCH_NFS"

// Bars over TCP beside nfs-ganesha, and over RDMA beside raw pread and pwrite.
var (
	tcpWorks = []work{
		{false, 4 << 10, 32, 1.5},
		{true, 4 << 10, 32, 2.5},
		{false, 128 << 10, 16, 1.0},
		{true, 128 << 10, 16, 1.0},
		{false, 1 << 20, 8, 0.9},
		{true, 1 << 20, 8, 0.9},
	}
	rdmaWorks = []work{
		{false, 4 << 10, 32, 0},
		{true, 4 << 10, 32, 0.4},
		{false, 128 << 10, 16, 0.7},
		{true, 128 << 10, 16, 0.75},
		{false, 1 << 20, 8, 0},
		{true, 1 << 20, 8, 0},
	}
)

// benchFiles measures the file service. It needs root, for the namespaces and for nfs-ganesha.
func benchFiles(dir string, o options, report map[string]any) ([]error, error) {
	if os.Getenv(nfsEnv) != "" {
		return benchFilesInside(dir, o, report)
	}
	if os.Geteuid() != 0 {
		return []error{errors.New("NFS is not measured: nfs-ganesha and the namespace that it runs in need root")}, nil
	}
	if err := installPeers(); err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	left := filepath.Join(dir, "nfs.json")
	cmd.Env = append(os.Environ(), nfsEnv+"="+left)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("the part inside: %w", err)
	}
	b, err := os.ReadFile(left)
	if err != nil {
		return nil, err
	}
	return merge(report, b)
}

// merge adds the report of the process inside, and returns the bars that it has missed.
func merge(report map[string]any, b []byte) (missed []error, err error) {
	var inside map[string]json.RawMessage
	if err := json.Unmarshal(b, &inside); err != nil {
		return nil, err
	}
	var said []string
	if err := json.Unmarshal(inside["missed"], &said); err != nil {
		return nil, fmt.Errorf("its missed bars: %w", err)
	}
	for _, s := range said {
		missed = append(missed, errors.New(s))
	}
	delete(inside, "missed")
	for name, v := range inside {
		report[name] = v
	}
	return missed, nil
}

// installPeers gets what the comparison needs from Debian, where it is not there.
func installPeers() error {
	var want []string
	for name, pkg := range map[string]string{"ganesha.nfsd": "nfs-ganesha nfs-ganesha-vfs", "rpcbind": "rpcbind", "gcc": "gcc libc6-dev"} {
		if _, err := exec.LookPath(name); err != nil {
			want = append(want, strings.Fields(pkg)...)
		}
	}
	if _, err := os.Stat("/usr/include/nfsc/libnfs.h"); err != nil {
		want = append(want, "libnfs-dev")
	}
	return install(want)
}

// install gets packages from Debian.
func install(want []string) error {
	if len(want) == 0 {
		return nil
	}
	fmt.Println("installing", strings.Join(want, " "))
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, want...)} {
		cmd := exec.Command("apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// privateMachine gives the namespaces a loopback, an empty /run, and a congestion control that does not pace.
func privateMachine() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount on /run: %w", err)
	}
	// Of all who are measured here: BBR paces by how fast a receiver was once, loopback or not, and its guesses would be
	// most of what is measured. Reno is in every kernel.
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0o644); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

func benchFilesInside(dir string, o options, report map[string]any) (missed []error, err error) {
	if err := privateMachine(); err != nil {
		return nil, err
	}
	load := filepath.Join(dir, "load")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-o", load, "test/tool/bench/libnfs/load.c", "-lnfs").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w\n%s", err, out)
	}
	export := filepath.Join(dir, "export")
	if err := os.Mkdir(export, 0o755); err != nil {
		return nil, err
	}
	for _, n := range []string{"ganesha", "sluice", "raw"} {
		if err := fill(filepath.Join(export, n)); err != nil {
			return nil, err
		}
	}
	g, err := startGanesha(dir, export, load)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	d, err := startFiles(dir, export, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	ours, err := startLoad(load, fmt.Sprintf("nfs://127.0.0.1/bench?nfsport=%d&mountport=%d", d.tcp, d.tcp), "/sluice", d.cmd)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	tcp, err := compare(tcpWorks, g.load, ours, d, o)
	if err != nil {
		return nil, err
	}
	printFiles("NFS over TCP on loopback, one libnfs client for both, a process each", "nfs-ganesha", tcp)

	raw, err := startRaw(filepath.Join(export, "raw"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, raw.close()) }()
	c, err := dialRDMA(d)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	rdma, err := compare(rdmaWorks, raw, c, d, o)
	if err != nil {
		return nil, err
	}
	printFiles("NFS over RDMA (iWARP, no CRC) on loopback, sluiced and this client as two processes", "raw pread", rdma)
	report["nfs_tcp"], report["nfs_rdma"] = tcp, rdma
	for _, err := range judge(tcp) {
		missed = append(missed, fmt.Errorf("NFS over TCP, %w", err))
	}
	for _, err := range judge(rdma) {
		missed = append(missed, fmt.Errorf("NFS over RDMA, %w", err))
	}
	return missed, nil
}

func compare(works []work, theirs, ours runner, d *fileDaemon, o options) ([]*result, error) {
	var l []*result
	for _, w := range works {
		if !strings.Contains(w.String(), o.only) {
			continue
		}
		r := &result{Work: w.String(), Bar: w.bar, work: w}
		if err := sideBySide(r, theirs, ours, o); err != nil {
			return nil, fmt.Errorf("%s: %w", w, err)
		}
		if o.profile != "" {
			if err := d.profile(fmt.Sprintf("%T", ours), ours, w, o.profile); err != nil {
				return nil, err
			}
		}
		l = append(l, r)
	}
	return l, nil
}

func printFiles(title, peer string, results []*result) {
	fmt.Println(title)
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "work\t%s\tSluice\tratio\tbar\tCPU us/call %s\tSluice\n", peer, peer)
	for _, r := range results {
		bar := "-"
		if r.Bar > 0 {
			bar = fmt.Sprintf("%.2f", r.Bar)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%s\t%.1f\t%.1f\n", r.Work, show(r.Raw, r.work), show(r.Sluice, r.work), r.Ratio, bar, r.RawCPU, r.SluiceCPU)
	}
	if err := t.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// ganesha is nfs-ganesha as its package ships it, told one export, with the rpcbind it asks for and a client on it.
type ganesha struct {
	rpcbind, cmd *exec.Cmd
	load         *libnfs
}

const ganeshaPort = 22049

func startGanesha(dir, export, load string) (*ganesha, error) {
	conf := filepath.Join(dir, "ganesha.conf")
	text := fmt.Sprintf(`NFS_CORE_PARAM { Protocols = 3; NFS_Port = %d; MNT_Port = %d; Enable_NLM = false; Enable_RQUOTA = false; }
EXPORT { Export_Id = 1; Path = %s; Pseudo = /bench; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 3; Transports = TCP;
  FSAL { Name = VFS; } }
LOG { Default_Log_Level = EVENT; }
`, ganeshaPort, ganeshaPort+1, export)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	log := filepath.Join(dir, "ganesha.log")
	g := &ganesha{rpcbind: child("rpcbind", "-w", "-f"), cmd: child("ganesha.nfsd", "-F", "-f", conf, "-L", log, "-p", filepath.Join(dir, "ganesha.pid"))}
	for _, d := range []string{"/run/rpcbind", "/run/ganesha"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if err := g.rpcbind.Start(); err != nil {
		return nil, err
	}
	if err := waitFor("unix", "/run/rpcbind.sock"); err != nil {
		return nil, errors.Join(err, stop(g.rpcbind))
	}
	if err := g.cmd.Start(); err != nil {
		return nil, errors.Join(err, stop(g.rpcbind))
	}
	err := waitFor("tcp", fmt.Sprintf("127.0.0.1:%d", ganeshaPort+1))
	if err == nil {
		g.load, err = startLoad(load, fmt.Sprintf("nfs://127.0.0.1%s?nfsport=%d&mountport=%d", export, ganeshaPort, ganeshaPort+1), "/ganesha", g.cmd)
	}
	if err != nil {
		said, _ := os.ReadFile(log) // what it said is a help, not a must
		return nil, errors.Join(fmt.Errorf("nfs-ganesha: %w; it said:\n%s", err, said), g.close())
	}
	return g, nil
}

func (g *ganesha) close() error {
	var err error
	if g.load != nil {
		err = g.load.close()
	}
	return errors.Join(err, kill(g.cmd), stop(g.rpcbind))
}

// child is a process that does not outlive this one.
func child(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}

func stop(cmd *exec.Cmd) error {
	err := cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait() // says only by what it was ended
	return err
}

// kill is for those that take their time.
func kill(cmd *exec.Cmd) error {
	err := cmd.Process.Kill()
	_ = cmd.Wait()
	return err
}

// waitFor waits until the address is listened at.
func waitFor(network, addr string) error {
	deadline := time.Now().Add(60 * time.Second)
	for {
		c, err := net.Dial(network, addr)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("nobody listens at %s: %w", addr, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
