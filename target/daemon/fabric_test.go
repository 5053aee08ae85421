package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// The form of older files means what it meant: software iWARP, and nothing else. A list is what it says, and a file that says
// nothing takes adapters where there are any.
func TestFabricIsOneProviderOrAList(t *testing.T) {
	for text, want := range map[string]FabricConfig{
		"":                                       {{Provider: "iwarp", CRC: "on"}, {Provider: "verbs", Exposure: "windows", implied: true}},
		"fabric: {provider: iwarp, crc: \"on\"}": {{Provider: "iwarp", CRC: "on"}},
		"fabric: {crc: peer}":                    {{Provider: "iwarp", CRC: "peer"}},
		"fabric: [{provider: iwarp}, {provider: verbs, devices: [rdma0], exposure: whole-slab}]": {
			{Provider: "iwarp", CRC: "on"}, {Provider: "verbs", Devices: []string{"rdma0"}, Exposure: "whole-slab"}},
		"fabric: [{provider: verbs}]": {{Provider: "verbs", Exposure: "windows"}},
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
	net := transporttest.NewNetwork()
	t.Cleanup(fabric.Replace(fabric.Verbs, func(fabric.Options) (transport.Device, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		if !here.Load() {
			return nil, errors.New("there is no adapter")
		}
		return net.Adapter(transporttest.Adapter{Provider: fabric.Verbs}), nil
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
	far, portal := net.Adapter(transporttest.Adapter{}), d.Portals()[0].Address
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
