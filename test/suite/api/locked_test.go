package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// heldLock is how a doc comment says that a function wants a lock: "mu is held", "The session's lock is held", "sq is held".
var heldLock = regexp.MustCompile(`(?:^|[^o] |[^N]o )(?:lock|\w*\.?\w*[mM]u|build|sq|rq) is held\b`)

// wants reports whether a function says that it wants a lock, and its name does not: ...Locked wants it, and ...AndUnlock frees it as well.
func wants(f *ast.FuncDecl) bool {
	name := f.Name.Name
	if strings.HasSuffix(name, "Locked") || strings.HasSuffix(name, "AndUnlock") || strings.HasPrefix(name, "Test") {
		return false
	}
	return f.Doc != nil && heldLock.MatchString(strings.Join(strings.Fields(f.Doc.Text()), " "))
}

// A function that wants a lock held says so in its name, where its callers see it.
func TestWhatWantsALockIsNamedSo(t *testing.T) {
	const root = "../../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, is := decl.(*ast.FuncDecl); is && wants(f) {
				t.Errorf("%s: %s wants a lock held: call it %sLocked", strings.TrimPrefix(path, root+"/"), f.Name.Name, f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What the rule finds, and what it passes by.
func TestHeldLocksAreFound(t *testing.T) {
	for doc, want := range map[string]bool{
		"f does it; d.mu is held.":                         true,
		"f does it; pollMu is held. It says so.":           true,
		"f does it. The session's lock is held.":           true,
		"f takes what the manager has, whose lock is held": true,
		"f posts; sq is held.":                             true,
		"f waits. No lock is held.":                        false,
		"f closes a peer while its memory is held.":        false,
		"f takes a lock that is held until the end.":       false,
	} {
		f := &ast.FuncDecl{Name: ast.NewIdent("f"), Doc: &ast.CommentGroup{List: []*ast.Comment{{Text: "// " + doc}}}}
		if got := wants(f); got != want {
			t.Errorf("%q: found %v", doc, got)
		}
		f.Name.Name = "fLocked"
		if wants(f) {
			t.Errorf("%q: found although its name says so", doc)
		}
	}
}
