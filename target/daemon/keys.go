package daemon

import (
	"encoding"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/sluice-storage/sluice/transport/fabric"
)

// key is one key of the configuration file, as the field that it is read into declares it. The tags, of which most keys have few:
//
//	yaml      its name
//	default   the value that counts where the key is left out, or is zero or empty
//	otherwise the same in words for the documents, where the default is computed (load.go) or another package's
//	oneof     what it may be: values, or the name of a list in valueLists
//	min, max  its bounds, both allowed
//	length    how many printable characters it may have
//	form      path (which begins at the file's directory), address (host:port), address or none, port
//	required  in every item of its list
//	for       "engine=file": it has a meaning, and its default counts, where the key beside it has that value
//	reload    what becomes of a change, see below
//	clone     same: a clone of a volume has its origin's
//	example   the value in the documented file, where that is not the default
//	file      comment: the documented file has it as a comment; each: with an item for each value
type key struct {
	reflect.StructField
	name  string
	value reflect.Value
}

// What a reload makes of a change.
const (
	needsRestart = "restart"     // nothing until the daemon starts again
	perItem      = "items"       // items come, go and change while the daemon serves
	perFixedItem = "fixed items" // items come and go; of one that stays only keys that say "grow" change
	canGrow      = "grow"        // such a key: to a larger value
	comesAndGoes = "presence"    // the key comes and goes while the daemon serves, and a change in it needs a restart
)

// valueLists are the values of keys that another part of the program has a list of.
var valueLists = map[string][]string{"engines": engineNames(), "providers": fabric.Providers, "exposures": fabric.Exposures}

// keysOf lists the keys of a section, which v is or points to.
func keysOf(v any) []key { return keysIn(reflect.Indirect(reflect.ValueOf(v))) }

func keysIn(section reflect.Value) []key {
	var l []key
	for i := range section.NumField() {
		f := section.Type().Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name != "" {
			l = append(l, key{f, name, section.Field(i)})
		}
	}
	return l
}

// isList reports whether the key has items that have names.
func (k key) isList() bool {
	r := k.Tag.Get("reload")
	return r == perItem || r == perFixedItem
}

// values are those that the key may have, nil for any. short says that they are two by nature and no list that grows.
func (k key) values() (l []string, short bool) {
	tag := k.Tag.Get("oneof")
	if tag == "" {
		return nil, false
	}
	if l, ok := valueLists[tag]; ok {
		return l, false
	}
	l = strings.Split(tag, ",")
	return l, len(l) == 2
}

// counts reports whether the key has a meaning beside the others of its section.
func (k key) counts(section reflect.Value) bool {
	name, value, ok := strings.Cut(k.Tag.Get("for"), "=")
	return !ok || slices.ContainsFunc(keysIn(section), func(o key) bool { return o.name == name && o.value.String() == value })
}

// read is a value of the key's type from a tag, which is read as the file is.
func (k key) read(tag string) reflect.Value {
	v := reflect.New(k.Type)
	if err := yaml.Unmarshal([]byte(k.Tag.Get(tag)), v.Interface()); err != nil {
		panic(fmt.Sprintf("daemon: configuration key %s: %s: %v", k.name, tag, err))
	}
	return v.Elem()
}

// eachSection calls f for v, where that is a section, and for all sections that are there below it.
func eachSection(v reflect.Value, f func(section reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			eachSection(v.Elem(), f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachSection(v.Index(i), f)
		}
	case reflect.Struct:
		f(v)
		for _, k := range keysIn(v) {
			eachSection(k.value, f)
		}
	}
}

// fillDefaults gives every key that was left out its default.
func (c *Config) fillDefaults() {
	eachSection(reflect.ValueOf(c), func(section reflect.Value) {
		for _, k := range keysIn(section) {
			if k.value.IsZero() && k.Tag.Get("default") != "" && k.counts(section) {
				k.value.Set(k.read("default"))
			}
		}
	})
}

// keep gives each key that needs a restart the value that a daemon that serves now has for it.
func (c *Config) keep(now *Config) {
	was := keysOf(now)
	for i, k := range keysOf(c) {
		r := k.Tag.Get("reload")
		if r == needsRestart || r == comesAndGoes && !k.value.IsZero() && !was[i].value.IsZero() {
			k.value.Set(was[i].value)
		}
	}
}

