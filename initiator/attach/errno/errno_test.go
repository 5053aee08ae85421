package errno

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
)

var wants = map[string]struct {
	err error
	no  unix.Errno
}{
	"blockdev.ErrReadOnly":    {blockdev.ErrReadOnly, unix.EROFS},
	"blockdev.ErrNoSpace":     {blockdev.ErrNoSpace, unix.ENOSPC},
	"blockdev.ErrUnsupported": {blockdev.ErrUnsupported, unix.EOPNOTSUPP},
	"blockdev.ErrRange":       {blockdev.ErrRange, unix.EIO},
	"blockdev.ErrMiscompare":  {blockdev.ErrMiscompare, unix.EIO},
	"blockdev.ErrClosed":      {blockdev.ErrClosed, unix.EIO},
	"blockdev.ErrMedium":      {blockdev.ErrMedium, unix.EIO},
	"blockdev.ErrBusy":        {blockdev.ErrBusy, unix.EIO},
	"blockdev.ErrAway":        {blockdev.ErrAway, unix.EIO},
	"blockdev.ErrFenced":      {blockdev.ErrFenced, unix.EIO},
	"block.ErrReserved":       {block.ErrReserved, unix.EBADE},
	"block.ErrTimeout":        {block.ErrTimeout, unix.EIO},
	"block.ErrOtherUnit":      {block.ErrOtherUnit, unix.EIO},
	"block.ErrPowerLost":      {block.ErrPowerLost, unix.EIO},
	"block.ErrCancelled":      {block.ErrCancelled, unix.EIO},
	"block.ErrOutcomeUnknown": {block.ErrOutcomeUnknown, unix.EIO},
	"block.ErrUnsettled":      {block.ErrUnsettled, unix.EIO},
	"block.ErrNoPath":         {block.ErrNoPath, unix.EIO},
	"block.ErrBadRequest":     {block.ErrBadRequest, unix.EIO},
	"block.ErrBusy":           {block.ErrBusy, unix.EIO},
	"block.ErrAuth":           {block.ErrAuth, unix.EIO},
	"block.ErrDenied":         {block.ErrDenied, unix.EIO},
	"block.ErrNoTarget":       {block.ErrNoTarget, unix.EIO},
	"block.ErrNoUnit":         {block.ErrNoUnit, unix.EIO},
}

func TestAnErrorHasOneNumberForAllFaces(t *testing.T) {
	check := func(err error, want unix.Errno) {
		t.Helper()
		if got := Of(err); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
		if err != nil && Of(fmt.Errorf("somewhere: %w", err)) != want {
			t.Errorf("%v is not found in another", err)
		}
	}
	for _, w := range wants {
		check(w.err, w.no)
		listed := false
		for _, row := range table {
			listed = listed || row.err == w.err
		}
		if !listed {
			t.Errorf("%v is not in the table", w.err)
		}
	}
	check(nil, 0)
	check(context.Canceled, unix.EINTR)
	check(unix.EINVAL, unix.EINVAL)
	check(fmt.Errorf("something else"), unix.EIO)
}

// An error that is added to one of the packages gets its number here.
func TestEveryErrorHasANumber(t *testing.T) {
	found := 0
	for pkg, dir := range map[string]string{"blockdev": "../../../blockdev", "block": "../../block"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if _, inside := n.(*ast.FuncDecl); inside {
					return false
				}
				if v, is := n.(*ast.ValueSpec); is {
					for _, id := range v.Names {
						if strings.HasPrefix(id.Name, "Err") {
							found++
							if _, ok := wants[pkg+"."+id.Name]; !ok {
								t.Errorf("%s.%s is not in the table", pkg, id.Name)
							}
						}
					}
				}
				return true
			})
		}
	}
	if found != len(wants) {
		t.Errorf("%d errors, and %d in the table", found, len(wants))
	}
}
