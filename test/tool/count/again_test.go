package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Only what is named is done again, and only where nothing else failed.
func TestOnlyNamedTestsAreDoneAgain(t *testing.T) {
	const head = "package flaky\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\n"
	const once = "func TestFlaky(t *testing.T) {\n\tif os.WriteFile(\"seen\", nil, 0o600) != nil || os.Getenv(\"NOTHING\") != \"\" {\n\t\tt.Fatal()\n\t}\n\tif _, err := os.Stat(\"again\"); err != nil {\n\t\t_ = os.WriteFile(\"again\", nil, 0o600)\n\t\tt.Fatal(\"the first time\")\n\t}\n}\n"
	const well = "func TestWell(t *testing.T) { _ = os.Args }\n"
	for name, c := range map[string]struct {
		code string
		want int
	}{
		"one that is named":                 {well + once, 0},
		"one that is named and fails twice": {well + "func TestFlaky(t *testing.T) { _ = os.Args; t.Fatal() }\n", 1},
		"another beside it":                 {well + once + "func TestOther(t *testing.T) { t.Fatal() }\n", 1},
		"a process that dies":               {well + once + "func TestOther(t *testing.T) { os.Exit(3) }\n", 1},
		"nothing":                           {well, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			for file, text := range map[string]string{
				"go.mod": "module example.org/m\n\ngo 1.24\n", "list": "flaky TestFlaky it is made so\n", "flaky/flaky_test.go": head + c.code,
			} {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			l, err := readCauses("list")
			if err != nil {
				t.Fatal(err)
			}
			if got := run([]string{"go", "test", "./..."}, l); got != c.want {
				t.Errorf("the run ends with %d, want %d", got, c.want)
			}
		})
	}
}

// Each test that may be done again exists, and has a cause.
func TestNamedTestsExist(t *testing.T) {
	l, err := readCauses("../../again.txt")
	if err != nil || len(l) == 0 {
		t.Fatal(l, err)
	}
	for f := range l {
		files, err := filepath.Glob(filepath.Join("../../..", f.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(b), "func "+f.test+"(")
		}
		if !found {
			t.Errorf("%s has no test %s", f.pkg, f.test)
		}
	}
}
