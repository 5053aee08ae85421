package daemon

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
)

const pageHead = `# Every key of the configuration

` + "`sluiced`" + ` reads one YAML file. ` + "`configs/sluiced.yaml`" + ` is this page in the form of such a file, and ` + "`configs/sluiced.schema.json`" + `
(` + "`sluice config schema`" + `) tells editors of it. A key that is not here is refused with its line. Zero and empty count as left out, except in
` + "`lun`" + `. A relative path begins at the file's directory. ` + "`sluice config diff`" + ` says what a change makes of what is served.
`

// keyPage is docs/configuration.md.
func keyPage(words map[string]prose) []byte {
	b := bytes.NewBufferString(pageHead)
	var simple []key
	for _, k := range keysOf(&Config{}) {
		if elem(k.Type).Kind() != reflect.Struct {
			simple = append(simple, k)
		}
	}
	fmt.Fprint(b, "\n## By themselves\n\n")
	tableHead(b)
	for _, k := range simple {
		tableRow(b, words, "Config", "", k, takesEffect(k))
	}
	for _, k := range keysOf(&Config{}) {
		t := elem(k.Type)
		if t.Kind() != reflect.Struct {
			continue
		}
		fmt.Fprintf(b, "\n## %s\n\n", k.name)
		if text := words["Config."+k.StructField.Name].text(); text != "" {
			fmt.Fprintf(b, "%s\n", escape(text))
		}
		fmt.Fprintf(b, "%s.\n\n", takesEffect(k))
		tableHead(b)
		sectionRows(b, words, t, "", k)
	}
	return b.Bytes()
}

func elem(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

func tableHead(b *bytes.Buffer) {
	fmt.Fprint(b, "| key | without it | may be | |\n| --- | --- | --- | --- |\n")
}

// sectionRows writes a row for each key below one of Config's.
func sectionRows(b *bytes.Buffer, words map[string]prose, t reflect.Type, prefix string, top key) {
	for _, k := range keysIn(reflect.New(t).Elem()) {
		effect := ""
		if k.Tag.Get("reload") == canGrow {
			effect = "A reload takes a larger one"
		}
		tableRow(b, words, t.Name(), prefix, k, effect)
		if in := elem(k.Type); in.Kind() == reflect.Struct {
			name := k.name
			if k.Type.Kind() == reflect.Slice {
				name += "[]"
			}
			sectionRows(b, words, in, prefix+name+".", top)
		}
	}
}

func tableRow(b *bytes.Buffer, words map[string]prose, typ, prefix string, k key, effect string) {
	text := words[typ+"."+k.StructField.Name].text()
	if effect != "" {
		text = strings.TrimSuffix(text, ".") + ". " + effect
	}
	fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", prefix, k.name, escape(k.leftOut()), escape(k.allowed()), escape(text))
}

// leftOut says what counts where the key is left out.
func (k key) leftOut() string {
	switch {
	case k.Tag.Get("required") != "":
		return "must be there"
	case k.Tag.Get("otherwise") != "":
		return k.Tag.Get("otherwise")
	case k.Tag.Get("default") != "":
		return k.Tag.Get("default")
	case elem(k.Type).Kind() == reflect.Struct:
		return "none"
	case k.Type.Kind() == reflect.Bool:
		return "false"
	case k.Type.Kind() == reflect.String || k.Type.Kind() == reflect.Slice:
		return "none"
	}
	return k.text()
}

// allowed says what values the key may have.
func (k key) allowed() string {
	l, _ := k.values()
	low, high := k.Tag.Get("min"), k.Tag.Get("max")
	of := ""
	if name, value, ok := strings.Cut(k.Tag.Get("for"), "="); ok {
		of = " (" + name + " " + value + ")"
	}
	switch {
	case l != nil:
		return strings.Join(l, ", ") + of
	case low != "" && high != "":
		return low + " to " + high + of
	case low != "":
		return low + " and more" + of
	case high != "":
		return "0 to " + high + of
	case k.Tag.Get("length") != "":
		return "up to " + k.Tag.Get("length") + " printable characters" + of
	case k.Tag.Get("form") == "address":
		return "host:port" + of
	case k.Tag.Get("form") == "address or none":
		return "host:port, none" + of
	case k.Tag.Get("form") != "":
		return k.Tag.Get("form") + of
	}
	return kindWord(k.Type) + of
}

func kindWord(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[Duration]():
		return "duration"
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Struct:
		return "section"
	case reflect.Slice:
		return "list"
	case reflect.Bool:
		return "true, false"
	case reflect.String:
		return "text"
	}
	return "number"
}

// takesEffect says what a reload makes of a change of a key of Config's.
func takesEffect(k key) string {
	switch k.Tag.Get("reload") {
	case perItem:
		return "A reload takes every change"
	case perFixedItem:
		return "A reload takes volumes that come and go, and a larger size; for another change remove the volume, reload, and add it again"
	case comesAndGoes:
		return "It comes and goes with a reload; another change takes effect when the daemon starts again"
	case needsRestart:
		return "A change takes effect when the daemon starts again"
	}
	panic("no reload tag: " + k.name)
}

func escape(s string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", `\<`).Replace(s)
}
