package daemon

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden messages again")

// Each wrong file has the message it gives beside it: what an operator reads must not change by accident.
func TestWrongConfigurationsSayWhatIsWrong(t *testing.T) {
	files, err := filepath.Glob("testdata/wrong/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d wrong configurations found, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			_, err = ParseConfig("/etc/sluice/sluiced.yaml", b)
			if err == nil {
				t.Fatal("it was taken")
			}
			golden := strings.TrimSuffix(f, ".yaml") + ".golden"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, rerr := os.ReadFile(golden)
			if rerr != nil {
				t.Fatal(rerr)
			}
			if got := err.Error() + "\n"; got != string(want) {
				t.Errorf("message\n%swant\n%s", got, want)
			}
		})
	}
}

func TestDocumentedFileIsTaken(t *testing.T) {
	c, err := LoadConfig("../../configs/sluiced.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Volumes) != 1 || c.Volumes[0].Size != 10<<30 || len(c.Portals) != 1 {
		t.Errorf("read %+v", c)
	}
}

// Every key of the file's types stands in the documented example, commented out or not.
func TestDocumentedFileNamesEveryKey(t *testing.T) {
	b, err := os.ReadFile("../../configs/sluiced.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var walk func(schema map[string]any)
	walk = func(schema map[string]any) {
		if items, ok := schema["items"].(map[string]any); ok {
			walk(items)
		}
		props, _ := schema["properties"].(map[string]any)
		for key, sub := range props {
			if !strings.Contains(string(b), key+":") {
				t.Errorf("configs/sluiced.yaml does not explain %q", key)
			}
			walk(sub.(map[string]any))
		}
	}
	walk(Schema())
}

func TestShowIsReadBack(t *testing.T) {
	for _, path := range []string{"", "../../configs/sluiced.yaml"} {
		c, err := Load(path, "/state", "")
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.Show()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseConfig("/x/again.yaml", b)
		if err != nil {
			t.Fatalf("%v in\n%s", err, b)
		}
		if ch := c.Diff(again); len(ch) != 0 {
			t.Errorf("reading back what is shown changes %v", ch)
		}
	}
}

func TestDiffNamesWhatChanges(t *testing.T) {
	a, err := ParseConfig("/x/a.yaml", []byte(`volumes: [{name: a, size: 1GiB}, {name: b, size: 1GiB}]`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseConfig("/x/b.yaml", []byte("memory: 1GiB\nvolumes: [{name: b, size: 2GiB}, {name: c, size: 1GiB}]"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(a.Diff(b))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"kind":"volume","name":"b","what":"changed","restart":false},{"kind":"volume","name":"c","what":"added","restart":false},` +
		`{"kind":"volume","name":"a","what":"removed","restart":false},{"kind":"setting","name":"memory","what":"changed","restart":true}]`
	if string(got) != want {
		t.Errorf("diff %s\nwant %s", got, want)
	}
}

func TestSecretsFileOthersCanRead(t *testing.T) {
	f := filepath.Join(t.TempDir(), "secrets")
	if err := os.WriteFile(f, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := statSecret(f); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("mode 0640: %v", err)
	}
	if err := os.Chmod(f, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := statSecret(f); err != nil {
		t.Errorf("mode 0600: %v", err)
	}
}

func TestSizeReadsWhatItWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Size(rapid.Int64Range(0, 1<<60).Draw(t, "size"))
		n, err := ParseSize(s.String())
		if err != nil || n != int64(s) {
			t.Fatalf("%v is read as %d, %v", s, n, err)
		}
	})
	for in, want := range map[string]int64{"1.5GiB": 3 << 29, "64K": 65536, "10 MiB": 10 << 20, "7": 7} {
		if n, err := ParseSize(in); err != nil || n != want {
			t.Errorf("%q is %d, %v", in, n, err)
		}
	}
	for _, in := range []string{"", "x", "-1", "1e3", "99999999TiB", "1PiB"} {
		if n, err := ParseSize(in); err == nil {
			t.Errorf("%q is taken as %d", in, n)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add(defaultYAML)
	files, _ := filepath.Glob("testdata/wrong/*.yaml")
	for _, name := range append(files, "../../configs/sluiced.yaml") {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseConfig("/x/f.yaml", b)
		if err != nil {
			return
		}
		if _, err := yaml.Marshal(c); err != nil {
			t.Fatalf("what was taken cannot be shown: %v", err)
		}
	})
}

// Drop-ins are found wherever the configuration lies: a directory's name is no pattern.
func TestDropInsAreFoundInADirectoryThatIsNamedLikeAPattern(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conf[1]", "sluiced.yaml")
	if err := os.MkdirAll(file+".d", 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{file: "volumes: [{name: a, size: 1MiB}]\n", filepath.Join(file+".d", "more.yaml"): "volumes: [{name: b, size: 1MiB}]\n", filepath.Join(file+".d", "notes.txt"): "{"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Volumes) != 2 {
		t.Errorf("%d volumes", len(c.Volumes))
	}
}
