package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// The form of older files means what it meant: software iWARP, and nothing else. A list is what it says, and a file that says
// nothing takes adapters where there are any.
func TestFabricIsOneProviderOrAList(t *testing.T) {
	for text, want := range map[string]FabricConfig{
		"":                                       {{Provider: "iwarp", CRC: "on"}, {Provider: "verbs", Exposure: "windows", implied: true}, {Provider: "shm", implied: true}},
		"fabric: {provider: iwarp, crc: \"on\"}": {{Provider: "iwarp", CRC: "on"}},
		"fabric: {crc: peer}":                    {{Provider: "iwarp", CRC: "peer"}},
		"fabric: [{provider: iwarp}, {provider: verbs, devices: [rdma0], exposure: whole-slab}]": {
			{Provider: "iwarp", CRC: "on"}, {Provider: "verbs", Devices: []string{"rdma0"}, Exposure: "whole-slab"}},
		"fabric: [{provider: verbs}]":                    {{Provider: "verbs", Exposure: "windows"}},
		"fabric: [{provider: verbs, ack_timeout: 60ms}]": {{Provider: "verbs", Exposure: "windows", AckTimeout: Duration(60 * time.Millisecond)}},
	} {
		c, err := ParseConfig("/etc/sluice/sluiced.yaml", []byte(text+"\nlog: {level: info}\n"))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if !reflect.DeepEqual(c.Fabric, want) {
			t.Errorf("%q is %+v, want %+v", text, c.Fabric, want)
		}
	}
}

// retryEvery shortens the daemon's patience until the test's daemon has ended.
func retryEvery(t *testing.T, d time.Duration) {
	was := adapterRetry
	adapterRetry = d
	t.Cleanup(func() { adapterRetry = was })
}

// Adapters that are configured and missing take nothing down, and serve when they are there; a listener that ends is made again.
func TestAdaptersThatAreMissingTakeNothingDownAndServeWhenTheyCome(t *testing.T) {
	retryEvery(t, 5*time.Millisecond)
	var here atomic.Bool
	asked := make(chan struct{}, 1000)
	fab := transporttest.NewNetwork()
	t.Cleanup(fabric.Replace(fabric.Verbs, func(fabric.Options) (transport.Device, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		if !here.Load() {
			return nil, errors.New("there is no adapter")
		}
		return fab.Adapter(transporttest.Adapter{Provider: fabric.Verbs}), nil
	}))
	d, _ := running(t, fileConfig+"fabric: [{provider: iwarp}, {provider: verbs}]\n")
	for range 3 {
		<-asked
	}
	if len(d.devices()) != 1 || len(d.Portals()) != 1 {
		t.Fatalf("%d devices, portals %v", len(d.devices()), d.Portals())
	}
	here.Store(true)
	// When its address is taken on the fabric the adapters serve it.
	far, portal := fab.Adapter(transporttest.Adapter{}), d.Portals()[0].Address
	defer func() { _ = far.Close() }()
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // a listener has no event
		l, err := far.Listen(t.Context(), portal)
		if err != nil {
			break
		}
		_ = l.Close()
		if time.Now().After(limit) {
			t.Fatal("the adapters do not serve the portal")
		}
	}
	if len(d.devices()) != 2 {
		t.Errorf("%d devices", len(d.devices()))
	}
}

