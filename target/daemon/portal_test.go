package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// All of IPv4 and all of IPv6 are two portals with one port: neither takes the other's half.
func TestPortalsOnBothFamilies(t *testing.T) {
	need.IPv6(t)
	var err error
	for range 10 { // the port is free when asked; somebody else may take it before it is used
		l, lerr := net.Listen("tcp", "[::]:0")
		if lerr != nil {
			t.Fatal(lerr)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		file := filepath.Join(t.TempDir(), "sluiced.yaml")
		conf := fmt.Sprintf("state_dir: state\nportals: [{address: \"0.0.0.0:%d\"}, {address: \"[::]:%d\"}]\n", port, port)
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, lerr := LoadConfig(file)
		if lerr != nil {
			t.Fatal(lerr)
		}
		var d *Daemon
		if d, err = New(cfg, zap.NewNop()); err != nil {
			continue
		}
		if got := len(d.portals); got != 2 {
			t.Errorf("%d portals are open, want 2", got)
		}
		if err := d.closeAll(context.Background()); err != nil {
			t.Error(err)
		}
		return
	}
	t.Fatal(err)
}
