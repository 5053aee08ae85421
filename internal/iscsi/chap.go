package iscsi

import (
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // RFC 7143 section 12.1.3 requires CHAP with MD5 of everyone
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // an algorithm of the CHAP registry, offered after the stronger ones
	"crypto/sha256"
	"crypto/sha3"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
)

// CHAPAlgorithm is a number of the registry of RFC 7143 section 12.1.3.
type CHAPAlgorithm uint8

// CHAP algorithms.
const (
	CHAPMD5     CHAPAlgorithm = 5
	CHAPSHA1    CHAPAlgorithm = 6
	CHAPSHA256  CHAPAlgorithm = 7
	CHAPSHA3256 CHAPAlgorithm = 8
)

// CHAPDefault is the order of preference: the strongest first, MD5 always there.
var CHAPDefault = []CHAPAlgorithm{CHAPSHA3256, CHAPSHA256, CHAPSHA1, CHAPMD5}

func (a CHAPAlgorithm) new() hash.Hash {
	switch a {
	case CHAPMD5:
		return md5.New() //nolint:gosec // see the import
	case CHAPSHA1:
		return sha1.New() //nolint:gosec // see the import
	case CHAPSHA256:
		return sha256.New()
	case CHAPSHA3256:
		return sha3.New256()
	}
	return nil
}

func (a CHAPAlgorithm) String() string {
	switch a {
	case CHAPMD5:
		return "MD5"
	case CHAPSHA1:
		return "SHA-1"
	case CHAPSHA256:
		return "SHA-256"
	case CHAPSHA3256:
		return "SHA3-256"
	}
	return "algorithm " + strconv.Itoa(int(a))
}

// Secret is a name and the secret that proves it. It prints without the secret.
type Secret struct{ Name, Secret string }

// String leaves the secret out.
func (s Secret) String() string { return s.Name + ":***" }

// GoString leaves the secret out.
func (s Secret) GoString() string { return "iscsi.Secret{" + strconv.Quote(s.Name) + "}" }

// ErrAuth is a failed authentication. It does not say which part of it failed, so that a guesser learns nothing.
var ErrAuth = errors.New("iscsi: CHAP authentication failed: unknown name or wrong secret")

func authError(detail string) error {
	return &NegotiationError{Key: "CHAP", Clause: "12.1.3", Detail: detail, Status: LoginAuthFailed}
}

// missing is an authentication that lacks one of its parts (section 11.13.5, status 0207).
func missing(key string) error {
	return &NegotiationError{Key: key, Clause: "12.1.3", Detail: "the key is missing", Status: LoginMissingParameter}
}

func chapAnswer(a CHAPAlgorithm, id byte, secret string, challenge []byte) []byte {
	h := a.new()
	// hash.Hash never returns an error.
	_, _ = h.Write([]byte{id})
	_, _ = h.Write([]byte(secret))
	_, _ = h.Write(challenge)
	return h.Sum(nil)
}

type chapChallenge struct {
	alg   CHAPAlgorithm
	id    byte
	bytes []byte
}

func newChallenge(a CHAPAlgorithm) chapChallenge {
	b := make([]byte, 33)
	// crypto/rand.Read never fails.
	_, _ = rand.Read(b)
	return chapChallenge{alg: a, id: b[0], bytes: b[1:]}
}

func (c *chapChallenge) pairs() []KV {
	return []KV{{"CHAP_I", strconv.Itoa(int(c.id))}, {"CHAP_C", encodeBinary(c.bytes)}}
}

func encodeBinary(b []byte) string { return "0x" + hex.EncodeToString(b) }

// DecodeBinary reads a hexadecimal or Base64 constant (RFC 7143 section 6.1) of at most MaxBinary bytes.
func DecodeBinary(s string) ([]byte, error) {
	if len(s) < 2 || len(s) > 2+2*MaxBinary {
		return nil, authError("a binary value of wrong length")
	}
	var b []byte
	var err error
	switch strings.ToLower(s[:2]) {
	case "0x":
		d := s[2:]
		if len(d)%2 == 1 {
			d = "0" + d
		}
		b, err = hex.DecodeString(d)
	case "0b":
		b, err = base64.StdEncoding.DecodeString(s[2:])
		if err != nil {
			b, err = base64.RawStdEncoding.DecodeString(s[2:])
		}
	default:
		return nil, authError("a binary value that begins with neither 0x nor 0b")
	}
	if err != nil || len(b) == 0 || len(b) > MaxBinary {
		return nil, authError("a binary value that cannot be decoded")
	}
	return b, nil
}

