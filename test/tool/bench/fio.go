package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tools gets programs, by the names of Debian's packages, where they are missing.
func tools(what string, programs map[string]string) error {
	var want []string
	for name, pkg := range programs {
		if _, err := exec.LookPath(name); err != nil {
			want = append(want, pkg)
		}
	}
	if len(want) > 0 && os.Geteuid() != 0 {
		return fmt.Errorf("%s needs Debian's packages %s", what, strings.Join(want, " "))
	}
	return install(want)
}

// fioArgs is a line of a table for fio, on the first size bytes of whatever the engine's own arguments name.
func fioArgs(w work, size int64, d time.Duration, engine ...string) []string {
	rw := "randread"
	if w.write {
		rw = "randwrite"
	}
	return append([]string{"--name=x", "--rw=" + rw, "--bs=" + strconv.Itoa(w.size), "--iodepth=" + strconv.Itoa(w.depth), "--size=" + strconv.FormatInt(size, 10),
		"--norandommap", "--time_based", fmt.Sprintf("--runtime=%dms", d.Milliseconds())}, engine...)
}

// fio runs one job and returns its I/Os, a second and in all.
func fio(dir string, w work, size int64, d time.Duration, engine ...string) (rate float64, n int, err error) {
	out := filepath.Join(dir, "fio.json")
	cmd := exec.Command("fio", append(fioArgs(w, size, d, engine...), "--output-format=json", "--output="+out)...)
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("fio: %w: %s", err, said)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return 0, 0, err
	}
	var f struct {
		Jobs []struct {
			Error       int
			Read, Write struct {
				IOPS  float64 `json:"iops"`
				Total int     `json:"total_ios"`
			}
		}
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return 0, 0, fmt.Errorf("fio's output: %w", err)
	}
	if len(f.Jobs) != 1 || f.Jobs[0].Error != 0 {
		return 0, 0, fmt.Errorf("fio failed: %s", b)
	}
	j := &f.Jobs[0]
	return j.Read.IOPS + j.Write.IOPS, j.Read.Total + j.Write.Total, nil
}
