package blockcmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
)

// maxCredentials bounds a file of credentials: four names and secrets of at most 255 bytes each, and comments.
const maxCredentials = 16 << 10

// readCredentials reads a file of CHAP secrets. Only its owner may read it.
func readCredentials(path string) (own, theirs block.Secret, err error) {
	f, err := os.Open(path)
	if err != nil {
		return own, theirs, ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("credentials: %w", err)}
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	fi, err := f.Stat()
	if err != nil {
		return own, theirs, err
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return own, theirs, ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("credentials: others than its owner may read %s; run chmod 600 %s", path, path)}
	}
	b, err := io.ReadAll(io.LimitReader(f, maxCredentials+1))
	if err != nil {
		return own, theirs, err
	}
	if len(b) > maxCredentials {
		return own, theirs, ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("credentials: %s has more than %d bytes", path, maxCredentials)}
	}
	own, theirs, err = parseCredentials(string(b))
	if err != nil {
		err = ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("credentials: %s: %w", path, err)}
	}
	return own, theirs, err
}

// parseCredentials reads lines of key=value. An error names the line and never what stands in it, which may be a secret.
func parseCredentials(s string) (own, theirs block.Secret, err error) {
	to := map[string]*string{"username": &own.Name, "password": &own.Secret, "target_username": &theirs.Name, "target_password": &theirs.Secret}
	for i, l := range strings.Split(s, "\n") {
		l = strings.TrimSuffix(l, "\r")
		if t := strings.TrimSpace(l); t == "" || t[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(l, "=")
		p := to[strings.TrimSpace(key)]
		switch {
		case !ok || p == nil:
			return own, theirs, fmt.Errorf("line %d is none of username=, password=, target_username=, target_password=", i+1)
		case *p != "":
			return own, theirs, fmt.Errorf("line %d gives %s a second time", i+1, strings.TrimSpace(key))
		case value == "":
			return own, theirs, fmt.Errorf("line %d gives no value", i+1)
		}
		*p = value // a secret may begin or end with a space
	}
	if own.Name == "" || own.Secret == "" {
		return own, theirs, errors.New("username= and password= are both needed")
	}
	return own, theirs, nil
}
