package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every command line that a page shows is one that the program has: command, flags and number of arguments.
func TestDocumentedCommandsExist(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 7 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	seen := 0
	line := regexp.MustCompile(`(?m)^ {4}(?:\./bin/)?sluice (.*)$`)
	for _, page := range append(pages, "../../README.md") {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range line.FindAllStringSubmatch(string(b), -1) {
			seen++
			words := strings.Fields(strings.ReplaceAll(m[1], "'", ""))
			c, rest, err := root().Find(words)
			if err == nil {
				err = c.ParseFlags(rest)
			}
			if err == nil {
				err = c.ValidateArgs(c.Flags().Args())
			}
			if err != nil || !c.Runnable() {
				t.Errorf("%s: sluice %s: %v", filepath.Base(page), m[1], err)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d command lines were found", seen)
	}
}

// A page that another page points to is there.
func TestLinksBetweenPagesHold(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([a-z]+\.md)\)`).FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join("../../docs", m[1])); err != nil {
				t.Errorf("%s points to %s: %v", filepath.Base(page), m[1], err)
			}
		}
	}
}
