package daemon

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What operators read of the configuration is written from the fields that its keys are read into.
func TestDocumentsSayWhatTheFieldsDeclare(t *testing.T) {
	words := readProse(t)
	for path, want := range map[string][]byte{
		"../../configs/sluiced.yaml":        documentedFile(words, false),
		"../../configs/sluiced.schema.json": schemaText(t, words),
		"../../docs/configuration.md":       keyPage(words),
	} {
		if *rewrite {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s does not say what the fields of Config declare; change those and run: go generate ./target/daemon", path)
		}
	}
}

// prose is what a field's comments say: lines above it, and the one behind it.
type prose struct {
	above []string
	side  string
}

func (p prose) text() string {
	return strings.TrimSpace(strings.Join(append(append([]string{}, p.above...), p.side), " "))
}

// readProse has the comments of the fields of this package's types, by "Type.Field".
func readProse(t *testing.T) map[string]prose {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	lines := func(g *ast.CommentGroup) []string {
		if g == nil {
			return nil
		}
		return strings.Split(strings.TrimSuffix(g.Text(), "\n"), "\n")
	}
	words := map[string]prose{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if st, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range st.Fields.List {
				for _, name := range f.Names {
					words[spec.Name.Name+"."+name.Name] = prose{lines(f.Doc), strings.Join(lines(f.Comment), " ")}
				}
			}
		}
		return true
	})
	return words
}

const fileHead = `# sluiced.yaml: every key, with its default and its unit. A key that is not listed here is refused with its line.
# Sizes are bytes or carry KiB, MiB, GiB, TiB; durations look like 500ms, 5s, 2m. Relative paths begin at this file.
`

// document is the documented file while it is written.
type document struct {
	words map[string]prose
	all   bool // keys that the file has as comments are written as if they were none
	told  map[reflect.Type]bool
	lines []documentLine
}

type documentLine struct {
	text, side string
	section    int // lines of one section have their comments in one column
}

// documentedFile is configs/sluiced.yaml.
func documentedFile(words map[string]prose, all bool) []byte {
	d := &document{words: words, all: all, told: map[reflect.Type]bool{}}
	d.section(reflect.TypeFor[Config](), "", "", "")
	width := map[int]int{}
	for _, l := range d.lines {
		if l.side != "" {
			width[l.section] = max(width[l.section], len(l.text))
		}
	}
	b := bytes.NewBufferString(fileHead)
	for _, l := range d.lines {
		if l.side != "" {
			l.text = fmt.Sprintf("%-*s  # %s", width[l.section], l.text, l.side)
		}
		fmt.Fprintln(b, l.text)
	}
	return b.Bytes()
}

// section writes the keys of a section, each line after lead. The first of an item begins with a dash. value is the one that an item
// is an example of.
func (d *document) section(t reflect.Type, lead, dash, value string) {
	section := len(d.lines) + 1
	again := d.told[t]
	d.told[t] = true
	for _, k := range keysIn(reflect.New(t).Elem()) {
		if again && k.Tag.Get("required") == "" { // explained where it stands first
			continue
		}
		if _, of, ok := strings.Cut(k.Tag.Get("for"), "="); ok && value != "" && of != value {
			continue
		}
		w := d.words[t.Name()+"."+k.StructField.Name]
		if t == reflect.TypeFor[Config]() {
			d.lines = append(d.lines, documentLine{})
		}
		in := lead
		if dash != "" {
			in = strings.TrimSuffix(lead, "  ")
		}
		for _, l := range w.aboveOf(k, value) {
			d.lines = append(d.lines, documentLine{text: in + "# " + l})
		}
		if dash != "" {
			in, dash = in+dash, ""
		}
		if k.Tag.Get("file") == "comment" && !d.all {
			in += "# "
		}
		d.key(k, in, w.side, value, section)
	}
}

// aboveOf are the lines above a key; of one that has an example for each value, those about value, which begin with its name.
func (p prose) aboveOf(k key, value string) []string {
	if k.Tag.Get("file") != "each" {
		return p.above
	}
	values, _ := k.values()
	var l []string
	of := ""
	for _, line := range p.above {
		for _, v := range values {
			if rest, ok := strings.CutPrefix(line, v+": "); ok {
				of, line = v, rest
			}
		}
		if of == value {
			l = append(l, line)
		}
	}
	return l
}

func (d *document) key(k key, lead, side, value string, section int) {
	t := k.Type
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	rest := lead
	if i := strings.LastIndex(lead, "- "); i >= 0 && !strings.Contains(lead[i:], "#") {
		rest = lead[:i] + "  " + lead[i+2:]
	}
	switch {
	case t.Kind() == reflect.Struct:
		d.lines = append(d.lines, documentLine{lead + k.name + ":", side, section})
		d.section(t, rest+"  ", "", "")
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		d.lines = append(d.lines, documentLine{lead + k.name + ":", side, section})
		for _, value := range itemValues(t.Elem()) {
			d.told[t.Elem()] = false
			d.section(t.Elem(), rest+"    ", "- ", value)
		}
	case k.Tag.Get("file") == "each":
		d.lines = append(d.lines, documentLine{lead + k.name + ": " + value, side, section})
	default:
		d.lines = append(d.lines, documentLine{lead + k.name + ": " + k.shown(), side, section})
	}
}

// itemValues are the values of which an item of a list is shown each, "" where one item is enough.
func itemValues(t reflect.Type) []string {
	for _, k := range keysIn(reflect.New(t).Elem()) {
		if k.Tag.Get("file") == "each" {
			l, _ := k.values()
			return l
		}
	}
	return []string{""}
}

// shown is the value that the documented file has.
func (k key) shown() string {
	for _, tag := range []string{"example", "default"} {
		if v := k.Tag.Get(tag); v != "" {
			return v
		}
	}
	switch k.value.Kind() {
	case reflect.String:
		return `""`
	case reflect.Slice:
		return "[]"
	}
	return k.text()
}

// A tag that is misspelt would be passed over in silence.
func TestEveryTagOfAKeyIsOneThatSomethingReads(t *testing.T) {
	known := map[string][]string{
		"yaml": nil, "json": nil, "default": nil, "otherwise": nil, "oneof": nil, "min": nil, "max": nil, "length": nil, "required": {"true"}, "for": nil, "example": nil,
		"form": {"path", "address", "address or none", "port"}, "clone": {"same"}, "file": {"comment", "each"},
		"reload": {needsRestart, perItem, perFixedItem, canGrow, comesAndGoes},
	}
	tag := regexp.MustCompile(`([a-z]+):"([^"]*)"`)
	var walk func(reflect.Type)
	walk = func(section reflect.Type) {
		for _, k := range keysIn(reflect.New(section).Elem()) {
			for _, m := range tag.FindAllStringSubmatch(string(k.Tag), -1) {
				if values, ok := known[m[1]]; !ok || values != nil && !slices.Contains(values, m[2]) {
					t.Errorf("%v.%s: nothing reads the tag %s", section, k.StructField.Name, m[0])
				}
			}
			if section == reflect.TypeFor[Config]() && k.Tag.Get("reload") == "" {
				t.Errorf("%s does not say what a reload makes of a change", k.name)
			}
			for _, bound := range []string{"default", "min", "max"} {
				if k.Tag.Get(bound) != "" && k.read(bound).IsZero() {
					t.Errorf("%s: %s is zero, which counts as left out", k.name, bound)
				}
			}
			if in := elem(k.Type); in.Kind() == reflect.Struct {
				walk(in)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
}
