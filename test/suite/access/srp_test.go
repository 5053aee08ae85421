package access

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/srp"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// srpHost is a host on SRP, over software iWARP.
type srpHost struct {
	t    *testing.T
	port wire.PortID
	dev  *iwarp.Device
	pool *mem.Pool
}

func newSRPHost(t *testing.T) *srpHost {
	t.Helper()
	h := &srpHost{t: t, port: wire.PortID{15: 7}, dev: iwarp.New(iwarp.Options{}), pool: mem.NewPool(32 << 20)}
	if err := h.pool.OnSlab(h.dev); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(h.dev.Close(), h.pool.Close()); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *srpHost) dial(address, target string, group uint16) (*srpinit.Channel, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	c, err := srpinit.Dial(ctx, h.dev, h.pool, address, srpinit.Request(h.port, wire.PortID(srp.TargetPort(target, group))))
	if err == nil {
		h.t.Cleanup(c.End)
	}
	return c, err
}

// admitted logs in; the unit attention of the login is taken.
func (h *srpHost) admitted(address, target string, group uint16) *srpinit.Channel {
	h.t.Helper()
	c, err := h.dial(address, target, group)
	if err != nil {
		h.t.Fatal(err)
	}
	c.Do(h.t.Context(), srpinit.Command{CDB: make([]byte, 6)})
	h.goesOn(c)
	return c
}

// keptOut fails unless the daemon refuses a login as one to a port that is none for this host.
func (h *srpHost) keptOut(address, target string, group uint16) {
	h.t.Helper()
	_, err := h.dial(address, target, group)
	var r *srpinit.RejectedError
	if !errors.As(err, &r) || r.Reason != wire.RejNoNexus {
		h.t.Errorf("a login to %s over SRP: %v", target, err)
	}
}

// goesOn fails unless a session works; ended unless the target has logged it out.
func (h *srpHost) goesOn(c *srpinit.Channel) {
	h.t.Helper()
	if r := c.Do(h.t.Context(), srpinit.Command{CDB: make([]byte, 6)}); r.Err != nil || r.Status != 0 {
		h.t.Fatalf("TEST UNIT READY over SRP: %v, status %02X, sense % X", r.Err, r.Status, r.Sense)
	}
}

func (h *srpHost) ended(c *srpinit.Channel) {
	h.t.Helper()
	<-c.Done()
	if e := c.Events(); len(e) != 1 || e[0].Op != wire.OpTLogout {
		h.t.Errorf("the session has ended, and the host was told %+v", e)
	}
}

// srpAt is the address that a target is told to be reached at over SRP, and why it is not.
func (s *stand) srpAt(target string) (address, why string) {
	s.t.Helper()
	for _, g := range asks[[]admin.Target](s, "target list") {
		if g.Name == target {
			for _, p := range g.SRP {
				address = p.Address
			}
			return address, g.NotSRP
		}
	}
	s.t.Fatalf("there is no target %s", target)
	return "", ""
}

func (s *stand) srpSessions() (n int) {
	s.t.Helper()
	for _, x := range asks[[]admin.Session](s, "session list") {
		if x.Transport == "SRP" {
			n++
		}
	}
	return n
}

// SRP can ask for no proof. A target that gets auth, by signal or by command, loses its sessions of SRP and lets none in, while others go on; without auth it is
// served again. So it is with the list of initiators.
func TestSRPIsNeverOfferedBesideAuth(t *testing.T) {
	conf := func(more string) string {
		return twoVolumes + `
srp: [{address: "127.0.0.1:0", group: 9}]
targets:
  - name: ` + disks + `
    luns: [{lun: 0, volume: a}]
` + more + `
  - name: ` + others + `
    luns: [{lun: 0, volume: b}]
`
	}
	const auth = "    auth: {secrets_file: secrets}"
	s := prepare(t, conf(""))
	s.write("secrets", "al als-own-secret\n")
	s.start()
	h := newSRPHost(t)
	at, why := s.srpAt(disks)
	if at == "" || why != "" {
		t.Fatalf("served at %q, %q", at, why)
	}
	changes := map[string]func(conf string){
		"SIGHUP": func(conf string) {
			s.write("sluiced.yaml", conf)
			s.hangup()
		},
		"config reload": s.reload,
	}
	beside := h.admitted(at, others, 9)
	for name, change := range changes {
		for _, x := range []struct{ more, why string }{
			{auth, "it has auth, and SRP has no authentication"},
			{"    initiators: [{name: " + alice + "}]", "its initiators name no initiator port of SRP"},
			{auth + "\n    initiators: [{name: " + h.port.Name() + "}]", "it has auth, and SRP has no authentication"},
			{"    initiators: [{name: " + (wire.PortID{15: 8}).Name() + "}]", ""}, // another host's
		} {
			c := h.admitted(at, disks, 9)
			change(conf(x.more))
			h.ended(c)
			h.keptOut(at, disks, 9)
			if _, why := s.srpAt(disks); why != x.why && !strings.HasPrefix(why, x.why+" ") {
				t.Errorf("%s with %q: the reason is %q, want %q", name, x.more, why, x.why)
			}
			if x.why != "" {
				s.refuses("", "target srp "+disks, x.why)
			}
			if n := s.srpSessions(); n != 1 {
				t.Errorf("%s with %q: %d sessions", name, x.more, n)
			}
			if strings.Contains(x.more, "auth") && !strings.Contains(x.more, "initiators") {
				s.admits(login{alice, "al", "als-own-secret"}, disks, 0) // over iSCSI, by a proof
				s.keepsOut(login{name: alice}, disks, "")
			}
			h.goesOn(beside)
			change(conf(""))
		}
		c := h.admitted(at, disks, 9)
		change(conf("    initiators: [{name: " + h.port.Name() + "}]"))
		h.goesOn(c) // it is on the list
		change(conf(""))
		h.goesOn(c)
		c.End()
	}
	// A secret that a command gives counts as auth in a file does.
	s.does("volume create v 1MiB")
	s.does("target create " + third)
	s.does("target map " + third + " 0 v")
	c := h.admitted(at, third, 9)
	s.doesWith("another-long-secret\n", "target secret "+third+" bob")
	h.ended(c)
	h.keptOut(at, third, 9)
}

