package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// sources are the packages of the binaries that scenarios name. The suites are test programs.
var (
	sources = map[string]string{"sluice": "./cmd/sluice", "sluiced": "./cmd/sluiced", "exchange": "./test/tool/lab/exchange", "logreplay": "./test/tool/lab/logreplay",
		"fsx": "./test/tool/lab/fsx"}
	suites = map[string]string{"verbs.test": "./transport/verbs"}
)

// binary is the path of one of a scenario's binaries.
func (l *lab) binary(s *Scenario, name string) string {
	if s.Verbs {
		return filepath.Join(l.bin, "verbs", name)
	}
	return filepath.Join(l.bin, name)
}

// build makes the binaries that the scenarios use. They are those that are shipped: without cgo, or, for a scenario of the
// verbs provider, with cgo and the headers of the guest's rdma-core. The guest has the C library they were linked to.
func (l *lab) build(ctx context.Context, top string, chosen []Scenario) error {
	if l.bin = os.Getenv("LAB_BIN"); l.bin != "" {
		return nil // binaries that were built before
	}
	l.bin = filepath.Join(l.out, "bin")
	dev := filepath.Join(l.cache, "dev/usr/include")
	for _, verbs := range []bool{false, true} {
		dir, env, tags := l.bin, "CGO_ENABLED=0", []string(nil)
		if verbs {
			dir, env, tags = filepath.Join(l.bin, "verbs"), "CGO_ENABLED=1", []string{"-tags", "verbs"}
		}
		gobuild := func(args ...string) error {
			cmd := exec.CommandContext(ctx, "go", slices.Concat(args[:1], []string{"-trimpath"}, tags, args[1:])...)
			cmd.Dir = top
			cmd.Env = append(os.Environ(), env, "CGO_CFLAGS=-O2 -g -I"+dev)
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("build the binaries: %w", err)
			}
			return nil
		}
		pkgs, tests := packages(chosen, verbs)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if len(pkgs) > 0 {
			if err := gobuild(append([]string{"build", "-o", dir + "/"}, pkgs...)...); err != nil {
				return err
			}
		}
		for _, t := range tests {
			if err := gobuild("test", "-c", "-o", filepath.Join(dir, t), suites[t]); err != nil {
				return err
			}
		}
	}
	return nil
}

// packages are those of the binaries that the scenarios use, with or without the verbs provider, and their suites.
func packages(chosen []Scenario, verbs bool) (pkgs, tests []string) {
	for _, s := range chosen {
		if s.Verbs != verbs {
			continue
		}
		for _, b := range slices.Concat(s.Host, s.Files) {
			if p := sources[b]; p != "" && !slices.Contains(pkgs, p) {
				pkgs = append(pkgs, p)
			}
			if suites[b] != "" && !slices.Contains(tests, b) {
				tests = append(tests, b)
			}
		}
	}
	return pkgs, tests
}