func lookup(pairs []KV, key string) (string, bool) {
	for _, p := range pairs {
		if p.Key == key {
			return p.Value, true
		}
	}
	return "", false
}

func readChallenge(a CHAPAlgorithm, pairs []KV) (*chapChallenge, error) {
	i, hasI := lookup(pairs, "CHAP_I")
	c, hasC := lookup(pairs, "CHAP_C")
	if !hasI && !hasC {
		return nil, nil
	}
	id, ok := ParseNumber(i)
	if !ok || id > 255 || !hasC {
		return nil, authError("CHAP_I and CHAP_C are not one number up to 255 and one challenge")
	}
	b, err := DecodeBinary(c)
	if err != nil {
		return nil, err
	}
	return &chapChallenge{alg: a, id: byte(id), bytes: b}, nil
}

// check compares a response in constant time.
func (c *chapChallenge) check(pairs []KV, secret string) error {
	r, ok := lookup(pairs, "CHAP_R")
	if !ok {
		return missing("CHAP_R")
	}
	got, err := DecodeBinary(r)
	if err != nil {
		return err
	}
	if !hmac.Equal(got, chapAnswer(c.alg, c.id, secret, c.bytes)) {
		return ErrAuth
	}
	return nil
}

// CHAPTarget is the target's side of one authentication. Feed each request's CHAP pairs to Step.
type CHAPTarget struct {
	// Lookup returns the secret of an initiator's name.
	Lookup func(name string) (secret string, ok bool)
	// Own proves the target to an initiator that asks; an empty Name means that it cannot.
	Own Secret
	// Algorithms are those accepted, all if nil.
	Algorithms []CHAPAlgorithm

	challenge *chapChallenge
	name      string
	secret    string // that the initiator proved
	done      bool
}

// Proved reports whether what the initiator proved is that it knows this secret.
func (t *CHAPTarget) Proved(secret string) bool {
	return t.done && subtle.ConstantTimeCompare([]byte(secret), []byte(t.secret)) == 1
}

// Done reports whether the initiator is authenticated; Name is then who it is.
func (t *CHAPTarget) Done() bool { return t.done }

// Name is the name that the initiator gave: once Done, a proved one.
func (t *CHAPTarget) Name() string { return t.name }

// Step takes the pairs of one request and returns those of the response. An error is a Login reject: with
// LoginMissingParameter for a key that is not there, else with LoginAuthFailed.
func (t *CHAPTarget) Step(pairs []KV) ([]KV, error) {
	if t.done {
		return nil, authError("CHAP goes on after it has ended")
	}
	if t.challenge == nil {
		offer, ok := lookup(pairs, "CHAP_A")
		if !ok {
			return nil, missing("CHAP_A")
		}
		accept := t.Algorithms
		if accept == nil {
			accept = CHAPDefault
		}
		for s := range strings.SplitSeq(offer, ",") {
			v, ok := ParseNumber(strings.TrimSpace(s))
			if a := CHAPAlgorithm(v); ok && v < 256 && slices.Contains(accept, a) && a.new() != nil {
				c := newChallenge(a)
				t.challenge = &c
				return append([]KV{{"CHAP_A", strconv.Itoa(int(a))}}, c.pairs()...), nil
			}
		}
		return nil, authError("no algorithm in common")
	}
	name, ok := lookup(pairs, "CHAP_N")
	if !ok {
		return nil, missing("CHAP_N")
	}
	t.name = name
	secret, known := t.Lookup(name)
	if err := t.challenge.check(pairs, secret); err != nil {
		return nil, err
	}
	if !known {
		return nil, ErrAuth
	}
	mutual, err := readChallenge(t.challenge.alg, pairs)
	if err != nil {
		return nil, err
	}
	t.secret, t.done = secret, true
	if mutual == nil {
		return nil, nil
	}
	if t.Own.Name == "" {
		t.done = false
		return nil, authError("the initiator asks for mutual authentication, for which no secret is configured")
	}
	if err := t.refuseReflection(mutual, secret); err != nil {
		t.done = false
		return nil, err
	}
	return []KV{{"CHAP_N", t.Own.Name}, {"CHAP_R", encodeBinary(chapAnswer(mutual.alg, mutual.id, t.Own.Secret, mutual.bytes))}}, nil
}

