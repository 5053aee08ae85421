package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// What counts where a key is left out, and where a relative path begins, must not change by accident.
func TestShowHasEveryDefault(t *testing.T) {
	files, err := filepath.Glob("testdata/shown/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d configurations found, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			c, err := parse("/etc/sluice/sluiced.yaml", b)
			if err != nil {
				t.Fatal(err)
			}
			if c.StateDir == "" {
				c.StateDir = "/var/lib/sluice" // whoever runs the test
			}
			if c, err = c.finish("/etc/sluice/sluiced.yaml", b, nil); err != nil {
				t.Fatal(err)
			}
			shown, err := c.Show()
			if err != nil {
				t.Fatal(err)
			}
			asJSON, err := json.MarshalIndent(c, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			base := strings.TrimSuffix(f, ".yaml")
			for golden, got := range map[string][]byte{base + ".show": shown, base + ".json": append(asJSON, '\n')} {
				if *rewrite {
					if err := os.WriteFile(golden, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				var x, y any
				if err := yaml.NewDecoder(bytes.NewReader(got)).Decode(&x); err != nil {
					t.Fatal(err)
				}
				if err := yaml.NewDecoder(bytes.NewReader(want)).Decode(&y); err != nil {
					t.Fatal(err)
				}
				if where := differs(x, y, ""); where != "" {
					t.Errorf("%s: %s differs: shown\n%s\nwant\n%s", golden, where, got, want)
				}
			}
		})
	}
}

// differs is a place where got has not what want has, "" for none. Keys that want has not are new, and pass.
func differs(got, want any, at string) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		for k, v := range w {
			if _, there := g[k]; !ok || !there {
				return at + "." + k
			}
			if where := differs(g[k], v, at+"."+k); where != "" {
				return where
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return at
		}
		for i, v := range w {
			if where := differs(g[i], v, fmt.Sprintf("%s[%d]", at, i)); where != "" {
				return where
			}
		}
		return ""
	}
	if !reflect.DeepEqual(got, want) {
		return at
	}
	return ""
}

// Every key at the top of the file is one kind of change, and the list says whether a reload takes it.
func TestDiffSaysOfEachKeyWhetherAReloadTakesIt(t *testing.T) {
	read := func(text string) *Config {
		t.Helper()
		c, err := ParseConfig("/etc/sluice/sluiced.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	b, err := os.ReadFile("testdata/shown/much.yaml")
	if err != nil {
		t.Fatal(err)
	}
	none, much := read("memory: 256MiB"), read(string(b))
	told := func(a, b *Config) string {
		var l []string
		for _, c := range a.Diff(b) {
			when := "reload"
			if c.Restart {
				when = "restart"
			}
			l = append(l, strings.Join([]string{c.Kind, c.Name, c.What, when}, " "))
		}
		return strings.Join(l, "\n")
	}
	settings := `setting state_dir changed restart
setting log changed restart
setting memory changed restart
setting fabric changed restart
setting timeouts changed restart
setting limits changed restart
setting admin changed restart
setting discovery_auth changed restart
setting isns changed restart
setting files `
	want := `volume a WHAT reload
volume d WHAT reload
target iqn.2026-11.io.sluice:a WHAT reload
portal 127.0.0.1:3260 WHAT reload
export /srv WHAT reload
` + settings + "WHAT reload"
	for what, got := range map[string]string{"added": told(none, much), "removed": told(much, none)} {
		if want := strings.ReplaceAll(want, "WHAT", what); got != want {
			t.Errorf("what is %s:\n%s\nwant\n%s", what, got, want)
		}
	}
	other := read("exports: [{name: /srv, path: /srv}]\nfiles: {tcp: \"127.0.0.1:2049\"}")
	if got, want := told(much, other), "setting files changed restart"; !strings.HasSuffix(got, want) || !strings.Contains(got, "export /srv changed reload") {
		t.Errorf("of another address of files and other clients:\n%s", got)
	}
}
