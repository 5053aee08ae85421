package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// What write and cp change is the bytes that they were given, at any place and of any length: not one beside them, and
// all of them, from a file, standard input and another volume.
func TestAWriteAtAnyPlaceChangesExactlyThoseBytes(t *testing.T) {
	addr, _, dir := served(t)
	for _, tc := range []struct {
		lun, off, n int
		how         string
	}{
		{0, 100, 7 << 20, "file"}, // pieces of one copy side by side
		{0, 101, 7 << 20, "file"},
		{0, 102, 8<<20 - 102, "file"},
		{0, 515, 7<<20 + 7, "file"},
		{0, 513, 5<<20 + 7, "stdin"},
		{0, 511, 2, "stdin"},
		{0, 3<<20 - 1, 1, "file"},
		{0, 4096 - 3, 3<<20 + 6, "file"},
		{1, 100, 7 << 20, "stdin"},
		{1, 4095, 4098, "file"},
		{1, 1, 8<<20 - 2, "file"},
		{1, 5000, 100, "stdin"},
		{1, 512, 6 << 20, "file"},
	} {
		scheme := []string{"iser", "iscsi"}[tc.off%2]
		url := fmt.Sprintf("%s://%s/%s/%d", scheme, addr, testTarget, tc.lun)
		want, data := noise(t, 8<<20), noise(t, tc.n)
		must(t, want, "write", url)
		if tc.how == "file" {
			file := filepath.Join(dir, "in")
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			must(t, nil, "write", url, file, "--offset", fmt.Sprint(tc.off))
		} else {
			must(t, data, "write", url, "--offset", fmt.Sprint(tc.off))
		}
		copy(want[tc.off:], data)
		same(t, fmt.Sprintf("%d bytes at %d of LUN %d by %s", tc.n, tc.off, tc.lun, tc.how), []byte(must(t, nil, "read", url)), want)
		part := []byte(must(t, nil, "read", url, "--offset", fmt.Sprint(tc.off), "--length", fmt.Sprint(tc.n)))
		same(t, fmt.Sprintf("%d bytes read from %d", tc.n, tc.off), part, data)
	}
}

// same fails with the first place where two contents differ.
func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for k := range min(len(got), len(want)) {
		if got[k] != want[k] {
			t.Fatalf("%s: byte %d differs", what, k)
		}
	}
	t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
}

// Two writers whose bytes are neighbours in one block do not undo each other's: a block that is shared changes by
// COMPARE AND WRITE.
func TestWritersOfNeighbouringBytesDoNotLoseEachOthers(t *testing.T) {
	addr, _, _ := served(t)
	url := "iscsi://" + addr + "/" + testTarget + "/1" // blocks of 4096
	const writers, each = 8, 100
	want := noise(t, 8192)
	must(t, want, "write", url)
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for k := range writers {
		data := noise(t, each)
		copy(want[3700+k*each:], data)
		wg.Go(func() { _, _, errs[k] = sluice(t, data, "write", url, "--offset", fmt.Sprint(3700+k*each)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	same(t, "eight writers of one block", []byte(must(t, nil, "read", url, "--length", "8192")), want)
}

// A file in the place of the volume's URL, and a read of what is not there, are refused and harm neither.
func TestAFileInTheVolumesPlaceIsLeftAlone(t *testing.T) {
	addr, _, dir := served(t)
	url := "iscsi://" + addr + "/" + testTarget + "/0"
	disk, kept := noise(t, 8<<20), noise(t, 1000)
	must(t, disk, "write", url)
	file := filepath.Join(dir, "kept")
	if err := os.WriteFile(file, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		code int
		args []string
	}{
		{ui.CodeUsage, []string{"write", file, url}},
		{ui.CodeUsage, []string{"read", file, url}},
		{ui.CodeUsage, []string{"read", url, url}},
		{ui.CodeUsage, []string{"write", url, url}},
		{ui.CodeRefused, []string{"read", url, file, "--offset", "9MiB"}},
		{ui.CodeRefused, []string{"read", url, file, "--offset", "8MiB"}},
		{ui.CodeRefused, []string{"write", url, file, "--offset", "8388000"}}, // it ends 392 bytes beyond the volume's end
		{ui.CodeRefused, []string{"cp", "iscsi://" + addr + "/" + testTarget + "/7", file}},
	} {
		_, _, err := sluice(t, nil, tc.args...)
		var ee ui.ExitError
		if !errors.As(err, &ee) || ee.Code != tc.code {
			t.Errorf("sluice %v: %v, want code %d", tc.args, err, tc.code)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprint("the file after ", tc.args), got, kept)
		same(t, fmt.Sprint("the volume after ", tc.args), []byte(must(t, nil, "read", url)), disk)
	}
}

// A copy to a file that does not end well leaves the file that was there, or none, and nothing beside it.
func TestACopyOfAVolumeThatFailsLeavesNoCutFile(t *testing.T) {
	addr, _, _ := served(t)
	url := "iscsi://" + addr + "/" + testTarget + "/0"
	dir := t.TempDir()
	file := filepath.Join(dir, "image")
	kept := noise(t, 1000)
	if err := os.WriteFile(file, kept, 0o640); err != nil {
		t.Fatal(err)
	}
	full, err := os.Stat("/dev/full")
	if err != nil || full.Mode()&os.ModeDevice == 0 {
		t.Fatal("no /dev/full", err)
	}
	if _, _, err := sluice(t, nil, "cp", url, "/dev/full"); err == nil {
		t.Error("a device that is full took a copy")
	}
	must(t, nil, "cp", url, file)
	fi, err := os.Stat(file)
	if err != nil || fi.Size() != 8<<20 || fi.Mode().Perm() != 0o640 {
		t.Errorf("the copied file: %v %v", fi, err)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 1 {
		t.Errorf("beside the file is %v (%v)", names, err)
	}
}
