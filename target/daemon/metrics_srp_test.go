package daemon

import (
	"net/http/httptest"
	"strings"
	"testing"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/srp"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// What initiators of SRP do is in the metrics that those of iSCSI are in: sessions, channels, commands, logins, refusals and ends.
func TestMetricsHaveSRP(t *testing.T) {
	d, _ := running(t, fileConfig+"srp: [{address: \"127.0.0.1:0\", group: 9}]\n")
	const target = "iqn.2026-11.io.sluice:test"
	address := d.Targets()[0].SRP[0].Address
	dev, pool := iwarp.New(iwarp.Options{}), mem.NewPool(32<<20)
	if err := pool.OnSlab(dev); err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	req := srpinit.Request(wire.PortID{15: 7}, wire.PortID(srp.TargetPort(target, 9)))
	c, err := srpinit.Dial(t.Context(), dev, pool, address, req)
	if err != nil {
		t.Fatal(err)
	}
	defer c.End()
	more := req
	more.Flags |= wire.MultiMulti
	second, err := srpinit.Dial(t.Context(), dev, pool, address, more)
	if err != nil {
		t.Fatal(err)
	}
	defer second.End()
	if r := c.Do(t.Context(), srpinit.Command{CDB: []byte{0}}); r.Err != nil {
		t.Fatal(r.Err)
	}
	elsewhere := req
	elsewhere.Target[15]++
	if _, err := srpinit.Dial(t.Context(), dev, pool, address, elsewhere); err == nil {
		t.Fatal("a port that no target has is logged in to")
	}
	says := func(lines ...string) {
		t.Helper()
		w := httptest.NewRecorder()
		d.metricsHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, l := range lines {
			if !strings.Contains(w.Body.String(), l+"\n") {
				t.Errorf("%s is missing", l)
			}
		}
	}
	nexus := `{initiator="` + (wire.PortID{15: 7}).Name() + `",target="` + target + `",transport="SRP"}`
	says(`sluice_sessions{target="`+target+`",transport="SRP"} 1`, "sluice_session_channels"+nexus+" 2", "sluice_session_commands_total"+nexus+" 1",
		`sluice_logins_total{transport="SRP"} 2`, `sluice_logins_total{transport="iSCSI"} 0`, `sluice_login_refusals_total{status="00010003",transport="SRP"} 1`,
		`sluice_fabric_sessions{device="",provider="iwarp"} 1`)
	if _, err := d.CloseSession(t.Context(), d.Sessions()[0].ID); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	<-second.Done()
	if err := d.srp.Await(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	says(`sluice_sessions_ended_total{reason="dropped_by_operator",transport="SRP"} 1`)
}
