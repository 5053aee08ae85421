package nfs_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
)

// What a server forgot still belongs to the file of the client that keeps it.
func TestAFileEndsWhereItsOwnWritesEndAlsoWhenTheServerForgotThem(t *testing.T) {
	durable, forgotten := []byte("durable "), bytes.Repeat([]byte("forgotten "), 10)
	whole := append(bytes.Clone(durable), forgotten...)
	for what, see := range map[string]func(t *testing.T, f *infs.File) (more string){
		"Write of O_APPEND": func(t *testing.T, f *infs.File) string {
			_, err := f.Write([]byte("next"))
			must(t, err)
			return "next"
		},
		"ReadFrom of O_APPEND": func(t *testing.T, f *infs.File) string {
			_, err := f.ReadFrom(bytes.NewReader([]byte("next")))
			must(t, err)
			return "next"
		},
		"Seek": func(t *testing.T, f *infs.File) string {
			at, err := f.Seek(-3, io.SeekEnd)
			if must(t, err); at != int64(len(whole))-3 {
				t.Errorf("3 before the end is %d", at)
			}
			return ""
		},
		"Stat": func(t *testing.T, f *infs.File) string {
			i, err := f.Stat()
			if must(t, err); i.Size() != int64(len(whole)) {
				t.Errorf("it has %d bytes", i.Size())
			}
			return ""
		},
		"ReadAt": func(t *testing.T, f *infs.File) string {
			b := make([]byte, len(whole)+1)
			n, err := f.ReadAt(b, 0)
			if !errors.Is(err, io.EOF) || !bytes.Equal(b[:n], whole) {
				t.Errorf("%q, %v", b[:n], err)
			}
			return ""
		},
	} {
		t.Run(what, func(t *testing.T) {
			l := newLives(t)
			f, err := l.mount().OpenFile(t.Context(), "log", os.O_CREATE|os.O_APPEND, 0o600)
			must(t, err)
			_, err = f.Write(durable)
			must(t, err)
			must(t, f.Sync())
			_, err = f.Write(forgotten)
			must(t, err)
			l.powerCut()
			if i, err := os.Stat(filepath.Join(l.dir, "log")); err != nil || i.Size() != int64(len(durable)) {
				t.Fatalf("the server forgot nothing: %v, %v", i, err)
			}
			more := see(t, f)
			must(t, f.Sync())
			b, err := os.ReadFile(filepath.Join(l.dir, "log"))
			if must(t, err); string(b) != string(whole)+more {
				t.Errorf("the server has %q", b)
			}
		})
	}
}

// A file that another client cut ends where it was cut: what this client wrote before does not make it longer.
func TestAFileThatAnotherClientCutEndsThere(t *testing.T) {
	l := newLives(t)
	f, err := l.mount().OpenFile(t.Context(), "log", os.O_CREATE|os.O_APPEND, 0o600)
	must(t, err)
	_, err = f.Write([]byte("before the cut"))
	must(t, err)
	must(t, l.mount().Truncate(t.Context(), "log", 0))
	_, err = f.Write([]byte("after"))
	must(t, err)
	must(t, f.Sync())
	if b, err := os.ReadFile(filepath.Join(l.dir, "log")); err != nil || string(b) != "after" {
		t.Errorf("%q, %v", b, err)
	}
}
