package admin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key, file: filepath.Join(t.TempDir(), "ca.pem")}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write(a.file, "CERTIFICATE", der)
	return a
}

func (a *authority) write(path, kind string, der []byte) {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// issue makes a certificate and key for name and returns their files.
func (a *authority) issue(name string) (cert, key string) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	kd, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a.write(cert, "CERTIFICATE", der)
	a.write(key, "PRIVATE KEY", kd)
	return cert, key
}

// Over TLS the same routes answer a peer whose certificate the client CA signed, under its name in the audit log; without
// one, or with somebody else's, the handshake fails. Profiles stay on the machine.
func TestOtherMachinesNeedACertificate(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	cert, key := ours.issue("sluiced")
	conf, err := TLS{Cert: cert, Key: key, ClientCA: ours.file}.Config()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	core, lines := observer.New(zap.InfoLevel)
	s := New(&recorder{}, http.NotFoundHandler(), zap.NewNop(), zap.New(core))
	done := make(chan error, 1)
	go func() { done <- s.ServeTLS(l, conf) }()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := errors.Join(s.Close(ctx), <-done); err != nil {
			t.Error(err)
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	ask := func(certs []tls.Certificate, method, path string) (int, error) {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certs}, DisableKeepAlives: true}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), method, "https://"+l.Addr().String()+path, strings.NewReader(`{"name":"iqn.x"}`))
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: tr}).Do(req)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	pair := func(a *authority, name string) []tls.Certificate {
		c, k := a.issue(name)
		p, err := tls.LoadX509KeyPair(c, k)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{p}
	}
	if status, err := ask(pair(ours, "alice"), "POST", "/v1/targets"); err != nil || status != http.StatusOK {
		t.Errorf("with a certificate: %d, %v", status, err)
	}
	if status, err := ask(pair(ours, "alice"), "GET", "/debug/pprof/heap"); err != nil || status != http.StatusForbidden {
		t.Errorf("profiles: %d, %v", status, err)
	}
	if status, err := ask(nil, "GET", "/v1/info"); err == nil {
		t.Errorf("without a certificate: %d", status)
	}
	if status, err := ask(pair(theirs, "mallory"), "GET", "/v1/info"); err == nil {
		t.Errorf("with a certificate of another authority: %d", status)
	}
	got := lines.FilterMessage("admin request").All()
	if len(got) != 1 || !strings.Contains(got[0].ContextMap()["peer"].(string), "alice") {
		t.Errorf("audit lines %v", got)
	}
}

func TestFilesOfTheTLSListenerAreChecked(t *testing.T) {
	a := newAuthority(t, "ours")
	cert, key := a.issue("sluiced")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]TLS{
		"certificate and key":  {Cert: key, Key: cert, ClientCA: a.file},
		"client CA":            {Cert: cert, Key: key, ClientCA: "/nowhere"},
		"holds no certificate": {Cert: cert, Key: key, ClientCA: empty},
	} {
		if _, err := c.Config(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
