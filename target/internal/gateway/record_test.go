package gateway

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func objects() map[string]interface{ fault() string } {
	return map[string]interface{ fault() string }{
		"record": &Record{Volume: "v", Term: 3, Owner: "a", Process: "p", Addresses: []string{"10.0.0.1:0/1"}, Cause: CauseSilent, Since: time.Unix(1, 0).UTC(),
			Wanted: "b", Moves: 1, Fenced: []Fenced{{Address: "10.0.0.1:0/2", Gateway: "b", Process: "q", Machine: "m", Term: 2, At: time.Unix(2, 0).UTC()}}},
		"member":  &member{Name: "a", Process: "p", Beat: 7, Owns: map[string]uint64{"v": 3}, Sessions: []uint64{1, 1<<53 - 1}, Shut: []string{"10.0.0.1:0/1"}},
		"group":   &members{map[string]uint16{"a": 1, "b": 2}},
		"rules":   &rules{1, "w", []byte("x")},
		"applied": &applied{1, 2},
	}
}

func TestObjectsAreReadAsTheyWereWritten(t *testing.T) {
	for name, o := range objects() {
		back := reflect.New(reflect.TypeOf(o).Elem()).Interface().(interface{ fault() string })
		if err := decode(name, encode(o), back); err != nil || !reflect.DeepEqual(o, back) {
			t.Errorf("%s: %+v, %v", name, back, err)
		}
	}
}

func TestDamagedObjectsAreRefused(t *testing.T) {
	for what, bad := range map[string]string{
		"empty":               ``,
		"a newer field":       `{"volume":"v","term":1,"since":"2026-01-01T00:00:00Z","colour":1}`,
		"something behind it": `{"volume":"v","term":1,"since":"2026-01-01T00:00:00Z"}}`,
		"an owner, unnamed":   `{"volume":"v","term":1,"owner":"a","process":"p","since":"2026-01-01T00:00:00Z"}`,
		"a bad name":          `{"volume":"v/../w","term":1,"since":"2026-01-01T00:00:00Z"}`,
		"a negative term":     `{"volume":"v","term":-1,"since":"2026-01-01T00:00:00Z"}`,
	} {
		if err := decode("volume.v", []byte(bad), &Record{}); err == nil || !strings.Contains(err.Error(), "volume.v") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := decode("group", []byte(`{"gateways":{"a":1,"b":1}}`), &members{}); err == nil {
		t.Error("two gateways with one number")
	}
	for _, name := range []string{"", "a/b", "a b", "ä", strings.Repeat("a", maxName+1), "a\x00"} {
		if CheckName(name) == nil {
			t.Errorf("%q is taken for a name", name)
		}
	}
}

// What lies in RADOS may be anyone's: it is refused, or is in range.
func FuzzObjects(f *testing.F) {
	for _, o := range objects() {
		f.Add(encode(o))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, o := range objects() {
			back := reflect.New(reflect.TypeOf(o).Elem()).Interface().(interface{ fault() string })
			if decode(name, data, back) != nil {
				continue
			}
			again := reflect.New(reflect.TypeOf(o).Elem()).Interface().(interface{ fault() string })
			if err := decode(name, encode(back), again); err != nil {
				t.Errorf("%s: what was read is not read again: %v", name, err)
			}
		}
	})
}
