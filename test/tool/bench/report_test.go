package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// What the process in namespaces of its own has measured, and the bars that it missed, are in the report and the verdict.
func TestResultsOfThePartInsideAreReported(t *testing.T) {
	report := map[string]any{"results": []int{1}}
	missed, err := merge(report, []byte(`{"nfs_tcp":[{"work":"read","ratio":0.5}],"missed":["NFS over TCP, read: a ratio of 0.50, 1.0 is the bar"]}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(missed) != 1 || !strings.Contains(missed[0].Error(), "0.50") {
		t.Errorf("missed: %v", missed)
	}
	b, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(b), `{"nfs_tcp":[{"work":"read","ratio":0.5}],"results":[1]}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if _, err := merge(report, []byte(`{"nfs_tcp":[]}`)); err == nil {
		t.Error("a report without a verdict is taken")
	}
}

func TestABarThatIsMissedIsNamed(t *testing.T) {
	l := []*result{{Work: "a", Ratio: 0.69, Bar: 0.7}, {Work: "b", Ratio: 0.7, Bar: 0.7}, {Work: "c", Ratio: 1, Bar: 0.7, AllocsDaemon: 2 * maxAllocs}}
	missed := judge(l)
	if len(missed) != 2 || !strings.HasPrefix(missed[0].Error(), "a:") || !strings.HasPrefix(missed[1].Error(), "c:") {
		t.Errorf("missed: %v", missed)
	}
}
