package source

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

type never struct{}

func (never) Read([]byte) (int, error) { return 0, nil }

// Only io.EOF itself is an end; every other error is the reader's, as it is.
func TestFillReturnsTheReadersOwnError(t *testing.T) {
	wrapped := fmt.Errorf("cut: %w", io.EOF)
	for name, c := range map[string]struct {
		r    io.Reader
		want error
	}{
		"an end":                  {strings.NewReader("abc"), io.EOF},
		"an end with the last":    {iotest.DataErrReader(strings.NewReader("abc")), io.EOF},
		"bytes one by one":        {iotest.OneByteReader(strings.NewReader("abc")), io.EOF},
		"a cut":                   {io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
		"an error that wraps EOF": {io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(wrapped)), wrapped},
		"nothing for ever":        {io.MultiReader(strings.NewReader("abc"), never{}), io.ErrNoProgress},
	} {
		b := make([]byte, 10)
		if n, err := Fill(c.r, b); n != 3 || string(b[:3]) != "abc" || err != c.want {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if n, err := Fill(strings.NewReader("abcdef"), make([]byte, 3)); n != 3 || err != nil {
		t.Errorf("a full buffer: %d, %v", n, err)
	}
	if n, err := Fill(iotest.ErrReader(errors.New("never asked")), nil); n != 0 || err != nil {
		t.Errorf("no buffer: %d, %v", n, err)
	}
}
