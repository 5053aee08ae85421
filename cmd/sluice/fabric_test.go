package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/target/daemon"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// manyFabrics runs a daemon whose machine has an adapter: a twin that promises no more than one does.
func manyFabrics(t *testing.T, conf string) (portal, rdma, dir string, _ *daemon.Daemon, _ *observer.ObservedLogs) {
	t.Helper()
	near := transporttest.NewNetwork()
	t.Cleanup(fabric.Replace(fabric.Verbs, func(fabric.Options) (transport.Device, error) {
		return near.Adapter(transporttest.Adapter{Provider: fabric.Verbs}), nil
	}))
	dir = t.TempDir()
	export := filepath.Join(dir, "export")
	if err := os.Mkdir(export, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "sluiced.yaml")
	text := conf + fmt.Sprintf(`
state_dir: %q
timeouts: {drain: 1s}
portals: [{address: "127.0.0.1:0"}]
files: {tcp: none, rdma: "127.0.0.1:0"}
exports: [{path: %q, name: /data, clients: [{match: 127.0.0.1, squash: none, any_port: true}]}]
volumes: [{name: a, engine: mem, size: 8MiB}]
targets: [{name: %q, luns: [{lun: 0, volume: a}]}]
`, dir, export, testTarget)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := stand.NewDaemon(t, file, zap.DebugLevel)
	portal, rdma = d.Address("portal open", "", ""), d.Address("files open", "", "")
	if strings.Contains(conf, "verbs") || conf == "" {
		for limit := time.Now().Add(30 * time.Second); d.Lines.FilterMessage("RDMA adapters listen").Len() < 2; time.Sleep(time.Millisecond) { // a log has no event
			if time.Now().After(limit) {
				t.Fatal("the daemon does not listen twice by its adapters")
			}
		}
	}
	d.WaitReady()
	return portal, rdma, dir, d.Daemon, d.Lines
}

// scraped is what /metrics answers at the administrative socket.
func scraped(t *testing.T, socket string) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://sluiced/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// One portal takes iSCSI over TCP, iSER over software iWARP and iSER over adapters, and one address NFS over both; the word verbs in a URL
// or behind --provider chooses, and what serves is shown.
func TestOnePortalServesEveryFabric(t *testing.T) {
	portal, rdma, dir, d, _ := manyFabrics(t, "")
	want := make([]byte, 300<<10)
	for i := range want {
		want[i] = byte(rand.Uint32())
	}
	img := filepath.Join(dir, "img")
	if err := os.WriteFile(img, want, 0o600); err != nil {
		t.Fatal(err)
	}
	volume := portal + "/" + testTarget + "/0"
	must(t, nil, "cp", "--quiet", img, "iser://"+volume+"?provider=verbs")
	for i, args := range [][]string{{"iser://" + volume}, {"iscsi://" + volume}, {"--provider", "verbs", "iser://" + volume}, {"iser://" + volume + "?provider=verbs"}} {
		out := filepath.Join(dir, fmt.Sprint("out", i))
		must(t, nil, append(append([]string{"cp", "--quiet"}, args...), out)...)
		if got, err := os.ReadFile(out); err != nil || !bytes.HasPrefix(got, want) {
			t.Errorf("%v: %v, %d bytes", args, err, len(got))
		}
	}
	if out := must(t, nil, "discover", "--provider", "verbs", "iser://"+portal); strings.Count(out, portal) != 1 {
		t.Errorf("the portal is not there once:\n%s", out)
	}
	files := "nfs+rdma://" + rdma + "/data"
	must(t, nil, "cp", "--quiet", img, files+"/img?provider=verbs")
	if got := must(t, nil, "cat", files+"/img"); got != string(want) {
		t.Errorf("%d bytes over iWARP", len(got))
	}
	if got := must(t, nil, "cat", files+"/img?provider=verbs"); got != string(want) {
		t.Errorf("%d bytes over an adapter", len(got))
	}
	must(t, nil, "bench", "--provider", "verbs", "--bs", "4KiB", "--iodepth", "4", "--runtime", "200ms", "iser://"+volume)
	if !soon(func() bool { return len(d.Sessions()) == 0 }) { // what ended goes behind its answer
		t.Fatalf("a session stays: %+v", d.Sessions())
	}
	// Who is here while a session lasts.
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := sluiceUntil(ctx, nil, "bench", "--runtime", "1h", "--bs", "4KiB", "iser://"+volume+"?provider=verbs")
		done <- err
	}()
	defer func() {
		interrupt()
		<-done // however it ended
	}()
	sock := []string{"--socket", filepath.Join(dir, "admin.sock")}
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) { // a list has no event
		ss := d.Sessions()
		if len(ss) == 1 && ss[0].Path != nil {
			if p := ss[0].Path; p.Provider != "verbs" || p.Device != "twin0" || p.Port != 1 || p.GID == "" || p.Exposure == "" {
				t.Errorf("%+v", p)
			}
			if body := scraped(t, sock[1]); !strings.Contains(body, `sluice_fabric_sessions{device="twin0",provider="verbs"} 1`) ||
				!regexp.MustCompile(`sluice_fabric_completions_total\{device="twin0",provider="verbs"\} [1-9]`).MatchString(body) ||
				!regexp.MustCompile(`sluice_fabric_registered_bytes\{device="twin0",provider="verbs"\} [1-9]`).MatchString(body) ||
				!strings.Contains(body, `sluice_fabric_exposed_bytes{device="twin0",provider="verbs"} 0`) || !strings.Contains(body, `sluice_fabric_adapter_connections{device="twin0",provider="verbs"}`) {
				t.Errorf("no adapter in\n%s", body)
			}
			if out := must(t, nil, append([]string{"session", "list"}, sock...)...); !strings.Contains(out, "verbs twin0/1") {
				t.Errorf("no adapter in\n%s", out)
			}
			if out := must(t, nil, append([]string{"session", "trace", ss[0].ID}, sock...)...); !strings.Contains(out, "may reach") {
				t.Errorf("no exposure in\n%s", out)
			}
			must(t, nil, append([]string{"session", "close", ss[0].ID, "--yes"}, sock...)...)
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("no session over the adapter: %+v", ss)
		}
	}
}

// Adapters with ports of their own serve there. Discovery names that port to who came by it, and the portal's to all others, whose
// fabrics would find nothing at the adapters'.
func TestAdaptersWithPortsOfTheirOwnAreDiscoveredByThoseWhoComeByThem(t *testing.T) {
	portal, _, _, _, _ := manyFabrics(t, "fabric: [{provider: iwarp}, {provider: verbs, iser_port: 3261, nfs_port: 20050}]")
	own := "127.0.0.1:3261"
	for url, want := range map[string]string{"iscsi://" + portal: portal, "iser://" + portal: portal, "iser://" + own + "?provider=verbs": own} {
		out, not := must(t, nil, "discover", url), map[string]string{portal: own, own: portal}[want]
		if !strings.Contains(out, want) || strings.Contains(out, not) {
			t.Errorf("%s: want %s and not %s:\n%s", url, want, not, out)
		}
	}
	must(t, nil, "inquiry", "iser://"+own+"/"+testTarget+"/0?provider=verbs")
	must(t, nil, "ls", "nfs+rdma://127.0.0.1:20050/data?provider=verbs")
}
