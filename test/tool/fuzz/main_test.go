package main

import "testing"

func TestOnlyTheEnginesOwnDeadlineIsNoFinding(t *testing.T) {
	const head = "fuzz: elapsed: 0s, gathering baseline coverage: 0/12 completed\nfuzz: elapsed: 5s, execs: 9000 (1799/sec), new interesting: 2 (total: 14)\n"
	const end = "FAIL\nexit status 1\nFAIL\tgithub.com/sluice-storage/sluice/internal/xdr\t5.1s\n"
	for name, tc := range map[string]struct {
		out  string
		want bool
	}{
		"the deadline":          {head + "--- FAIL: FuzzParse (5.01s)\n    context deadline exceeded\n" + end, true},
		"a test that fails":     {head + "--- FAIL: FuzzParse (5.01s)\n    parse_test.go:9: read: context deadline exceeded\n" + end, false},
		"a panic":               {head + "--- FAIL: FuzzParse (5.01s)\n    context deadline exceeded\npanic: runtime error\n" + end, false},
		"a failing input":       {head + "--- FAIL: FuzzParse (1.0s)\n    context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzParse/1\n" + end, false},
		"a data race":           {head + "WARNING: DATA RACE\n--- FAIL: FuzzParse (5.01s)\n    context deadline exceeded\n" + end, false},
		"a program that cannot": {"# pkg\nx.go:1: syntax error\n" + end, false},
	} {
		if got := onlyDeadline([]byte(tc.out)); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
