package main

import (
	"fmt"
	"slices"
	"strings"
)

// part is one piece of the benchmark. It prints what it has found, adds it to the report, and returns the bars that were missed.
type part struct {
	name string
	run  func(dir string, o options, report map[string]any) (missed []error, err error)
}

var parts = []part{
	{"block", benchBlocks},
	{"sweep", benchSweep},
	{"latency", benchLatency},
	{"shared", benchShared},
	{"direct", benchDirect},
	{"sessions", crowds},
	{"scale", benchScale},
	{"tgt", benchTgt},
	{"staging", benchStaging},
	{"nbd", benchNBD},
	{"nfs", benchFiles},
}

func partNames() string {
	var l []string
	for _, p := range parts {
		l = append(l, p.name)
	}
	return strings.Join(l, ", ")
}

// wantedParts are those that -part names, in the order that they are measured in.
func wantedParts(said string) ([]part, error) {
	if said == "all" {
		return parts, nil
	}
	names := strings.Split(said, ",")
	var l []part
	for _, p := range parts {
		if slices.Contains(names, p.name) {
			l = append(l, p)
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == n }) {
			return nil, fmt.Errorf("-part %q: %q is none of %s, all", said, n, partNames())
		}
	}
	return l, nil
}
