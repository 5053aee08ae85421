package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
)

// A change below a medium that hangs keeps a stop from nothing: portals close, and other volumes are noted to have ended in order.
func TestAChangeThatHangsDoesNotHoldUpAStop(t *testing.T) {
	defer func(a, b time.Duration) { stopLimit, mediaLimit = a, b }(stopLimit, mediaLimit)
	stopLimit, mediaLimit = 100*time.Millisecond, 100*time.Millisecond
	f := faultfs.Mount(t)
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	conf := strings.Replace(fileConfig, "volumes:\n", fmt.Sprintf("volumes:\n  - {name: slow, path: %s/slow.img, size: 1MiB}\n", f.Dir), 1)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := LoadServing(file, "", "")
	if err != nil {
		t.Fatal(err)
	}
	makeFiles(t, cfg)
	d, err := New(cfg, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	waitReady(t, d)
	portal := d.Portals()[0].Address
	begun, on := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(on) })
	t.Cleanup(release)
	var once sync.Once
	f.Fault(func(c faultfs.Call) syscall.Errno {
		if c.Name == "fsync" && c.File == "slow.img" {
			once.Do(func() { close(begun) })
			<-on
		}
		return 0
	})
	changed := make(chan error, 1)
	go func() {
		_, err := d.ResizeVolume(context.Background(), "slow", admin.ResizeSpec{Size: 2 << 20})
		changed <- err
	}()
	<-begun
	cancel()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("the daemon ends with %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Error("the daemon does not end")
	}
	if c, err := net.Dial("tcp", portal); err == nil {
		_ = c.Close()
		t.Error("a portal is open")
	}
	state := filepath.Join(d.scsiState(), scsi.StateFile(d.volumes["disk"].key))
	clean := func() bool {
		b, err := os.ReadFile(state)
		return err == nil && bytes.Contains(bytes.ReplaceAll(b, []byte(" "), nil), []byte(`"clean":true`))
	}
	for deadline := time.Now().Add(60 * time.Second); !clean(); {
		if time.Now().After(deadline) {
			t.Fatal("it is not noted of a volume that is well that it ended in order")
		}
		time.Sleep(time.Millisecond) // a file has no event
	}
	release()
	if err := <-changed; err == nil {
		t.Error("a change was made by a daemon that had ended")
	}
	d.closing.Wait()
}

// A portal that a change has closed is there again when the change is taken back.
func TestAPortalComesBackWithAChangeThatIsTakenBack(t *testing.T) {
	d, file := running(t, fileConfig)
	// At an address of its own no other program gets the port by chance.
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String() // a free one, which is asked for again and again
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	less, err := ParseConfig(file, []byte(fileConfig))
	if err != nil {
		t.Fatal(err)
	}
	more, err := ParseConfig(file, []byte(strings.Replace(fileConfig, "portals: [", `portals: [{address: "`+address+`"}, `, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Reload(more); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the disk is full")
	for range 20 {
		d.changeMu.Lock()
		_, _, err := d.reloadLocked(less, func() error { return broken })
		d.changeMu.Unlock()
		if !errors.Is(err, broken) || strings.Contains(err.Error(), "taken back") {
			t.Fatalf("the change ends with %v", err)
		}
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
}
