// Package api holds rules on what other modules can build on.
package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sluice-storage/sluice"

// public are the directories whose packages other modules import.
var public = []string{"blockdev", "initiator", "mem", "slogcore", "target", "transport"}

// pkg is what go list says of a package.
type pkg struct{ ImportPath, Name, Export string }

// list is every package of the module, and those below them, with the compiler's export data.
func list(t *testing.T) (own []string, exports map[string]string) {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Name,Export"}
	for _, dir := range public {
		args = append(args, module+"/"+dir+"/...")
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = "../../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports = map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return own, exports
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, module+"/") && !internal(p.ImportPath) {
			own = append(own, p.ImportPath)
		}
	}
}

func internal(path string) bool { return slices.Contains(strings.Split(path, "/"), "internal") }

// What is exported names only what another module can import: whoever calls a function can make its arguments, and whoever
// implements an interface can spell its methods.
func TestExportedSignaturesNameNoInternalPackage(t *testing.T) {
	for path, p := range load(t) {
		for _, found := range named(p) {
			t.Errorf("%s.%s", path, found)
		}
	}
}

// numbers are error types that are numbers of a standard, and named as it does.
var numbers = []string{"initiator/nfs.Status", "target/filesystem.Errno"}

// CONTRIBUTING.md has it: error variables are ErrX, error types XError.
func TestErrorsAreNamedAlike(t *testing.T) {
	fault := types.Universe.Lookup("error").Type()
	is := func(t types.Type) bool { return types.Implements(t, fault.Underlying().(*types.Interface)) }
	found := 0
	for path, p := range load(t) {
		for _, name := range p.Scope().Names() {
			o := p.Scope().Lookup(name)
			_, variable := o.(*types.Var)
			n, typ := o.(*types.TypeName)
			switch {
			case !o.Exported() || typ && n.IsAlias() || slices.Contains(numbers, path+"."+name):
			case variable && types.Identical(o.Type(), fault):
				found++
				if !strings.HasPrefix(name, "Err") {
					t.Errorf("%s.%s is an error: Err%s", path, name, name)
				}
			case typ && !types.IsInterface(o.Type()) && is(types.NewPointer(o.Type())):
				found++
				if !strings.HasSuffix(name, "Error") {
					t.Errorf("%s.%s is the type of an error: %sError", path, name, strings.TrimPrefix(name, "Err"))
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d errors were found", found)
	}
}

// load takes the packages that others can import, by their paths in the module.
func load(t *testing.T) map[string]*types.Package {
	t.Helper()
	own, exports := list(t)
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	all := map[string]*types.Package{}
	for _, path := range own {
		p, err := from.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(path, module+"/")] = p
	}
	return all
}

// named lists what a package exports with a type of an internal package in it.
func named(p *types.Package) []string {
	var out []string
	for _, name := range p.Scope().Names() {
		if o := p.Scope().Lookup(name); o.Exported() {
			w := &walk{at: []string{name}, seen: map[types.Type]bool{}}
			w.object(o)
			out = append(out, w.found...)
		}
	}
	return out
}

// walk goes through a type as far as another module sees it.
type walk struct {
	at    []string
	seen  map[types.Type]bool
	found []string
}

func (w *walk) within(name string, f func()) {
	w.at = append(w.at, name)
	f()
	w.at = w.at[:len(w.at)-1]
}

func (w *walk) object(o types.Object) {
	n, ok := o.(*types.TypeName)
	if !ok {
		w.use(o.Type())
		return
	}
	if n.IsAlias() {
		w.use(types.Unalias(n.Type()))
		return
	}
	named := n.Type().(*types.Named)
	w.params(named.TypeParams())
	w.use(named.Underlying())
	for i := range named.NumMethods() {
		if m := named.Method(i); m.Exported() {
			w.within(m.Name(), func() { w.use(m.Type()) })
		}
	}
}

func (w *walk) params(l *types.TypeParamList) {
	for i := range l.Len() {
		w.use(l.At(i).Constraint())
	}
}

// use looks at a type that stands in something exported.
func (w *walk) use(t types.Type) {
	if _, named := t.(*types.Named); !named { // each place that names one is to be told
		if w.seen[t] {
			return
		}
		w.seen[t] = true
	}
	switch t := t.(type) {
	case *types.Alias:
		w.use(types.Unalias(t))
	case *types.Named:
		if o := t.Obj(); o.Pkg() != nil && strings.HasPrefix(o.Pkg().Path(), module) && internal(o.Pkg().Path()) {
			w.found = append(w.found, strings.Join(w.at, ".")+" names "+strings.TrimPrefix(o.Pkg().Path(), module+"/")+"."+o.Name())
		}
		for i := range t.TypeArgs().Len() {
			w.use(t.TypeArgs().At(i))
		}
	case *types.Pointer:
		w.use(t.Elem())
	case *types.Slice:
		w.use(t.Elem())
	case *types.Array:
		w.use(t.Elem())
	case *types.Chan:
		w.use(t.Elem())
	case *types.Map:
		w.use(t.Key())
		w.use(t.Elem())
	case *types.Tuple:
		for v := range t.Variables() {
			w.use(v.Type())
		}
	case *types.Signature:
		w.params(t.TypeParams())
		w.use(t.Params())
		w.use(t.Results())
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				w.within(f.Name(), func() { w.use(f.Type()) })
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			w.within(m.Name(), func() { w.use(m.Type()) }) // an unexported one too: nobody else could implement it
		}
	case *types.Union:
		for i := range t.Len() {
			w.use(t.Term(i).Type())
		}
	}
}
