package fioreport

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// What the installed fio writes is read, and the page and the file say the same.
func TestAReportOfARealRun(t *testing.T) {
	fio := need.Tool(t, "fio", "fio")
	dir := t.TempDir()
	for place, job := range map[string]string{"a": "verify", "b": "mixed-70-30"} {
		c := exec.Command("../../../configs/fio/run", job, "--", "--output-format=json", "--output="+filepath.Join(dir, place+"."+job+".json"))
		c.Env = append(os.Environ(), "FIO="+fio, "DIRECTORY="+dir, "ENGINE=psync", "DIRECT=0", "SIZE=2m", "RUNTIME=1s")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	rs, err := ParseDir(dir, []string{"a", "b"}, map[string]string{"a": "A place", "b": "Another"})
	if err != nil {
		t.Fatal(err)
	}
	r := Report{Title: "T", Results: rs}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	if len(rs) != 2 || !rs[0].Verify || rs[0].Write.IOs != rs[0].Read.IOs || rs[1].Pattern != "randrw" || rs[1].Block != "4k" || rs[1].Depth != "32" || rs[1].Read.P99 == 0 {
		t.Errorf("%+v", rs)
	}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil || !strings.Contains(string(page), "## Another") || !strings.Contains(string(page), "right checksum") {
		t.Errorf("%v\n%s", err, page)
	}
	b, err := os.ReadFile(filepath.Join(dir, "report.json"))
	var back Report
	if err != nil || json.Unmarshal(b, &back) != nil || len(back.Results) != 2 || back.Results[1] != rs[1] {
		t.Errorf("%v %s", err, b)
	}
}

func TestWhatFailedIsNotReportedAsGood(t *testing.T) {
	for text, want := range map[string]string{
		`{"jobs":[{"jobname":"x","error":5,"read":{"total_ios":1}}]}`:                                "error 5",
		`{"jobs":[{"jobname":"x"}]}`:                                                                 "did nothing",
		`{"jobs":[{"jobname":"x","job options":{"verify":"crc32c"},"write":{"total_ios":1}}]}`:       "nothing back",
		`{"jobs":[{"jobname":"x"}],"global options":{"verify":"crc32c"}}`:                            "did nothing",
		`{"jobs":[{"jobname":"x","write":{"total_ios":1}},{"jobname":"y","write":{"total_ios":0}}]}`: "y did nothing",
	} {
		rs, err := Parse("p", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		r := Report{Results: rs}
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"", "{}", "fio: connected", `{"jobs":[]}`} {
		if _, err := Parse("p", []byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
