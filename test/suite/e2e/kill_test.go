package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/shm"
)

// asTarget names the environment variable that makes this test binary a target process: the file to serve and the
// address, empty for any port.
const asTarget = "SLUICE_E2E_TARGET"

// targetMain is such a process. It prints its address and serves until it is killed.
func targetMain(path, addr string) error {
	dev, err := file.Open(path, file.Options{Size: diskSize})
	if err != nil {
		return err
	}
	pool := mem.NewPool(64 << 20)
	t, err := scsi.NewTarget(scsi.TargetOptions{Name: iqn, Memory: pool})
	if err != nil {
		return err
	}
	lu, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: dev, Name: "disk", Serial: "killed"})
	if err != nil {
		return err
	}
	if err := t.AddLUN(0, lu); err != nil {
		return err
	}
	srv, err := iscsi.NewServer(iscsi.Options{Memory: pool, Device: iwarp.New(iwarp.Options{})})
	if err != nil {
		return err
	}
	if err := srv.AddTarget(iscsi.Target{Name: iqn, SCSI: t}); err != nil {
		return err
	}
	if strings.HasPrefix(addr, "/") {
		d := shm.New(shm.Options{})
		l, err := d.Listen(context.Background(), addr)
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		return srv.ServeRDMA(context.Background(), d, l, iscsi.Portal{Group: 1})
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return srv.Serve(context.Background(), l, iscsi.Portal{Group: 1})
}

// spawn starts a target process and returns it with its address.
func spawn(t *testing.T, path, addr string) (*exec.Cmd, string) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	for deadline := time.Now().Add(patience); ; {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), asTarget+"="+path+","+addr)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		if err == nil {
			return cmd, line[:len(line)-1]
		}
		_ = cmd.Wait() // the old process' port may not be free at once
		if time.Now().After(deadline) {
			t.Fatalf("the target process does not start: %v", err)
		}
	}
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // "signal: killed" is what it says
}

// A target process is killed by SIGKILL below the writes and started again, several times; no request fails and nothing
// that was acknowledged is lost.
func TestSIGKILL(t *testing.T) {
	for _, scheme := range append([]string{"shared memory"}, schemes...) {
		t.Run(scheme, func(t *testing.T) {
			path, at, i := filepath.Join(t.TempDir(), "disk"), "127.0.0.1:0", (*block.Initiator)(nil)
			if scheme == "shared memory" {
				at, i = filepath.Join(t.TempDir(), "socket"), sharedHost(t, block.Options{})
			} else {
				i = host(t, block.Options{}, iwarp.Options{})
			}
			cmd, addr := spawn(t, path, at)
			defer func() { kill(t, cmd) }()
			where := url(scheme, addr)
			if scheme == "shared memory" {
				where = sharedURL(addr)
			}
			v := open(t, i, where)
			defer func() { must(t, v.Close()) }()
			writers(t, v, 8, 9, 64<<10, func(round int32) {
				if round%3 == 1 {
					kill(t, cmd)
					cmd, _ = spawn(t, path, addr)
				}
			})
			// A target that keeps no note of the machine's start has to say POWER ON, and then one flush tells of it.
			err := v.Flush(t.Context())
			if errors.Is(err, block.ErrPowerLost) {
				err = v.Flush(t.Context())
			}
			must(t, err)
		})
	}
}
