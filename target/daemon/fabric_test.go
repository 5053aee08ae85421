package daemon

import (
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

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

// Adapters that are configured and missing take nothing down, and serve when they are there; a listener that ends is made again.
func TestAdaptersThatAreMissingTakeNothingDownAndServeWhenTheyCome(t *testing.T) {
	was := adapterRetry
	adapterRetry = 5 * time.Millisecond
	defer func() { adapterRetry = was }()
	var here atomic.Bool
	asked := make(chan struct{}, 1000)
	net := transporttest.NewNetwork()
	defer fabric.Replace(fabric.Verbs, func(fabric.Options) (transport.Device, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		if !here.Load() {
			return nil, errors.New("there is no adapter")
		}
		return net.Adapter(transporttest.Adapter{Provider: fabric.Verbs}), nil
	})()
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
