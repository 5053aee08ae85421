package daemon

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// withFiles is fileConfig with a file service: what is looked at is all there is.
func withFiles(t *testing.T) string {
	return fileConfig + "files: {tcp: \"127.0.0.1:0\", rdma: \"127.0.0.1:0\"}\nexports: [{name: /x, path: " + t.TempDir() + "}]\n"
}

// What is scraped is clean by Prometheus's own linter, and every metric of ours is there.
func TestMetricsAreClean(t *testing.T) {
	d, _ := running(t, withFiles(t))
	w := httptest.NewRecorder()
	d.metricsHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body := w.Body.String()
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "sluice_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for _, want := range []string{
		`sluice_volume_size_bytes{volume="disk"} 8.388608e+06`, `sluice_volume_operations_total{operation="read",volume="ram"} 0`,
		`sluice_volume_operation_duration_seconds_bucket{operation="read",volume="disk",le="0.001"} 0`, `sluice_stags{kind="read_sink",provider="iwarp"} 0`,
		"sluice_memory_limit_bytes", "sluice_fabric_stream_bytes_total", `sluice_fabric_copied_bytes_total{direction="in",size_class="+Inf"}`, "go_goroutines",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

// The descriptions, each with a help text that is a sentence.
func TestEveryMetricIsExplained(t *testing.T) {
	ch := make(chan *prometheus.Desc, 256)
	metrics{}.Describe(ch)
	close(ch)
	help := regexp.MustCompile(`help: "([^"]*)"`)
	for d := range ch {
		if m := help.FindStringSubmatch(d.String()); m == nil || !strings.HasSuffix(m[1], ".") || len(m[1]) < 10 {
			t.Errorf("%v has no sentence of help", d)
		}
	}
}

// The dashboard and the alerts ask only for metrics that exist.
func TestDashboardAndAlertsNameExistingMetrics(t *testing.T) {
	known := map[string]bool{}
	ch := make(chan *prometheus.Desc, 256)
	metrics{}.Describe(ch)
	close(ch)
	for d := range ch {
		known[regexp.MustCompile(`fqName: "([^"]*)"`).FindStringSubmatch(d.String())[1]] = true
	}
	used := 0
	for _, f := range []string{"grafana.json", "alerts.yaml"} {
		b, err := os.ReadFile("../../configs/monitoring/" + f)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`sluice_[a-z_0-9]+`).FindAllString(string(b), -1) {
			used++
			base := name
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				if b, ok := strings.CutSuffix(name, part); ok && known[b] {
					base = b
				}
			}
			if !known[base] {
				t.Errorf("%s asks for %s, which does not exist", f, name)
			}
		}
	}
	if used < 20 {
		t.Errorf("only %d uses were found", used)
	}
}

// promtool reads what is scraped and the alert rules, and has nothing to say about them.
func TestPromtoolIsContent(t *testing.T) {
	promtool := need.Tool(t, "promtool", "prometheus")
	d, _ := running(t, withFiles(t))
	w := httptest.NewRecorder()
	d.metricsHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	// The Go runtime's own metrics are not ours to name.
	var ours strings.Builder
	for _, line := range strings.SplitAfter(w.Body.String(), "\n") {
		if strings.Contains(line, "sluice_") {
			ours.WriteString(line)
		}
	}
	c := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	c.Stdin = strings.NewReader(ours.String())
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("check metrics: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "../../configs/monitoring/alerts.yaml").CombinedOutput(); err != nil {
		t.Errorf("check rules: %v\n%s", err, out)
	}
}

// However many initiators there are, the label sets are bounded, and nothing that is counted is lost.
func TestInitiatorLabelsAreBounded(t *testing.T) {
	var ss []sampled
	for i := range 3 * maxNexusSeries {
		ss = append(ss, sampled{SessionInfo: iscsi.SessionInfo{Target: "t", Initiator: fmt.Sprintf("iqn.2026-11.org.example:%d", i), Transport: "iSER", Commands: 1}})
	}
	series, commands := 0, uint64(0)
	sessionMetrics(ss, func(*prometheus.Desc, float64, ...string) {}, func(d *prometheus.Desc, n uint64, _ ...string) {
		if d == mCommands {
			series++
			commands += n
		}
	})
	if series != maxNexusSeries+1 || commands != 3*maxNexusSeries {
		t.Errorf("%d series with %d commands", series, commands)
	}
}
