package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// shape lists the paths of a JSON value with the kind of what stands there. Lists count once, and what an option or a
// percentile is called is the run's affair.
func shape(prefix string, v any, into map[string]string) {
	switch x := v.(type) {
	case map[string]any:
		for k, e := range x {
			if strings.HasSuffix(prefix, "job options") {
				k = "*"
			}
			shape(prefix+"."+k, e, into)
		}
		into[prefix] = "object"
	case []any:
		into[prefix] = "array"
		if len(x) > 0 {
			shape(prefix+"[]", x[0], into)
		}
	default:
		into[prefix] = fmt.Sprintf("%T", v)
	}
}

// A report has every key that the installed fio writes for such a run, each of the same kind, so that a stranger's tool
// that was made for fio finds what it looks for.
func TestBenchSpeaksFiosJSON(t *testing.T) {
	fio := need.Tool(t, "fio", "fio")
	addr, _, dir := served(t)
	var shapes [2]map[string]string
	file := filepath.Join(dir, "theirs.json")
	c := exec.Command(fio, "--name=x", "--filename="+filepath.Join(dir, "x"), "--ioengine=psync", "--size=1m", "--rw=randrw", "--bs=4k", "--time_based", "--runtime=1", "--output-format=json", "--output="+file)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	theirs, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ours := must(t, nil, "bench", "iser://"+addr+"/"+testTarget+"/0", "--rw", "randrw", "--bs", "4k", "--iodepth", "8", "--runtime", "1700ms", "--destroy", "-o", "json")
	for i, b := range [][]byte{theirs, []byte(ours)} {
		var v any
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
		shapes[i] = map[string]string{}
		shape("", v, shapes[i])
	}
	for k, kind := range shapes[0] {
		if strings.HasPrefix(k, ".disk_util[]") {
			continue // a disk of this machine: a volume is none
		}
		if got := shapes[1][k]; got != kind {
			t.Errorf("fio has %s, a %s; ours is %q", k, kind, got)
		}
	}
	for k := range shapes[1] {
		if _, ok := shapes[0][k]; !ok {
			t.Errorf("%s is no key of fio's", k)
		}
	}
	// The figures hang together.
	var r struct {
		Jobs []struct {
			Read struct {
				Bytes, Total, BwSamples, Runtime float64
				IOBytes                          float64 `json:"io_bytes"`
				IOs                              float64 `json:"total_ios"`
				Samples                          int     `json:"bw_samples"`
			}
			LatNs  map[string]float64 `json:"latency_ns"`
			LatUs  map[string]float64 `json:"latency_us"`
			LatMs  map[string]float64 `json:"latency_ms"`
			Depths map[string]float64 `json:"iodepth_level"`
		}
	}
	if err := json.Unmarshal([]byte(ours), &r); err != nil {
		t.Fatal(err)
	}
	j := r.Jobs[0]
	sum := 0.0
	for _, m := range []map[string]float64{j.LatNs, j.LatUs, j.LatMs} {
		for _, v := range m {
			sum += v
		}
	}
	if j.Read.IOBytes != 4096*j.Read.IOs || j.Read.Samples < 1 || float64(j.Read.Samples) > j.Read.Runtime/500+1 || sum < 99.9 || sum > 100.1 || j.Depths["8"] != 100 {
		t.Errorf("%+v, all shares %f", j, sum)
	}
}

// A report's plots are SVG that a parser takes, and the page shows all of them.
func TestBenchReport(t *testing.T) {
	addr, _, _ := served(t)
	dir := filepath.Join(t.TempDir(), "report")
	must(t, nil, "bench", "iscsi://"+addr+"/"+testTarget+"/0", "--rw", "randrw", "--destroy", "--runtime", "20ms", "--quiet", "--report", dir)
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range []string{"depth", "block"} {
		for _, k := range []string{"throughput", "latency"} {
			name := s + "-" + k + ".svg"
			names = append(names, name)
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			var svg struct {
				XMLName xml.Name
				Texts   []string `xml:"text"`
				Paths   []struct {
					D string `xml:"d,attr"`
				} `xml:"path"`
			}
			if err := xml.Unmarshal(b, &svg); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			lines := map[string]int{"throughput": 2, "latency": 6}[k]
			if svg.XMLName.Local != "svg" || len(svg.Paths) != 1+lines || strings.Contains(string(b), "NaN") || !slices.ContainsFunc(svg.Texts, func(s string) bool { return strings.HasPrefix(s, k+" (") }) {
				t.Errorf("%s has %d paths and says %q", name, len(svg.Paths), svg.Texts)
			}
			if !strings.Contains(string(page), "("+name+")") {
				t.Errorf("the page does not show %s", name)
			}
		}
	}
	var points []map[string]any
	b, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil || json.Unmarshal(b, &points) != nil || len(points) != 16 {
		t.Errorf("report.json has %d points, %v", len(points), err)
	}
	entries, err := os.ReadDir(dir)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	want := append([]string{"README.md", "report.json"}, names...)
	slices.Sort(want)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the report has %q, %v", got, err)
	}
}
