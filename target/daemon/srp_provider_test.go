package daemon

import (
	"strings"
	"testing"
)

// Where no provider is open a target says why SRP does not reach it, after what its own configuration says; with one it has a port.
func TestSRPSaysThatThereIsNoProvider(t *testing.T) {
	d, _ := running(t, fileConfig+"srp: [{address: \"127.0.0.1:0\", group: 9}]\n")
	d.mu.Lock()
	defer d.mu.Unlock()
	cfg := d.cfg.Targets[0]
	if ports, why := d.srpPortsLocked(cfg, true); len(ports) != 1 || why != "" {
		t.Errorf("%v, %q", ports, why)
	}
	if ports, why := d.srpPortsLocked(cfg, false); len(ports) != 0 || !strings.Contains(why, "no RDMA provider") {
		t.Errorf("%v, %q", ports, why)
	}
	cfg.Auth = &AuthConfig{}
	if ports, why := d.srpPortsLocked(cfg, false); len(ports) != 0 || !strings.Contains(why, "it has auth") {
		t.Errorf("%v, %q", ports, why)
	}
}
