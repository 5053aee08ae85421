package nfs_test

import (
	"reflect"
	"strings"
	"testing"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/nfs/gonfs"
	"github.com/sluice-storage/sluice/initiator/rpcclient"
)

// What a program of others cannot import it cannot name, hold in a field or implement.
func TestWhatIsExportedNamesNothingInternal(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(at string, x reflect.Type)
	walk = func(at string, x reflect.Type) {
		if seen[x] {
			return
		}
		seen[x] = true
		if strings.Contains(x.PkgPath(), "/internal/") {
			t.Errorf("%s is of type %s", at, x)
			return
		}
		switch x.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan, reflect.Map:
			walk(at, x.Elem())
			if x.Kind() == reflect.Map {
				walk(at, x.Key())
			}
		case reflect.Func:
			for i := range x.NumIn() {
				walk(at, x.In(i))
			}
			for i := range x.NumOut() {
				walk(at, x.Out(i))
			}
		}
		if !strings.Contains(x.PkgPath(), "/sluice/initiator/") && x.Kind() != reflect.Pointer {
			return // another package's to keep
		}
		if x.Kind() == reflect.Struct {
			for _, f := range reflect.VisibleFields(x) {
				if f.IsExported() {
					walk(x.String()+"."+f.Name, f.Type)
				}
			}
			walk(at, reflect.PointerTo(x))
		}
		for i := range x.NumMethod() {
			if m := x.Method(i); m.IsExported() {
				walk(x.String()+"."+m.Name, m.Type)
			}
		}
	}
	for _, x := range []any{
		infs.Open, infs.Mount, infs.Connect, infs.ParseURL, infs.SameFile, infs.ErrStale, infs.Error{}, infs.MountError{}, infs.RPCError{}, infs.LockError{}, infs.NameError{},
		infs.Identity{}, gonfs.Open, gonfs.DialMount, rpcclient.NewClient, rpcclient.NewRDMA, rpcclient.TCP, rpcclient.Stream,
	} {
		walk("what the package exports", reflect.TypeOf(x))
	}
	for _, x := range []any{infs.FS{}, infs.File{}, infs.Caller{}, infs.Attr{}, infs.DirEntry{}, rpcclient.Call{}, gonfs.File{}} {
		if !seen[reflect.TypeOf(x)] {
			t.Errorf("%T was not reached: the test does not look where it should", x)
		}
	}
}