// refuseReflection stops a peer that sends our own challenge back in order to be given the answer, and equal secrets in
// both directions, which make that possible (RFC 7143 section 9.2.1).
func (t *CHAPTarget) refuseReflection(mutual *chapChallenge, secret string) error {
	if subtle.ConstantTimeCompare(mutual.bytes, t.challenge.bytes) == 1 {
		return authError("the challenge is our own, reflected")
	}
	if subtle.ConstantTimeCompare([]byte(secret), []byte(t.Own.Secret)) == 1 {
		return authError("the secrets of both directions are the same, which section 9.2.1 forbids")
	}
	return nil
}

// CHAPInitiator is the initiator's side of one authentication.
type CHAPInitiator struct {
	Own Secret
	// Target is what the target must prove; an empty Secret asks for no proof.
	Target     Secret
	Algorithms []CHAPAlgorithm // offered, in order; all if nil

	sent   *chapChallenge
	step   int
	chosen CHAPAlgorithm
}

// Start returns the first pairs: the algorithms.
func (i *CHAPInitiator) Start() []KV {
	algs := i.Algorithms
	if algs == nil {
		algs = CHAPDefault
	}
	var s []string
	for _, a := range algs {
		s = append(s, strconv.Itoa(int(a)))
	}
	i.step = 1
	return []KV{{"CHAP_A", strings.Join(s, ",")}}
}

// Chosen is the algorithm that the target chose, 0 before.
func (i *CHAPInitiator) Chosen() CHAPAlgorithm { return i.chosen }

// Last reports whether the pairs that Step returned last are the initiator's last ones: the request that carries them
// may propose the next stage (RFC 7143 appendix B); tgt insists that it does.
func (i *CHAPInitiator) Last() bool { return i.step >= 2 }

// Done reports whether everything that was asked for is proved.
func (i *CHAPInitiator) Done() bool { return i.step == 3 }

// Step takes the pairs of one response and returns those of the next request.
func (i *CHAPInitiator) Step(pairs []KV) ([]KV, error) {
	switch i.step {
	case 1:
		s, _ := lookup(pairs, "CHAP_A")
		v, ok := ParseNumber(s)
		algs := i.Algorithms
		if algs == nil {
			algs = CHAPDefault
		}
		a := CHAPAlgorithm(v)
		if !ok || v > 255 || !slices.Contains(algs, a) {
			return nil, authError("the target chose an algorithm that was not offered")
		}
		i.chosen = a
		c, err := readChallenge(a, pairs)
		if err != nil {
			return nil, err
		}
		if c == nil {
			return nil, authError("the target sent no challenge")
		}
		out := []KV{{"CHAP_N", i.Own.Name}, {"CHAP_R", encodeBinary(chapAnswer(a, c.id, i.Own.Secret, c.bytes))}}
		i.step = 3
		if i.Target.Secret != "" {
			if subtle.ConstantTimeCompare([]byte(i.Own.Secret), []byte(i.Target.Secret)) == 1 {
				return nil, authError("the secrets of both directions are the same, which section 9.2.1 forbids")
			}
			own := newChallenge(a)
			i.sent = &own
			out = append(out, own.pairs()...)
			i.step = 2
		}
		return out, nil
	case 2:
		name, _ := lookup(pairs, "CHAP_N")
		if i.Target.Name != "" && name != i.Target.Name {
			return nil, fmt.Errorf("the target did not prove itself: %w", ErrAuth)
		}
		if err := i.sent.check(pairs, i.Target.Secret); err != nil {
			return nil, fmt.Errorf("the target did not prove itself: %w", err)
		}
		i.step = 3
		return nil, nil
	}
	return nil, authError("CHAP goes on after it has ended")
}
