package volumes

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// --check finds what keeps a target from being served, its secrets included, and warns of users without initiator names.
func TestCheckReadsSecrets(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "sluiced.yaml")
	if err := os.WriteFile(conf, []byte("state_dir: state\nportals: [{address: \"127.0.0.1:0\"}]\ntargets: [{name: "+target+", auth: {secrets_file: secrets}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		secrets, says string
		mode          os.FileMode
		good          bool
	}{
		{"", "secrets", 0, false},
		{"alice short\n", "shorter than 12", 0o600, false},
		{"alice secret-of-alice\n", "chmod 600", 0o644, false},
		{"alice secret-of-alice\n", "any initiator name", 0o600, true},
	} {
		if step.mode != 0 {
			path := filepath.Join(dir, "secrets")
			if err := os.WriteFile(path, []byte(step.secrets), step.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, step.mode); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.Command(filepath.Join(bin, "sluiced"), "--config", conf, "--check").CombinedOutput()
		if (err == nil) != step.good || !strings.Contains(string(out), step.says) {
			t.Errorf("with %q: %v\n%s", step.secrets, err, out)
		}
	}
}

// What is not served is in the answer of /healthz, which stays that of a daemon that does its work.
func TestHealthNamesWhatIsNotServed(t *testing.T) {
	d := prepare(t, "  - {name: gone, path: gone.img}\n", "gone")
	d.start()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(d.state, "admin.sock"))
	}}, Timeout: patience}
	r, err := c.Get("http://sluiced/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 200 || !strings.Contains(string(b), "volume gone") || !strings.Contains(string(b), "is missing") {
		t.Errorf("%d %s, %v", r.StatusCode, b, err)
	}
}
