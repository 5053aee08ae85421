package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What ends a comparison early leaves the table of the pairs that are done, and a later call goes on behind them.
func TestAnEndThatComesEarlyLeavesThePairsThatAreDone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pairs")
	of := task{"a", "b", "block,nfs", nil}
	o := options{old: "a", now: "b", parts: of.Parts, pairs: 5, mean: 0.5, row: 0.5}
	broken := errors.New("the machine")
	run := func(fail int) (string, int, error) {
		j, done, err := openJournal(path, of)
		if err != nil {
			t.Fatal(err)
		}
		defer j.close()
		var out strings.Builder
		n := 0
		err = o.pair(context.Background(), &out, done, j, func(_ int, part string) (map[string]float64, error) {
			if n++; n == fail {
				return nil, broken
			}
			return map[string]float64{part + " read": 100, part + " write": 50}, nil
		})
		return out.String(), n, err
	}
	if out, _, err := run(4*2 + 2); !errors.Is(err, broken) || !strings.Contains(out, "4 rows and 2 pairs: 1.000") {
		t.Errorf("%v:\n%s", err, out)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"old":{"blo`); err != nil { // it was killed
		t.Fatal(err)
	}
	f.Close()
	if out, n, err := run(0); err != nil || n != 3*4 || !strings.Contains(out, "4 rows and 5 pairs: 1.000") {
		t.Errorf("%d measured, %v:\n%s", n, err, out)
	}
	if out, n, err := run(0); err != nil || n != 0 || !strings.Contains(out, "5 pairs") {
		t.Errorf("all are done: %d measured, %v:\n%s", n, err, out)
	}
	of.New = "c"
	if _, _, err := openJournal(path, of); err == nil {
		t.Error("the pairs of other commits are taken")
	}
}

// The table is shown at a signal too, which ends what is being measured.
func TestASignalLeavesThePairsThatAreDone(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	o := options{parts: "block", pairs: 5}
	n := 0
	var out strings.Builder
	err := o.pair(ctx, &out, nil, nil, func(int, string) (map[string]float64, error) {
		if n++; n == 3 {
			cancel()
			return nil, errors.New("signal: killed")
		}
		return map[string]float64{"a": 1}, nil
	})
	if !errors.Is(err, context.Canceled) || !strings.Contains(out.String(), "1 rows and 1 pairs") {
		t.Errorf("%v:\n%s", err, &out)
	}
}
