package outside

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// flat is code without its indentation, line by line.
func flat(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// Every line of Go that the page for programmers shows stands in the outside module, whose tests run it.
func TestThePageForProgrammersShowsCodeThatRuns(t *testing.T) {
	files, err := filepath.Glob(root + "/test/outside/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(root + "/test/outside/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var runs strings.Builder
	for _, f := range append(files, more...) {
		runs.WriteString(flat(read(t, f)))
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, root+"/docs/library.md"), -1)
	if len(blocks) < 10 {
		t.Fatalf("only %d pieces of code were found", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(runs.String(), flat(b[1])) {
			t.Errorf("test/outside does not have, in this order:\n%s", b[1])
		}
	}
}

// A word of our own that the glossary explains is one that the code uses, where the glossary says.
func TestTheGlossaryExplainsWordsOfTheCode(t *testing.T) {
	_, ours, ok := strings.Cut(read(t, root+"/docs/glossary.md"), "## Sluice's own")
	rows := regexp.MustCompile("(?m)^\\| ([^|]+) \\| [^|]+ \\| `([^`]+)` \\|$").FindAllStringSubmatch(ours, -1)
	if !ok || len(rows) < 10 {
		t.Fatalf("only %d words were found", len(rows))
	}
	for _, row := range rows {
		word := regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(row[1]))
		files, err := filepath.Glob(filepath.Join(root, row[2], "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		used := false
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			// A line of a comment may end between two words.
			used = used || word.Match(b) || word.Match(bytes.ReplaceAll(b, []byte("\n// "), []byte(" ")))
		}
		if !used {
			t.Errorf("%s does not speak of %q", row[2], row[1])
		}
	}
}
