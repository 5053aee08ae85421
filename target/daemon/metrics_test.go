package daemon

import (
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// What is scraped is clean by Prometheus's own linter, and every metric of ours is there.
func TestMetricsAreClean(t *testing.T) {
	d, _ := running(t, fileConfig)
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
		"sluice_memory_limit_bytes", "sluice_fabric_stream_bytes_total", `sluice_fabric_copied_bytes_total{direction="in",size_class="+Inf"}`, "go_goroutines",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

// The descriptions, each with a help text that is a sentence.
func TestEveryMetricIsExplained(t *testing.T) {
	ch := make(chan *prometheus.Desc, 64)
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
	ch := make(chan *prometheus.Desc, 64)
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
		for _, name := range regexp.MustCompile(`sluice_[a-z_]+`).FindAllString(string(b), -1) {
			used++
			if !known[name] {
				t.Errorf("%s asks for %s, which does not exist", f, name)
			}
		}
	}
	if used < 20 {
		t.Errorf("only %d uses were found", used)
	}
}
