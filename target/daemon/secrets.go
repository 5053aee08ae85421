package daemon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	wire "github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/iscsi"
)

// secrets is a parsed secrets file: what users must know, and what the target itself answers with.
type secrets struct {
	users  map[string]string
	mutual map[string]string
	names  map[string][]string // by user: the initiators that it is for
}

func newSecrets() *secrets {
	return &secrets{users: map[string]string{}, mutual: map[string]string{}, names: map[string][]string{}}
}

// binding says whether a user may use an initiator's name (RFC 7143 section 9.2). A user that is called like an initiator is that
// initiator's. One that has no names may use those that no other has.
func (s *secrets) binding(user, initiator string) iscsi.Binding {
	if slices.Contains(s.names[user], initiator) || user == initiator {
		return iscsi.Bound
	}
	if len(s.names[user]) > 0 || wire.CheckName(user) == nil {
		return iscsi.Stranger
	}
	for u := range s.users {
		if u != user && (u == initiator || slices.Contains(s.names[u], initiator)) {
			return iscsi.Stranger
		}
	}
	return iscsi.Unbound
}

// mutual begins a line with the target's own secret, so no user has that name.
const mutual = "mutual"

// maxSecretsFile is far more than any file of secrets; a wrong path must not fill the memory.
const maxSecretsFile = 1 << 20

// credential begins a path that names a credential of the service manager (systemd.exec(5), LoadCredential): the file of that
// name in $CREDENTIALS_DIRECTORY, which only this service can read.
const credential = "credential:"

// secretPath is the file that a configured path stands for.
func secretPath(path string) (string, error) {
	name, ok := strings.CutPrefix(path, credential)
	if !ok {
		return path, nil
	}
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return "", fmt.Errorf("%s: the service manager gave no credentials; the unit needs LoadCredential=%s:FILE", path, name)
	}
	if name == "" || name != filepath.Base(name) {
		return "", fmt.Errorf("%s: a credential has a plain name", path)
	}
	return filepath.Join(dir, name), nil
}

// readSecrets reads lines of "USER SECRET [INITIATOR...]" and "mutual USER SECRET"; # begins a comment. The file must not be
// readable by others.
func readSecrets(path string) (*secrets, error) {
	path, err := secretPath(path)
	if err != nil {
		return nil, err
	}
	if err := statSecret(path); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("secrets file: %w", err)
	}
	if len(b) > maxSecretsFile {
		return nil, fmt.Errorf("secrets file %s has %d bytes: that is no file of secrets", path, len(b))
	}
	s := newSecrets()
	sc := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		into, initiators := s.users, []string(nil)
		switch {
		case f[0] == mutual && len(f) == 3:
			into, f = s.mutual, f[1:]
		case f[0] == mutual || len(f) < 2:
			return nil, fmt.Errorf("secrets file %s: line %d is neither \"USER SECRET [INITIATOR...]\" nor \"mutual USER SECRET\"", path, n)
		default:
			initiators = f[2:]
		}
		for _, i := range initiators {
			if err := wire.CheckName(i); err != nil {
				return nil, fmt.Errorf("secrets file %s: line %d: initiator %q: %w", path, n, i, err)
			}
		}
		// RFC 7143 section 9.2.1: a CHAP secret has at least 96 bits.
		if len(f[1]) < 12 {
			return nil, fmt.Errorf("secrets file %s: the secret of %s in line %d is shorter than 12 characters (RFC 7143 section 9.2.1)", path, f[0], n)
		}
		if _, twice := into[f[0]]; twice {
			return nil, fmt.Errorf("secrets file %s: line %d names %s again", path, n, f[0])
		}
		into[f[0]] = f[1]
		if len(initiators) > 0 {
			s.names[f[0]] = initiators
		}
	}
	return s, sc.Err()
}

func parseAlgorithm(name string) (iscsi.Algorithm, error) {
	for _, a := range wire.CHAPDefault {
		if strings.EqualFold(a.String(), name) {
			return iscsi.Algorithm(a), nil
		}
	}
	return 0, fmt.Errorf("CHAP algorithm %q is none of %v", name, wire.CHAPDefault)
}

// auth makes the session layer's form of a configured authentication; nil stays nil.
func (a *AuthConfig) auth() (*iscsi.Auth, error) {
	if a == nil {
		return nil, nil
	}
	s, err := readSecrets(a.SecretsFile)
	if err != nil {
		return nil, err
	}
	out := &iscsi.Auth{Secret: iscsi.SecretMap(s.users), Binding: s.binding}
	for _, name := range a.Algorithms {
		alg, err := parseAlgorithm(name)
		if err != nil {
			return nil, err
		}
		out.Algorithms = append(out.Algorithms, alg)
	}
	if a.MutualUser != "" {
		secret, ok := s.mutual[a.MutualUser]
		if !ok {
			return nil, fmt.Errorf("secrets file %s has no line \"mutual %s SECRET\"", a.SecretsFile, a.MutualUser)
		}
		for user, theirs := range s.users {
			if theirs == secret {
				return nil, fmt.Errorf("the secret of %s is the target's own (mutual %s) as well, which RFC 7143 section 9.2.1 forbids: give each its own", user, a.MutualUser)
			}
		}
		out.Mutual = iscsi.Secret{Name: a.MutualUser, Secret: secret}
	}
	return out, nil
}

// CheckSecrets reads all files of secrets and says what is wrong with them. It returns the users who may log in under any name that no
// other user has.
func (c *Config) CheckSecrets() (anyName []string, err error) {
	var errs []error
	read := func(where string, a *AuthConfig) {
		// Credentials are there for the service alone: what a check by hand cannot read is not wrong.
		if a == nil || strings.HasPrefix(a.SecretsFile, credential) && os.Getenv("CREDENTIALS_DIRECTORY") == "" {
			return
		}
		if _, err := a.auth(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", where, err))
			return
		}
		if s, err := readSecrets(a.SecretsFile); err == nil {
			for user := range s.users {
				if len(s.names[user]) == 0 && wire.CheckName(user) != nil {
					anyName = append(anyName, user+" ("+where+")")
				}
			}
		}
	}
	for _, t := range c.Targets {
		read("target "+t.Name, t.Auth)
	}
	users := slices.Sorted(slices.Values(anyName))
	read("discovery_auth", c.DiscoveryAuth) // which shows no LUN, so that a name is worth nothing there
	return users, errors.Join(errs...)
}

// Unbound is what is said of such a user.
const Unbound = "may log in under any initiator name that no other user has, and so see what that initiator sees; add the initiator's name to its line in the secrets file"
