package attachments

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An option of the table that was changed is refused while the volume is attached, and not passed over: what is read-only in the table
// must not go on being written.
func TestAChangedOptionOfTheTableIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.up()
	tab, cred := filepath.Join(s.dir, "tab"), filepath.Join(s.dir, "cred")
	if err := os.WriteFile(cred, []byte("username=u\npassword=1234567890ab\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	table := func(credentials, options string) {
		t.Helper()
		if err := os.WriteFile(tab, []byte(fmt.Sprintf("a %s %s as=socket,%s\n", s.url(), credentials, options)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	table("-", "reconnect=5m")
	s.must("map", "--table", tab)
	s.must("map", "--table", tab)
	for _, c := range []struct{ credentials, options, says string }{
		{"-", "reconnect=5m,ro", "the table says reconnect=5m0s,crc=on,ro"},
		{"-", "reconnect=forever", "reconnect=forever"},
		{"-", "reconnect=5m,crc=always", "crc=always"},
		{"-", "reconnect=5m,initiator=iqn.2026-11.org.example:x", "initiator=iqn.2026-11.org.example:x"},
		{"-", "reconnect=5m,socket=" + s.dir + "/else", s.dir + "/else"},
		{cred, "reconnect=5m", "credentials=" + cred},
	} {
		table(c.credentials, c.options)
		if out, code := s.sluice("map", "--table", tab); code != 4 || !strings.Contains(out, c.says) || !strings.Contains(out, "sluice unmap a") {
			t.Errorf("%+v: exit code %d: %s", c, code, out)
		}
	}
	table("-", "reconnect=5m,ro")
	s.must("unmap", "--table", tab)
	s.must("map", "--table", tab)
	s.must("unmap", "--table", tab)
}