// makeAbsolute lets every path begin at dir. One that names a credential is none.
func (c *Config) makeAbsolute(dir string) {
	eachSection(reflect.ValueOf(c), func(section reflect.Value) {
		for _, k := range keysIn(section) {
			if p := k.value; k.Tag.Get("form") == "path" && p.String() != "" && !strings.HasPrefix(p.String(), credential) {
				p.SetString(absolute(dir, p.String()))
			}
		}
	})
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// checkKeys checks the keys of a section, and of those sections in it that are no lists, against what their fields declare. A zero or
// empty value is a key that was left out, which those that are required may not be. who stands before the key in what is said ("volume data: "), path before it in the file.
func checkKeys(section any, who string, path func(key string) string) error {
	v := reflect.Indirect(reflect.ValueOf(section))
	for _, k := range keysIn(v) {
		if k.value.IsZero() && k.Tag.Get("required") == "" {
			continue
		}
		in := reflect.Indirect(k.value)
		if in.Kind() == reflect.Struct {
			if err := checkKeys(in.Interface(), who+k.name+".", func(key string) string { return path(k.name) + "." + key }); err != nil {
				return err
			}
			continue
		}
		if err := k.check(who); err != nil {
			return &placeError{path(k.name), err}
		}
		if k.value.IsZero() {
			return &placeError{strings.TrimSuffix(path(""), "."), fmt.Errorf("%s%s is missing", who, k.name)}
		}
	}
	return nil
}

// below makes paths of the keys of a section.
func below(path string) func(key string) string {
	return func(key string) string { return path + "." + key }
}

// check says what is wrong with the value of a key that was not left out.
func (k key) check(who string) error {
	if l, two := k.values(); l != nil && !slices.Contains(l, k.text()) {
		if two {
			return fmt.Errorf("%s%s %s is neither %s nor %s", who, k.name, k.quoted(), l[0], l[1])
		}
		return fmt.Errorf("%s%s %s is none of %s", who, k.name, k.quoted(), strings.Join(l, ", "))
	}
	if err := k.checkBounds(who); err != nil {
		return err
	}
	if n, err := strconv.Atoi(k.Tag.Get("length")); err == nil && !printable(k.text(), n) {
		return fmt.Errorf("%sa %s has %d printable characters at most", who, k.name, n)
	}
	switch form := k.Tag.Get("form"); {
	case form == "address" && !listens(k.text()):
		_, port, _ := net.SplitHostPort(k.Tag.Get("example"))
		return fmt.Errorf("%s%s %s is not host:port (IPv6 as [::1]:%s)", who, k.name, k.quoted(), port)
	case form == "address or none" && k.text() != "none" && !listens(k.text()):
		return fmt.Errorf("%s%s %s is neither host:port nor none", who, k.name, k.quoted())
	case form == "port" && (k.number() < 1 || k.number() > 65535):
		return fmt.Errorf("%s%s: %s is no port from 1 to 65535", who, k.name, k.text())
	}
	return nil
}

func (k key) checkBounds(who string) error {
	low, high := k.Tag.Get("min"), k.Tag.Get("max")
	switch {
	case low != "" && high != "" && (k.number() < k.bound("min") || k.number() > k.bound("max")):
		return fmt.Errorf("%s%s %s is not from %s to %s", who, k.name, k.text(), low, high)
	case low != "" && k.number() < k.bound("min"):
		return fmt.Errorf("%s%s %s is too little: %s at least", who, k.name, k.text(), low)
	case high != "" && k.number() > k.bound("max"):
		return fmt.Errorf("%s%s %s is above %s", who, k.name, k.text(), high)
	}
	return nil
}

func (k key) number() int64          { return number(k.value) }
func (k key) bound(tag string) int64 { return number(k.read(tag)) }

func number(v reflect.Value) int64 {
	if v.CanUint() {
		return int64(v.Uint())
	}
	return v.Int()
}

// text is the value as the file has it.
func (k key) text() string {
	if t, ok := k.value.Interface().(encoding.TextMarshaler); ok {
		if b, err := t.MarshalText(); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(k.value.Interface())
}

func (k key) quoted() string {
	if k.value.Kind() == reflect.String {
		return fmt.Sprintf("%q", k.text())
	}
	return k.text()
}
