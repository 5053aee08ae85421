package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// failure is a test that failed.
type failure struct{ pkg, test string }

// causes are the tests that may be done once more, with the reason.
type causes map[failure]string

// readCauses reads lines of package, test and cause; a package is named by its folder. Empty lines and those with # say nothing.
func readCauses(file string) (causes, error) {
	l := causes{}
	if file == "" {
		return l, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for n, line := range strings.Split(string(b), "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		w := strings.SplitN(line, " ", 3)
		if len(w) < 3 || !strings.HasPrefix(w[1], "Test") {
			return nil, fmt.Errorf("%s:%d: want a folder, a test and the cause of its unsteadiness", file, n+1)
		}
		l[failure{w[0], w[1]}] = strings.TrimSpace(w[2])
	}
	return l, nil
}

// of is the cause for which a test may be done again.
func (l causes) of(f failure) string {
	for k, cause := range l {
		if k.test == f.test && strings.HasSuffix(f.pkg, "/"+k.pkg) {
			return cause
		}
	}
	return ""
}

// again does what failed once more, where every failure is of a test with a cause; err is what the first run ended with.
func (c *counter) again(args []string, l causes, err error) error {
	if c.broken || len(c.tests) == 0 || slices.ContainsFunc(c.tests, func(f failure) bool { return l.of(f) == "" }) {
		return err
	}
	for _, f := range c.tests {
		// The packages are the last argument of the command line, the flags before them stay.
		one := append(slices.Clone(args[:len(args)-1]), "-count=1", "-run", "^"+f.test+"$", f.pkg)
		fmt.Printf("again: %s %s, for %s\n", f.pkg, f.test, l.of(f))
		if n, err := goTest(one); err != nil || n.passed == 0 || n.skipped > 0 {
			return fmt.Errorf("%s fails twice", f.test)
		}
		fmt.Printf("UNSTEADY: %s %s failed and then passed: %s\n", f.pkg, f.test, l.of(f))
	}
	c.failed, c.fails = 0, nil
	return nil
}
