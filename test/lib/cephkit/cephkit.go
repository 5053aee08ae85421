// Package cephkit makes a whole Ceph cluster for tests, of Debian's programs in a directory on loopback: one monitor, one manager, and OSDs on
// sparse files (BlueStore), with cephx. It takes about 12 s and 0.5 GiB of memory.
//
// A cluster of the test's own is Start's. Tests of a package that can share one have a Lazy.
package cephkit

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/port"
)

// Patience bounds each step of making a cluster, and each command.
const Patience = 90 * time.Second

// Options describe a cluster. The zero value is one OSD on loopback.
type Options struct {
	OSDs    int    // 1 by default; pools have two copies from two OSDs on
	Size    int64  // of each OSD's sparse file; 6 GiB by default
	Address string // of this machine, or of the network namespace that the caller is in; 127.0.0.1 by default
	Dir     string // where to make it; a directory of its own by default, removed at the end
	Global  string // lines for the [global] section of its ceph.conf
}

// Cluster is a running cluster. Its pool is "rbd".
type Cluster struct {
	Dir  string
	Conf string // its ceph.conf, which has the keys of client.admin

	o       Options
	env     []string
	mu      sync.Mutex
	daemons map[string]*daemon
}

// daemon is a process of the cluster.
type daemon struct {
	args  []string
	cmd   *exec.Cmd
	ended chan struct{}
	log   string
}

// programs are what a cluster needs, and the Debian packages that have them.
var programs = [][2]string{
	{"ceph-mon", "ceph-mon"}, {"monmaptool", "ceph-base"}, {"ceph-mgr", "ceph-mgr"}, {"ceph-osd", "ceph-osd"}, {"ceph", "ceph-common"}, {"rbd", "ceph-common"},
}

// Need skips a test where Ceph's programs are not installed, or this is not root: the daemons want directories of root's.
func Need(t testing.TB) {
	t.Helper()
	for _, p := range programs {
		need.Tool(t, p[0], p[1])
	}
	need.Root(t)
}

// Start makes a cluster that ends with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	Need(t)
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Lazy is a cluster that the first test that wants it makes. The zero value is none; TestMain calls Stop behind the tests.
type Lazy struct {
	O    Options
	once sync.Once
	c    *Cluster
	err  error
}

// Get returns the cluster.
func (l *Lazy) Get(t testing.TB) *Cluster {
	t.Helper()
	Need(t)
	l.once.Do(func() { l.c, l.err = New(l.O) })
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.c
}

// Stop ends the cluster, if there is one.
func (l *Lazy) Stop() error {
	l.once.Do(func() {})
	if l.c == nil {
		return nil
	}
	return l.c.Stop()
}

