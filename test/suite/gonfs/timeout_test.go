package gonfs_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/nfs/gonfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

func TestATimeoutEndsEachMethodOfAFileWhoseServerIsAway(t *testing.T) {
	files := stand.NewFiles(t, stand.FileOptions{}, nfs.Export{Path: "/data", Dir: t.TempDir(), Async: true, Rights: stand.Everyone})
	_, url := files.TCP("127.0.0.1:0")
	v, err := gonfs.Open(t.Context(), url, infs.Options{})
	must(t, err)
	f, err := v.OpenFile("f", 0o600)
	must(t, err)
	files.Stop()
	v.SetTimeout(10 * time.Millisecond)
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"Read", func() error { _, err := f.Read(make([]byte, 1)); return err }},
		{"WriteTo", func() error { _, err := f.WriteTo(io.Discard); return err }},
		{"Seek", func() error { _, err := f.Seek(0, io.SeekEnd); return err }},
		{"Write", func() error { _, err := f.Write([]byte("text")); return err }},
		{"ReadFrom", func() error { _, err := f.ReadFrom(strings.NewReader("text")); return err }},
	} {
		ended := make(chan error, 1)
		go func() { ended <- c.do() }()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", c.what, err)
			}
		case <-time.After(patience / 2):
			t.Errorf("%s waits on", c.what)
		}
	}
	must(t, v.Close())
}
