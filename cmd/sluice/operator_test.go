package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

// operator tries every administrative command on one running daemon.
type operator struct {
	t         *testing.T
	dir, conf string
	sock      []string // the flags that name the daemon
	tls       []string // over TLS
	portal    string
	nfs       string
	ran       map[string]bool // commands that were tried, by their path
	daemon    *stand.Daemon
}

// certificate makes one that is its own authority, good for both ends.
func certificate(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "operator"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for _, f := range []struct {
		path, kind string
		der        []byte
	}{{cert, "CERTIFICATE", der}, {key, "PRIVATE KEY", kd}} {
		if err := os.WriteFile(f.path, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

const adminConfig = `
state_dir: %[1]s
timeouts: {drain: 1s}
portals: [{address: "127.0.0.1:0", group: 1}, {address: "[::1]:0", group: 2}]
srp: [{address: "127.0.0.1:0", group: 9}]
admin: {listen: "127.0.0.1:0", cert: cert.pem, key: key.pem, client_ca: cert.pem}
files: {tcp: "127.0.0.1:0", rdma: none}
volumes: [{name: a, size: 8MiB}%[3]s]
targets:
  - name: %[2]q
    luns: [{lun: 0, volume: a}]
    port_groups: [{group: 1, portals: [1], preferred: true}, {group: 2, portals: [2], state: active/non-optimized}]
`

func newOperator(t *testing.T) *operator {
	t.Helper()
	o := &operator{t: t, dir: t.TempDir(), ran: map[string]bool{}}
	cert, key := certificate(t, o.dir)
	o.conf = filepath.Join(o.dir, "sluiced.yaml")
	o.configure("")
	sparseFile(t, filepath.Join(o.dir, "a.img"), 8<<20)
	o.daemon = stand.NewDaemon(t, o.conf, zap.InfoLevel)
	address := o.daemon.Address
	o.tls = []string{"--admin", "https://" + address("administration open", "", ""), "--admin-cert", cert, "--admin-key", key, "--admin-ca", cert}
	o.sock = []string{"--socket", filepath.Join(o.dir, "admin.sock")}
	o.portal, o.nfs = address("portal open", "group", "1"), address("files open", "over", "TCP")
	return o
}

// configure writes the daemon's file, with more volumes if given.
func (o *operator) configure(volumes string) {
	if err := os.WriteFile(o.conf, fmt.Appendf(nil, adminConfig, o.dir, testTarget, volumes), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

func (o *operator) run(where []string, stdin string, args ...string) (string, error) {
	o.t.Helper()
	if c, _, err := root().Find(args); err == nil {
		o.ran[c.CommandPath()] = true
	}
	out, _, err := sluice(o.t, []byte(stdin), append(args, where...)...)
	return out, err
}

// says runs a command that must succeed and say all of want.
func (o *operator) says(line string, want ...string) string {
	o.t.Helper()
	return o.saysOf("", line, want...)
}

func (o *operator) saysOf(stdin, line string, want ...string) string {
	o.t.Helper()
	out, err := o.run(o.sock, stdin, strings.Fields(line)...)
	if err != nil {
		o.t.Fatalf("sluice %s: %v", line, err)
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			o.t.Errorf("sluice %s prints\n%s\nwithout %q", line, out, w)
		}
	}
	return out
}

// refuses runs a command that must fail with a code and a sentence.
func (o *operator) refuses(code int, want, stdin, line string) {
	o.t.Helper()
	out, err := o.run(o.sock, stdin, strings.Fields(line)...)
	o.wrong(code, want, line, out, err)
}

func (o *operator) wrong(code int, want, line, out string, err error) {
	o.t.Helper()
	var ee ui.ExitError
	if !errors.As(err, &ee) || ee.Code != code || !strings.Contains(err.Error(), want) {
		o.t.Errorf("sluice %s: %v (%s), want code %d and %q", line, err, out, code, want)
	}
}

// reads decodes what a command prints with --output json.
func reads[T any](o *operator, where []string, line string) (v T) {
	o.t.Helper()
	out, err := o.run(where, "", strings.Fields(line+" --output json")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &v)
	}
	if err != nil {
		o.t.Fatalf("sluice %s --output json: %v\n%s", line, err, out)
	}
	return v
}

func (o *operator) volume(name string) *admin.Volume {
	o.t.Helper()
	for _, v := range reads[[]admin.Volume](o, o.sock, "volume list") {
		if v.Name == name {
			return &v
		}
	}
	return nil
}

// completes asks for what may follow a line, as a shell does.
func (o *operator) completes(line, want string) {
	o.t.Helper()
	var out string
	var err error
	if !soon(func() bool { // a shell waits for no daemon that is slow, and is offered nothing then
		out, _, err = sluice(o.t, nil, slices.Concat([]string{"__complete"}, strings.Fields(line), o.sock, []string{""})...)
		return err == nil && strings.Contains(out, want)
	}) {
		o.t.Errorf("after %q is offered %q, want %q (%v)", line, out, want, err)
	}
}

// soon reports whether something comes about that has no event.
func soon(ok func() bool) bool {
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func (o *operator) scrape() string {
	o.t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", o.sock[1])
	}}
	req, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, "http://sluiced/metrics", nil)
	if err != nil {
		o.t.Fatal(err)
	}
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		o.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	return string(b)
}

func leaves(path string, c *cobra.Command, into map[string]bool) {
	path += " " + c.Name()
	if c.Runnable() && !ui.IsGroup(c) {
		into[path] = true
	}
	for _, sub := range c.Commands() {
		leaves(path, sub, into)
	}
}
