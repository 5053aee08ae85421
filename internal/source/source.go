// Package source reads what a program gives as an io.Reader to be stored.
package source

import "io"

// maxEmpty is how often a reader may give nothing and no error, as bufio has it.
const maxEmpty = 100

// Fill reads until p is full or r has an error, which it returns as it is: r has ended where that is io.EOF itself. io.ReadFull's
// own io.ErrUnexpectedEOF for a short read could not be told from that of a source which breaks off, such as the body of an HTTP
// response. A reader that goes on to give nothing is io.ErrNoProgress.
func Fill(r io.Reader, p []byte) (n int, err error) {
	for empty := 0; n < len(p) && err == nil; {
		var k int
		if k, err = r.Read(p[n:]); k == 0 && err == nil {
			if empty++; empty == maxEmpty {
				return n, io.ErrNoProgress
			}
			continue
		}
		n, empty = n+k, 0
	}
	return n, err
}