// A machine whose only adapters are left alone for what they would expose is served by software iWARP, and the log says why and what
// to write, once.
func TestADaemonWhoseOnlyAdaptersAreLeftAloneServesEverythingElse(t *testing.T) {
	retryEvery(t, time.Millisecond)
	asked := make(chan fabric.Options, 1000)
	t.Cleanup(fabric.Replace(fabric.Verbs, func(o fabric.Options) (transport.Device, error) {
		select {
		case asked <- o:
		default:
		}
		return nil, errors.New("the adapter is not used; set exposure to whole-slab")
	}))
	core, lines := observer.New(zap.DebugLevel)
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte(fileConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serveLogged(t, file, zap.New(core))
	t.Cleanup(stop)
	for range 3 {
		if o := <-asked; o.Exposure != "windows" {
			t.Errorf("asked for the exposure %q", o.Exposure)
		}
	}
	if err := d.Ready(); err != nil || len(d.Portals()) != 1 || len(d.devices()) != 1 {
		t.Errorf("%v, %d devices, portals %v", err, len(d.devices()), d.Portals())
	}
	if l := lines.FilterMessageSnippet("not used").All(); len(l) != 1 || !strings.Contains(l[0].ContextMap()["error"].(string), "whole-slab") {
		t.Errorf("said %v", l)
	}
	if l := lines.FilterMessageSnippet("RDMA adapters serve").All(); len(l) != 0 {
		t.Errorf("said %v", l)
	}
}

// An adapter that is there and cannot be used when the daemon starts, for rdma_ucm is loaded a moment later, serves when it can; until then the
// log has said why, once.
func TestAdaptersThatCannotBeUsedAtStartServeWhenTheyCan(t *testing.T) {
	retryEvery(t, 5*time.Millisecond)
	why := errors.New("the kernel has no RDMA connection manager: modprobe rdma_ucm")
	here := adaptersHere
	adaptersHere = func() (bool, error) { return false, why }
	t.Cleanup(func() { adaptersHere = here })
	var loaded atomic.Bool
	asked := make(chan struct{}, 1000)
	fab := transporttest.NewNetwork()
	t.Cleanup(fabric.Replace(fabric.Verbs, func(fabric.Options) (transport.Device, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		if !loaded.Load() {
			return nil, why
		}
		return fab.Adapter(transporttest.Adapter{Provider: fabric.Verbs}), nil
	}))
	core, lines := observer.New(zap.InfoLevel)
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte(fileConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serveLogged(t, file, zap.New(core))
	t.Cleanup(stop)
	for range 3 {
		select {
		case <-asked:
		case <-time.After(30 * time.Second):
			t.Fatal("the adapters are not looked for again")
		}
	}
	if l := lines.FilterMessageSnippet("not used").All(); len(l) != 1 || l[0].Level != zap.WarnLevel || !strings.Contains(l[0].ContextMap()["error"].(string), "rdma_ucm") {
		t.Errorf("said %v", l)
	}
	loaded.Store(true)
	for limit := time.Now().Add(30 * time.Second); lines.FilterMessage("RDMA adapters listen").Len() == 0; time.Sleep(time.Millisecond) { // a log has no event
		if time.Now().After(limit) {
			t.Fatal("the adapters do not serve")
		}
	}
	if len(d.devices()) != 2 {
		t.Errorf("%d devices", len(d.devices()))
	}
}

// An address that adapters cannot listen at is told to who asks the daemon, with the reason, for as long as that is so.
func TestAnAddressThatAdaptersCannotHaveIsTold(t *testing.T) {
	for conf, byDefault := range map[string]bool{"": true, "fabric: [{provider: iwarp}, {provider: verbs}]\n": false} {
		retryEvery(t, 5*time.Millisecond)
		here := adaptersHere
		adaptersHere = func() (bool, error) { return false, nil }
		t.Cleanup(func() { adaptersHere = here })
		var plugged atomic.Bool
		fab := transporttest.NewNetwork()
		restore := fabric.Replace(fabric.Verbs, func(fabric.Options) (transport.Device, error) {
			if !plugged.Load() {
				return nil, errors.New("there is no adapter")
			}
			return fab.Adapter(transporttest.Adapter{Provider: fabric.Verbs}), nil
		})
		file := filepath.Join(t.TempDir(), "sluiced.yaml")
		if err := os.WriteFile(file, []byte(fileConfig+"srp: [{address: \"127.0.0.1:0\", group: 9}]\n"+conf), 0o600); err != nil {
			t.Fatal(err)
		}
		d, stop := serveLogged(t, file, zap.NewNop())
		if l := d.Info().Unbound; len(l) != 0 {
			t.Errorf("before there are adapters: %+v", l)
		}
		far, portal := fab.Adapter(transporttest.Adapter{}), d.Targets()[0].SRP[0].Address
		l, err := far.Listen(t.Context(), portal)
		if err != nil {
			t.Fatal(err)
		}
		plugged.Store(true)
		told := func(n int) (l []admin.Unbound) {
			t.Helper()
			for limit := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // a listener has no event
				if l = d.Info().Unbound; len(l) == n {
					return l
				}
				if time.Now().After(limit) {
					t.Fatalf("told %+v, want %d", l, n)
				}
			}
		}
		if u := told(1)[0]; u.Provider != "verbs" || u.Address != portal || u.Problem == "" || u.Default != byDefault {
			t.Errorf("told %+v", u)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		told(0) // it serves
		stop()
		_ = far.Close()
		restore()
	}
}

// placed is a device that says where its adapters are.
type placed struct {
	transport.Device
	at func(addr string) []transport.Place
}

func (p *placed) Places(_ context.Context, addr string) ([]transport.Place, error) {
	return p.at(addr), nil
}

// An iWARP adapter would take the portal's port from TCP: it does not listen there, the log says so once, and others do. With a port of
// its own it serves.
func TestAnIWARPAdapterServesByAPortOfItsOwnOrNotAtAll(t *testing.T) {
	for conf, own := range map[string]string{"{provider: verbs}": "", "{provider: verbs, iser_port: 3261}": "3261"} {
		retryEvery(t, 5*time.Millisecond)
		near := transporttest.NewNetwork()
		restore := fabric.Replace(fabric.Verbs, func(fabric.Options) (transport.Device, error) {
			return &placed{near.Adapter(transporttest.Adapter{Provider: fabric.Verbs}), func(addr string) []transport.Place {
				_, port, _ := net.SplitHostPort(addr)
				return []transport.Place{{Address: "10.0.0.1:" + port, Device: "mlx5_0"}, {Address: "10.0.0.2:" + port, Device: "cxgb4_0", SharesTCP: true}}
			}}, nil
		})
		t.Cleanup(restore)
		core, lines := observer.New(zap.DebugLevel)
		file := filepath.Join(t.TempDir(), "sluiced.yaml")
		if err := os.WriteFile(file, []byte(fileConfig+"fabric: [{provider: iwarp}, "+conf+"]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		d, stop := serveLogged(t, file, zap.New(core))
		portal := d.Portals()[0].Address
		_, port, _ := net.SplitHostPort(portal)
		want := []string{"10.0.0.1:" + port}
		if own != "" {
			want = []string{"10.0.0.1:" + own, "10.0.0.2:" + own}
		}
		var at []string
		for limit := time.Now().Add(30 * time.Second); len(at) < len(want) && time.Now().Before(limit); time.Sleep(time.Millisecond) { // a log has no event
			at = nil
			for _, l := range lines.FilterMessage("RDMA adapters listen").All() {
				at = append(at, l.ContextMap()["address"].(string))
			}
		}
		slices.Sort(at)
		if !slices.Equal(at, want) {
			t.Errorf("%s: adapters listen at %v, want %v", conf, at, want)
		}
		told := lines.FilterMessageSnippet("do not serve").All()
		if own == "" && (len(told) != 1 || told[0].ContextMap()["device"] != "cxgb4_0" || !strings.Contains(told[0].ContextMap()["error"].(string), "iser_port")) || own != "" && len(told) != 0 {
			t.Errorf("%s: said %v", conf, told)
		}
		stop()
		restore()
	}
}

// trying says which places are tried.
type trying struct {
	*placed
	tried func(addr string)
}

func (l *trying) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l.tried(addr)
	if strings.HasPrefix(addr, "10.0.0.9:") {
		return nil, errors.New("no adapter has the address")
	}
	return l.placed.Listen(ctx, addr)
}

// An address that went is not tried for ever: an iWARP adapter may have it when it comes again, or another machine.
func TestAnAddressThatWentIsNotListenedAtAnyMore(t *testing.T) {
	retryEvery(t, time.Millisecond)
	near := transporttest.NewNetwork()
	var moved atomic.Bool
	var tries, asked atomic.Int64 // tries of the address that went; lists of places since
	first := make(chan struct{}, 1)
	t.Cleanup(fabric.Replace(fabric.Verbs, func(fabric.Options) (transport.Device, error) {
		return &trying{&placed{near.Adapter(transporttest.Adapter{Provider: fabric.Verbs}), func(addr string) []transport.Place {
			_, port, _ := net.SplitHostPort(addr)
			if !moved.Load() {
				return []transport.Place{{Address: "10.0.0.9:" + port, Device: "mlx5_0"}}
			}
			asked.Add(1)
			return []transport.Place{{Address: "10.0.0.1:" + port, Device: "mlx5_0"}}
		}}, func(addr string) {
			if strings.HasPrefix(addr, "10.0.0.9:") {
				tries.Add(1)
				asked.Store(0)
				select {
				case first <- struct{}{}:
				default:
				}
			}
		}}, nil
	}))
	_, _ = running(t, fileConfig+"fabric: [{provider: iwarp}, {provider: verbs}]\n")
	<-first
	moved.Store(true)
	// As often as it is looked where the adapters are, it is not tried.
	for limit := time.Now().Add(time.Minute); asked.Load() < 100; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("tried %d times", tries.Load())
		}
	}
}

// Several entries of adapters are to name different ones.
func TestEntriesOfAdaptersNameDifferentOnes(t *testing.T) {
	for text, ok := range map[string]bool{
		"[{provider: verbs, devices: [a]}, {provider: verbs, devices: [b], exposure: whole-slab, iser_port: 3261, nfs_port: 20050}]": true,
		"[{provider: verbs, devices: [a]}, {provider: verbs}]":                                                                       false,
		"[{provider: verbs, devices: [a, b]}, {provider: verbs, devices: [b]}]":                                                      false,
		"[{provider: iwarp}, {provider: iwarp}]":                                                                                     false,
		"[{provider: iwarp, iser_port: 3261}]":                                                                                       false,
		"[{provider: verbs, iser_port: 70000}]":                                                                                      false,
		"[{provider: verbs, ack_timeout: 3h}]":                                                                                       false,
		"[{provider: verbs, ack_timeout: 60}]":                                                                                       false,
		"[{provider: verbs, ack_timeout: -1s}]":                                                                                      false,
		"[{provider: iwarp, ack_timeout: 60ms}]":                                                                                     false,
	} {
		if _, err := ParseConfig("/etc/sluice/sluiced.yaml", []byte("fabric: "+text+"\n")); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A port of adapters' own is one that nothing else of the configuration has: an iWARP adapter would take it from TCP, and of two
// listeners at one place the clients of both would find one.
func TestAPortOfAdaptersOwnIsOneThatNothingElseHas(t *testing.T) {
	const entry = "{provider: verbs, devices: [cxgb4_0], exposure: whole-slab, "
	const exports = "exports: [{path: /srv/data, name: /data}]\nfiles: {tcp: \"0.0.0.0:2049\", rdma: \"0.0.0.0:20049\"}\n"
	for _, c := range []struct{ fabric, rest, says string }{
		{entry + "iser_port: 3261}", "portals: [{address: \"0.0.0.0:3260\"}]\n" + exports, ""},
		{entry + "iser_port: 3261}", "portals: [{address: \"10.0.0.1:3260\"}, {address: \"10.0.0.2:3260\"}, {address: \"[fd00::1]:3260\"}]\n", ""},
		{entry + "iser_port: 3260}", "portals: [{address: \"0.0.0.0:3260\"}]\n", ""}, // its own, which TCP has: told of when it is served
		{entry + "iser_port: 3261, nfs_port: 20050}", "portals: [{address: \"0.0.0.0:0\"}]\n" + exports, ""},
		{entry + "nfs_port: 2049}", "portals: [{address: \"0.0.0.0:3260\"}]\n", ""}, // no files
		{entry + "iser_port: 3261}", "portals: [{address: \"0.0.0.0:3260\"}, {address: \"0.0.0.0:3261\", group: 2}]\n", "iser_port 3261"},
		{entry + "iser_port: 3261}", "portals: [{address: \"0.0.0.0:3260\"}, {address: \"10.0.0.1:3261\", group: 2}]\n", "10.0.0.1:3261"},
		{entry + "iser_port: 3261}", "portals: [{address: \":3260\"}]\nadmin: {listen: \"10.0.0.1:3261\", cert: a, key: b, client_ca: c}\n", "admin.listen"},
		{entry + "nfs_port: 2049}", exports, "files.tcp 0.0.0.0:2049"},
		{entry + "nfs_port: 3260}", "portals: [{address: \"10.0.0.1:3260\"}]\n" + exports, "the portal 10.0.0.1:3260"},
		{entry + "iser_port: 2049}", "portals: [{address: \"0.0.0.0:3260\"}]\n" + exports, "files.tcp"},
		{entry + "iser_port: 20049}", "portals: [{address: \"10.0.0.1:3260\"}]\n" + exports, "files.rdma"},
		{entry + "iser_port: 3300, nfs_port: 3300}", "portals: [{address: \"0.0.0.0:3260\"}]\n" + exports, "3300"},
		{entry + "iser_port: 3261}", "portals: [{address: \"10.0.0.1:3260\"}, {address: \"10.0.0.1:3270\", group: 2}]\n", "one portal of a host"},
		{entry + "iser_port: 3261}", "portals: [{address: \"0.0.0.0:0\"}, {address: \"10.0.0.1:3270\"}]\n", "one portal of a host"},
	} {
		_, err := ParseConfig("/etc/sluice/sluiced.yaml", []byte("fabric: [{provider: iwarp}, "+c.fabric+"]\n"+c.rest))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s\n%s: %v, want %q", c.fabric, c.rest, err, c.says)
		}
	}
}
