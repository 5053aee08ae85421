package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sluice-storage/sluice/configs"
)

// judge is a validator of other people's with the schema that is handed out.
func judge(t *testing.T) func(text []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(configs.Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("sluiced.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("sluiced.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(text []byte) error {
		j, err := yaml.YAMLToJSON(text)
		if err != nil {
			return err
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(j))
		if err != nil {
			return err
		}
		return s.Validate(v)
	}
}

// What the daemon takes and what it shows, the schema takes: the file that documents every key, also with those keys that it has as
// comments, the other files that come with the program, the examples of the pages, and what "config show" prints.
func TestSchemaTakesWhatTheDaemonTakes(t *testing.T) {
	valid := judge(t)
	files, err := filepath.Glob("testdata/shown/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string][]byte{"the documented file with every key": documentedFile(readProse(t), true)}
	for _, f := range append(files, "default.yaml", "../../configs/sluiced.yaml", "../../configs/files.yaml") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[f] = b
	}
	for name, text := range examples(t) {
		texts[name] = text
	}
	for name, text := range texts {
		c, err := parse(name, text)
		if err != nil {
			t.Errorf("%s: the daemon refuses it: %v", name, err)
			continue
		}
		if err := valid(text); err != nil && !saysNothing(text) {
			t.Errorf("%s: %v in\n%s", name, err, text)
		}
		if c, err = c.finish(name, text, nil); err != nil {
			continue // an example that is a part of a file
		}
		shown, err := c.Show()
		if err != nil {
			t.Fatal(err)
		}
		if err := valid(shown); err != nil {
			t.Errorf("%s, as it is shown: %v in\n%s", name, err, shown)
		}
	}
}

// examples are the configurations that the pages show.
func examples(t *testing.T) map[string][]byte {
	t.Helper()
	var keys []string
	for _, k := range keysOf(&Config{}) {
		keys = append(keys, k.name)
	}
	begins := regexp.MustCompile(`^ {4}(` + strings.Join(keys, "|") + `):`)
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(b), "\n\n") {
			if begins.MatchString(block) {
				found[fmt.Sprintf("%s, paragraph %d", filepath.Base(page), i)] = []byte(regexp.MustCompile(`(?m)^ {4}`).ReplaceAllString(block, "") + "\n")
			}
		}
	}
	if len(found) < 5 {
		t.Errorf("only %d examples were found", len(found))
	}
	return found
}

// What the schema can know, it refuses as the daemon does.
func TestSchemaRefusesWhatTheDaemonRefuses(t *testing.T) {
	valid := judge(t)
	for _, name := range []string{
		"unknown-key", "unknown-top-key", "fabric-key", "wrong-type", "bad-engine", "bad-block", "bad-size", "bad-duration", "bad-alua", "log-level", "log-format", "too-many-connections",
		"high-lun", "long-serial", "long-vendor", "long-product", "volume-without-name", "auth-without-file", "group-state", "portal-group", "fabric-crc", "fabric-exposure", "fabric-unknown", "fabric-port",
		"files-rpcbind", "export-squash", "negative-memory", "negative-connections", "negative-iops", "too-many-iops", "negative-bandwidth",
	} {
		b, err := os.ReadFile(filepath.Join("testdata/wrong", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if valid(b) == nil {
			t.Errorf("the schema takes %s.yaml", name)
		}
	}
}

// Schema is the JSON schema (2020-12) of the configuration file. It takes what the daemon's reader takes, and cannot know the rules
// about several keys.
func Schema() map[string]any { return schemaWith(nil) }

func schemaWith(words map[string]prose) map[string]any {
	s := schemaOf(reflect.TypeFor[Config](), words)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "sluiced configuration"
	return s
}

func schemaText(t *testing.T, words map[string]prose) []byte {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(schemaWith(words)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func schemaOf(t reflect.Type, words map[string]prose) map[string]any {
	switch t {
	case reflect.TypeFor[Size]():
		return map[string]any{"type": []any{"integer", "string"}, "minimum": 0, "pattern": `^[0-9]+(\.[0-9]+)? *([KMGTkmgt]i?[Bb]?|[Bb])?$`}
	case reflect.TypeFor[Duration]():
		return map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}
	case reflect.TypeFor[FabricConfig](): // one provider, or a list of them
		s := schemaOf(t.Elem(), words)
		s["items"], s["type"] = schemaOf(t.Elem(), words), []any{"array", "object"}
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		s := schemaOf(t.Elem(), words)
		s["type"] = []any{s["type"], "null"}
		return s
	case reflect.Struct:
		props, required := map[string]any{}, []any{}
		for _, k := range keysIn(reflect.New(t).Elem()) {
			props[k.name] = k.schema(words, words[t.Name()+"."+k.StructField.Name].text())
			if k.Tag.Get("required") != "" {
				required = append(required, k.name)
			}
		}
		s := map[string]any{"type": "object", "properties": props, "additionalProperties": false}
		if len(required) > 0 {
			s["required"] = required
		}
		return s
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), words)}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint16:
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 65535}
	case reflect.Uint32:
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 4294967295}
	}
	panic(fmt.Sprintf("daemon: configuration type %v has no schema", t))
}

// schema is what one key may be. Zero and empty are left out, and so always right.
func (k key) schema(words map[string]prose, text string) map[string]any {
	s := schemaOf(k.Type, words)
	if text != "" {
		s["description"] = text
	}
	if l, _ := k.values(); l != nil {
		values := []any{k.value.Interface()}
		for _, v := range l {
			one := reflect.New(k.Type)
			if err := yaml.Unmarshal([]byte(v), one.Interface()); err != nil {
				panic(err)
			}
			values = append(values, one.Elem().Interface())
		}
		s["enum"] = values
	}
	if k.Tag.Get("default") != "" {
		s["default"] = k.read("default").Interface()
	}
	if _, sized := reflect.New(k.Type).Interface().(*Size); !sized {
		if k.Tag.Get("form") == "port" {
			s["minimum"], s["maximum"] = 0, 65535
		}
		if k.Tag.Get("min") != "" {
			s["minimum"] = 0
		}
		if k.Tag.Get("max") != "" {
			s["maximum"] = k.bound("max")
		}
	}
	if n := k.Tag.Get("length"); n != "" {
		s["maxLength"] = json.Number(n)
	}
	return s
}
