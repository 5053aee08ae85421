package block_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	berror "github.com/sluice-storage/sluice/blockdev/error"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

// Every reason for which a volume cannot be opened is another error.
func TestErrorsOfOpenAreToldApart(t *testing.T) {
	s := target(t, stand.BlockOptions{ISCSI: iscsi.Target{Initiators: []iscsi.Initiator{{Name: "iqn.2026-01.org.example:me"}},
		Auth: &iscsi.Auth{Secret: func(user string) (string, bool) { return "a long secret", user == "joe" }}}})
	me, joe := "iqn.2026-01.org.example:me", block.Secret{Name: "joe", Secret: "a long secret"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	all := []error{block.ErrAuth, block.ErrDenied, block.ErrNoTarget, block.ErrNoUnit, block.ErrNoPath}
	for _, scheme := range []string{"iser", "iscsi"} {
		url := s.URL(scheme)
		for name, c := range map[string]struct {
			url  string
			o    block.Options
			want error
		}{
			"wrong secret":     {url, block.Options{Name: me, CHAP: block.Secret{Name: "joe", Secret: "another secret"}}, block.ErrAuth},
			"no secret":        {url, block.Options{Name: me}, block.ErrAuth},
			"target unproven":  {url, block.Options{Name: me, CHAP: joe, MutualCHAP: block.Secret{Name: "it", Secret: "what it does not know"}}, block.ErrAuth},
			"not on the list":  {url, block.Options{Name: "iqn.2026-01.org.example:you", CHAP: joe}, nil},
			"no such target":   {strings.Replace(url, stand.Name, "iqn.2026-01.org.example:none", 1), block.Options{Name: me, CHAP: joe}, block.ErrNoTarget},
			"no such LUN":      {strings.TrimSuffix(url, "0") + "7", block.Options{Name: me, CHAP: joe}, block.ErrNoUnit},
			"nothing is there": {scheme + "://" + nowhere + "/" + stand.Name + "/0", block.Options{Name: me}, block.ErrNoPath},
		} {
			t.Run(scheme+" "+name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				v, err := block.Open(ctx, c.url, c.o)
				if err == nil {
					_ = v.Close()
					t.Fatal("it is open")
				}
				if c.want == nil { // a target may hide from strangers that it is there
					if !errors.Is(err, block.ErrDenied) && !errors.Is(err, block.ErrNoTarget) {
						t.Error(err)
					}
					return
				}
				for _, e := range all {
					if errors.Is(err, e) != (e == c.want) {
						t.Errorf("%v is %v: %t", err, e, e != c.want)
					}
				}
			})
		}
		v := open(t, url, block.Options{Name: me, CHAP: joe})
		if _, err := v.ReadAt(make([]byte, 1), 0); err != nil {
			t.Error(err)
		}
	}
	var bad *block.URLError
	if _, err := block.Open(t.Context(), "http://h/x", block.Options{}); !errors.As(err, &bad) {
		t.Error(err)
	}
}

// A medium error is blockdev's, and what the target says of it is there too.
func TestAMediumErrorHasItsSense(t *testing.T) {
	disk, err := bmem.Open(bmem.Options{Size: diskSize})
	if err != nil {
		t.Fatal(err)
	}
	bad, err := berror.Open(disk, berror.On(blockdev.Read, 0, 512, blockdev.ErrMedium))
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, stand.BlockOptions{}, scsi.LUOptions{Device: bad, Name: "disk"})
	v := open(t, s.URL("iser"), block.Options{})
	_, err = v.ReadAt(make([]byte, 512), 0)
	var sense *block.SenseError
	if !errors.Is(err, blockdev.ErrMedium) || !errors.As(err, &sense) || sense.Key != 3 {
		t.Errorf("%v", err)
	}
}
