// Package admincmd has the commands that talk to a running daemon over its administrative socket.
package admincmd

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/daemon"
)

// maxReply bounds what is read from the daemon.
const maxReply = 64 << 20

type client struct {
	http *http.Client
	base string // of URLs
	path string // of the socket, or the URL, for people
	err  error  // why there is no client
}

// socketPath is --socket, or where a daemon of this user, or else of the system, has it.
func socketPath(c *cobra.Command) string {
	if p, err := c.Flags().GetString("socket"); err == nil && p != "" {
		return p
	}
	own := filepath.Join(daemon.DefaultStateDir(), "admin.sock")
	if _, err := os.Stat(own); err != nil {
		if system := "/var/lib/sluice/admin.sock"; own != system {
			if _, err := os.Stat(system); err == nil {
				return system
			}
		}
	}
	return own
}

func dial(c *cobra.Command) *client {
	if u, err := c.Flags().GetString("admin"); err == nil && u != "" {
		return dialTLS(c, u)
	}
	path := socketPath(c)
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", path)
	}}
	return &client{http: &http.Client{Transport: tr, Timeout: 10 * time.Minute}, base: "http://sluiced", path: path}
}

// dialTLS reaches a daemon on another machine, with a certificate of its operators.
func dialTLS(c *cobra.Command, base string) *client {
	flag := func(name string) string {
		v, err := c.Flags().GetString(name)
		if err != nil {
			return ""
		}
		return v
	}
	a := &client{base: strings.TrimSuffix(base, "/"), path: base}
	if u, err := url.Parse(base); err != nil || u.Scheme != "https" || u.Host == "" {
		a.err = ui.Usagef("--admin %q is not https://HOST:PORT", base)
		return a
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS13}
	pair, err := tls.LoadX509KeyPair(flag("admin-cert"), flag("admin-key"))
	if err != nil {
		a.err = ui.Usagef("--admin needs --admin-cert and --admin-key: %v", err)
		return a
	}
	conf.Certificates = []tls.Certificate{pair}
	if ca := flag("admin-ca"); ca != "" {
		pem, err := os.ReadFile(ca)
		if conf.RootCAs = x509.NewCertPool(); err != nil || !conf.RootCAs.AppendCertsFromPEM(pem) {
			a.err = ui.Usagef("--admin-ca %s holds no certificate (%v)", ca, err)
			return a
		}
	}
	a.http = &http.Client{Timeout: 10 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: conf,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSHandshakeTimeout: 10 * time.Second}}
	return a
}

// do sends in as JSON, if any, and reads the answer into out: a *[]byte takes it as it is.
func (a *client) do(ctx context.Context, method, route string, in, out any) error {
	if a.err != nil {
		return a.err
	}
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+route, body)
	if err != nil {
		return err
	}
	res, err := a.http.Do(req)
	if err != nil {
		return a.explain(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return a.explain(err)
	}
	if res.StatusCode != http.StatusOK {
		var e admin.Error
		if json.Unmarshal(b, &e) != nil || e.Msg == "" {
			e.Msg = res.Status
		}
		code := ui.CodeFailed
		switch {
		case res.StatusCode == http.StatusBadRequest && !strings.HasPrefix(route, "/v1/config/"): // there it is the daemon's file that is wrong
			code = ui.CodeUsage
		case res.StatusCode < 500:
			code = ui.CodeRefused
		}
		return ui.ExitError{Code: code, Err: &e}
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = b
		return nil
	}
	return json.Unmarshal(b, out)
}

func (a *client) explain(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		err = fmt.Errorf("no daemon listens on %s; is sluiced running, and is --socket its state_dir/admin.sock (--admin its admin.listen)?", a.path)
	case errors.Is(err, os.ErrPermission):
		err = fmt.Errorf("no permission for %s; run as root or as the daemon's user", a.path)
	}
	return ui.ExitError{Code: ui.CodeNoPeer, Err: err}
}

// get reads a list for a table or for completion.
func get[T any](c *cobra.Command, route string) (T, error) {
	var v T
	err := dial(c).do(c.Context(), http.MethodGet, route, nil, &v)
	return v, err
}

// change sends a change and prints what it did.
func change(c *cobra.Command, method, route string, in any) error {
	var d admin.Done
	if err := dial(c).do(c.Context(), method, route, in, &d); err != nil {
		return err
	}
	return ui.Print(c, d, func(t *ui.Table) {
		for _, s := range d.Changes {
			if d.DryRun {
				s = "would: " + s
			}
			t.Row(s)
		}
	})
}

// destroy sends a DELETE that takes something away for good. It asks first, and says what will be lost, as the daemon tells by a
// dry run; what cannot be done is refused before the question.
func destroy(c *cobra.Command, what, route string, query url.Values, dry bool) error {
	yes, err := c.Flags().GetBool("yes")
	if err != nil {
		return err
	}
	return destroyUnless(c, yes, what, route, query, dry)
}

// cut is destroy for what cuts hosts off and destroys nothing. Without a terminal it does not ask and goes on, so that scripts need no flag.
func cut(c *cobra.Command, what, route string, dry bool) error {
	yes, err := ui.Sure(c)
	if err != nil {
		return err
	}
	return destroyUnless(c, yes, what, route, url.Values{}, dry)
}

func destroyUnless(c *cobra.Command, yes bool, what, route string, query url.Values, dry bool) error {
	query.Set("dry_run", "true")
	tried := route + "?" + query.Encode()
	if dry {
		return change(c, http.MethodDelete, tried, nil)
	}
	if !yes {
		var d admin.Done
		if err := dial(c).do(c.Context(), http.MethodDelete, tried, nil, &d); err != nil {
			return err
		}
		if err := ui.Confirm(c, what+" ("+strings.Join(d.Changes, "; ")+")"); err != nil {
			return err
		}
	}
	query.Set("dry_run", "false")
	return change(c, http.MethodDelete, route+"?"+query.Encode(), nil)
}

// complete offers the live names that list gives, for the first argument.
func complete[T any](route string, name func(T) string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		var list []T
		if err := dial(c).do(ctx, http.MethodGet, route, nil, &list); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := make([]string, len(list))
		for i, v := range list {
			names[i] = name(v)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

var esc = url.PathEscape