// New makes a cluster outside a test. Where that fails nothing is left.
func New(o Options) (*Cluster, error) {
	if o.OSDs == 0 {
		o.OSDs = 1
	}
	if o.Size == 0 {
		o.Size = 6 << 30
	}
	if o.Address == "" {
		o.Address = "127.0.0.1"
	}
	c := &Cluster{o: o, Dir: o.Dir, daemons: map[string]*daemon{}}
	if c.Dir == "" {
		var err error
		if c.Dir, err = os.MkdirTemp("", "sluice-ceph-"); err != nil {
			return nil, err
		}
	}
	c.Conf = filepath.Join(c.Dir, "ceph.conf")
	c.env = append(os.Environ(), "CEPH_CONF="+c.Conf, "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err := c.begin(); err != nil {
		err = fmt.Errorf("a cluster could not be made: %w\n%s", err, c.Logs())
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) path(l ...string) string { return filepath.Join(append([]string{c.Dir}, l...)...) }

func (c *Cluster) begin() error {
	for _, d := range []string{"mon", "mgr", "run", "log"} {
		if err := os.MkdirAll(c.path(d), 0o700); err != nil {
			return err
		}
	}
	n, err := port.Free()
	if err != nil {
		return err
	}
	fsid := uuid()
	conf, mon := c.config(fsid, n)
	if err := errors.Join(os.WriteFile(c.Conf, []byte(conf), 0o600), os.WriteFile(c.path("keyring"), []byte(c.keyring()), 0o600)); err != nil {
		return err
	}
	if err := c.exec("monmaptool", "--create", "--fsid", fsid, "--addv", "a", mon, c.path("monmap")); err != nil {
		return err
	}
	if err := c.exec("ceph-mon", "-i", "a", "--mkfs", "--monmap", c.path("monmap"), "--keyring", c.path("keyring")); err != nil {
		return err
	}
	if err := c.start("mon.a", "ceph-mon", "-i", "a"); err != nil {
		return err
	}
	if err := c.start("mgr.x", "ceph-mgr", "-i", "x"); err != nil {
		return err
	}
	for i := range c.o.OSDs {
		if err := c.newOSD(i); err != nil {
			return err
		}
	}
	for i := range c.o.OSDs {
		if err := c.StartOSD(i); err != nil {
			return err
		}
	}
	if err := c.WaitUp(c.o.OSDs); err != nil {
		return err
	}
	size := fmt.Sprint(min(c.o.OSDs, 2))
	for _, cmd := range [][]string{
		{"ceph", "osd", "pool", "create", "rbd", "16", "16", "replicated", "--size", size}, {"ceph", "osd", "pool", "set", "rbd", "min_size", "1"},
		{"rbd", "pool", "init", "rbd"},
	} {
		if err := c.exec(cmd[0], cmd[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) config(fsid string, port int) (text, mon string) {
	mon = fmt.Sprintf("[v2:%s:%d]", c.o.Address, port)
	return fmt.Sprintf(`[global]
fsid = %[1]s
mon_host = %[2]s
public_addr = %[3]s
ms_bind_ipv6 = false
ms_bind_msgr1 = false
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
keyring = %[4]s/keyring
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_warn_on_pool_no_redundancy = false
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
run_dir = %[4]s/run
log_file = %[4]s/log/$name.log
admin_socket = %[4]s/run/$name.$pid.asok
%[6]s
[client]
log_file =
admin_socket =
[mon]
mon_data = %[4]s/mon
mon_data_avail_crit = 1
mon_data_avail_warn = 2
mon_initial_members = a
[mgr]
mgr_data = %[4]s/mgr
[osd]
osd_data = %[4]s/osd.$id
osd_memory_target = 939524096
osd_objectstore = bluestore
bluestore_block_size = %[5]d
bluestore_block_create = true
osd_crush_update_on_start = false
osd_scrub_load_threshold = 2000
osd_heartbeat_grace = 6
`, fsid, mon, c.o.Address, c.Dir, c.o.Size, c.o.Global), mon
}

// keyring has the keys of all of the cluster's own. The monitor takes them over when it is made.
func (c *Cluster) keyring() string {
	var b strings.Builder
	entity := func(name string, caps ...string) {
		fmt.Fprintf(&b, "[%s]\n\tkey = %s\n", name, secret())
		for i := 0; i < len(caps); i += 2 {
			fmt.Fprintf(&b, "\tcaps %s = %q\n", caps[i], caps[i+1])
		}
	}
	entity("mon.", "mon", "allow *")
	entity("client.admin", "mon", "allow *", "osd", "allow *", "mgr", "allow *")
	entity("mgr.x", "mon", "allow profile mgr", "osd", "allow *")
	for i := range c.o.OSDs {
		entity(fmt.Sprintf("osd.%d", i), "mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *")
	}
	return b.String()
}

// secret is a new key of cephx: type 1 (AES), the time of its making, and 16 bytes.
func secret() string {
	b := make([]byte, 28)
	now := time.Now()
	binary.LittleEndian.PutUint16(b, 1)
	binary.LittleEndian.PutUint32(b[2:], uint32(now.Unix()))
	binary.LittleEndian.PutUint32(b[6:], uint32(now.Nanosecond()))
	binary.LittleEndian.PutUint16(b[10:], 16)
	_, _ = rand.Read(b[12:]) // it does not fail
	return base64.StdEncoding.EncodeToString(b)
}

func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

func (c *Cluster) newOSD(i int) error {
	id := uuid()
	if err := os.MkdirAll(c.path(fmt.Sprintf("osd.%d", i)), 0o700); err != nil {
		return err
	}
	name := fmt.Sprintf("osd.%d", i)
	if err := c.exec("ceph", "osd", "new", id, fmt.Sprint(i)); err != nil {
		return err
	}
	if err := c.exec("ceph", "osd", "crush", "add", name, "1", "root=default"); err != nil {
		return err
	}
	return c.exec("ceph-osd", "-i", fmt.Sprint(i), "--mkfs", "--osd-uuid", id, "--no-mon-config")
}

// command is a program of Ceph's that is not left alone for ever: a client of a cluster that is not healthy waits.
func (c *Cluster) command(name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.tool(name), append([]string{"-c", c.Conf}, args...)...)
	if name == "monmaptool" {
		cmd.Args = append(cmd.Args[:1], args...)
	}
	cmd.Env = c.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.Bytes(), nil
}

func (c *Cluster) tool(name string) string {
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/sbin", "/usr/local/bin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return name
}

func (c *Cluster) exec(name string, args ...string) error {
	_, err := c.command(name, args...)
	return err
}

// Run runs a program of Ceph's as client.admin ("ceph", "rbd", "rados") and returns what it prints.
func (c *Cluster) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := c.command(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// User makes a client with capabilities ("mon", "profile rbd", ...) and returns the path of its keyring.
func (c *Cluster) User(t testing.TB, name string, caps ...string) string {
	t.Helper()
	path := c.path(name + ".keyring")
	out := c.Run(t, "ceph", append([]string{"auth", "get-or-create", "client." + name}, caps...)...)
	if err := os.WriteFile(path, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (c *Cluster) start(name, program string, args ...string) error {
	d := &daemon{args: append([]string{c.tool(program), "-c", c.Conf, "-f"}, args...), log: c.path("log", name+".out")}
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	d.cmd = exec.Command(d.args[0], d.args[1:]...) //nolint:gosec // a program of Ceph's
	d.cmd.Stdout, d.cmd.Stderr, d.cmd.Env = out, out, c.env
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = d.cmd.Start()
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	d.ended = make(chan struct{})
	go func() {
		_ = d.cmd.Wait() // it is killed in the end
		close(d.ended)
	}()
	c.mu.Lock()
	c.daemons[name] = d
	c.mu.Unlock()
	return nil
}

// StartOSD starts an OSD that does not run.
func (c *Cluster) StartOSD(i int) error {
	return c.start(fmt.Sprintf("osd.%d", i), "ceph-osd", "-i", fmt.Sprint(i))
}

// StartMon starts the monitor again.
func (c *Cluster) StartMon() error { return c.start("mon.a", "ceph-mon", "-i", "a") }

// Signal sends a signal to a daemon: "osd.0", "mon.a", "mgr.x".
func (c *Cluster) Signal(name string, s syscall.Signal) error {
	c.mu.Lock()
	d := c.daemons[name]
	c.mu.Unlock()
	if d == nil {
		return fmt.Errorf("there is no %s", name)
	}
	return d.cmd.Process.Signal(s)
}

// Kill ends a daemon by SIGKILL.
func (c *Cluster) Kill(name string) error {
	err := c.Signal(name, syscall.SIGKILL)
	if err == nil {
		c.mu.Lock()
		d := c.daemons[name]
		delete(c.daemons, name)
		c.mu.Unlock()
		<-d.ended
	}
	return err
}

// WaitUp waits until n OSDs are up, by the monitor's word, and all placement groups of a pool that is there serve.
func (c *Cluster) WaitUp(n int) error {
	for limit := time.Now().Add(Patience); ; time.Sleep(100 * time.Millisecond) { // a state has no event
		var stat struct {
			Up int `json:"num_up_osds"`
		}
		out, err := c.command("ceph", "osd", "stat", "-f", "json")
		if err == nil {
			err = json.Unmarshal(out, &stat)
		}
		if err == nil && stat.Up == n {
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%d of %d OSDs are up: %w", stat.Up, n, err)
		}
	}
}

// Logs is the end of what each daemon has written.
func (c *Cluster) Logs() string {
	files, _ := filepath.Glob(c.path("log", "*")) // the pattern is right
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(f), strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
	return b.String()
}

// Stop ends all of it and removes its directory, unless the caller named one.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	names := make([]string, 0, len(c.daemons))
	for n := range c.daemons {
		names = append(names, n)
	}
	c.mu.Unlock()
	var errs []error
	for _, n := range names {
		if err := c.Kill(n); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
	}
	if c.o.Dir == "" {
		errs = append(errs, os.RemoveAll(c.Dir))
	}
	return errors.Join(errs...)
}