const third = "iqn.2026-11.org.example:third"

// Addresses of SRP come and go with the configuration. A session outlives the address that it came by, and the group that it came under.
func TestAddressesOfSRPComeAndGo(t *testing.T) {
	conf := func(srp string) string {
		return twoVolumes + srp + "\ntargets: [{name: \"" + disks + "\", luns: [{lun: 0, volume: a}]}]\n"
	}
	s := begin(t, conf(""))
	h := newSRPHost(t)
	if at, why := s.srpAt(disks); at != "" || why != "" {
		t.Errorf("served at %q, %q", at, why)
	}
	for _, change := range []func(string){s.reload, func(conf string) {
		s.write("sluiced.yaml", conf)
		s.hangup()
	}} {
		change(conf(`srp: [{address: "127.0.0.1:0", group: 9}]`))
		at, _ := s.srpAt(disks)
		if at == "" {
			t.Fatal("not served")
		}
		c := h.admitted(at, disks, 9)
		change(conf(`srp: [{address: "127.0.0.1:0", group: 8}]`))
		h.goesOn(c)
		h.keptOut(at, disks, 9)
		d := h.admitted(at, disks, 8) // another target port, and another session
		if n := s.srpSessions(); n != 2 {
			t.Errorf("%d sessions", n)
		}
		change(conf(""))
		h.goesOn(c)
		h.goesOn(d)
		if _, err := h.dial(at, disks, 8); err == nil {
			t.Error("logged in at an address that is closed")
		} else if r := (*srpinit.RejectedError)(nil); errors.As(err, &r) {
			t.Errorf("an address that is closed answers %v", err)
		}
		if at, _ := s.srpAt(disks); at != "" {
			t.Errorf("still told to be at %s", at)
		}
		c.End()
		d.End()
	}
	// What cannot be opened changes nothing.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	s.reload(conf(`srp: [{address: "127.0.0.1:0", group: 9}]`))
	at, _ := s.srpAt(disks)
	c := h.admitted(at, disks, 9)
	s.write("sluiced.yaml", conf(`srp: [{address: "`+l.Addr().String()+`", group: 7}]`))
	s.refuses("", "config reload", "configuration not changed")
	h.goesOn(c)
	h.admitted(at, disks, 9)
}

// A drain lets the writes of SRP hosts that run end, logs the hosts out and ends the daemon. What was acknowledged is in the file, and nothing that was not sent.
func TestADrainWithAnSRPSession(t *testing.T) {
	const size, ring = 4096, 512
	s := begin(t, head+"srp: [{address: \"127.0.0.1:0\", group: 9}]\n")
	s.does("volume create a 8MiB")
	s.does("target create " + disks)
	s.does("target map " + disks + " 0 a")
	h := newSRPHost(t)
	at, _ := s.srpAt(disks)
	c := h.admitted(at, disks, 9)
	sent, acked := make([][]byte, ring), make([]bool, ring)
	done, some := make(chan error, 1), make(chan struct{})
	go func() {
		r := rand.New(rand.NewPCG(1, 2))
		for i := 0; ; i++ {
			k := i % ring
			b := make([]byte, size)
			for j := range b {
				b[j] = byte(r.Uint32())
			}
			cdb := []byte{0x2A, 0, 0, 0, 0, 0, 0, 0, size / 512, 0}
			binary.BigEndian.PutUint32(cdb[2:], uint32(k*size/512))
			was, wasAcked := sent[k], acked[k]
			sent[k], acked[k] = b, false
			res := c.Do(context.Background(), srpinit.Command{CDB: cdb, Out: b, Immediate: i%2 == 0})
			if res.Err != nil {
				if wasAcked { // this one may have landed or not
					sent[k] = append(b, was...)
				}
				done <- nil
				return
			}
			if res.Status != 0 {
				done <- errors.New("a write is refused")
				return
			}
			if acked[k] = true; i == 20 {
				close(some)
			}
		}
	}()
	<-some
	s.does("drain --yes")
	if code := s.wait(); code != 0 {
		t.Errorf("sluiced ended with %d:\n%s", code, s.out.String())
	}
	h.ended(c)
	if err := <-done; err != nil {
		t.Error(err)
	}
	file, err := os.ReadFile(filepath.Join(s.dir, "state", "a.img"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for k, b := range sent {
		got := file[k*size : (k+1)*size]
		switch {
		case acked[k]:
			n++
			if !bytes.Equal(got, b) {
				t.Errorf("block %d is not what was acknowledged", k)
			}
		case b == nil:
			if !bytes.Equal(got, make([]byte, size)) {
				t.Errorf("block %d was never written and has bytes", k)
			}
		case len(b) == size:
			if !bytes.Equal(got, b) && !bytes.Equal(got, make([]byte, size)) {
				t.Errorf("block %d is half written", k)
			}
		case !bytes.Equal(got, b[:size]) && !bytes.Equal(got, b[size:]):
			t.Errorf("block %d is neither the last write nor the one before", k)
		}
	}
	if n < 20 {
		t.Errorf("%d writes were acknowledged", n)
	}
	if _, err := h.dial(at, disks, 9); err == nil {
		t.Error("logged in to a daemon that has ended")
	}
}
