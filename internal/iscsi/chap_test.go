package iscsi

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func chapRun(i *CHAPInitiator, g *CHAPTarget) error {
	pairs := i.Start()
	for {
		answer, err := g.Step(pairs)
		if err != nil {
			return fmt.Errorf("target: %w", err)
		}
		if i.Done() && len(answer) == 0 {
			return nil
		}
		if pairs, err = i.Step(answer); err != nil {
			return fmt.Errorf("initiator: %w", err)
		}
		if len(pairs) == 0 {
			return nil
		}
	}
}

func users(name string) (string, bool) {
	s, ok := map[string]string{"joe": "twelve bytes and more"}[name]
	return s, ok
}

func TestCHAPBothWaysWithEveryAlgorithm(t *testing.T) {
	for _, a := range CHAPDefault {
		g := &CHAPTarget{Lookup: users, Own: Secret{"tgt", "another secret entirely"}}
		i := &CHAPInitiator{Own: Secret{"joe", "twelve bytes and more"}, Target: Secret{"tgt", "another secret entirely"}, Algorithms: []CHAPAlgorithm{a}}
		if err := chapRun(i, g); err != nil || !g.Done() || !i.Done() || g.Name() != "joe" {
			t.Errorf("%s: %v", a, err)
		}
		one := &CHAPTarget{Lookup: users}
		if err := chapRun(&CHAPInitiator{Own: Secret{"joe", "twelve bytes and more"}}, one); err != nil || !one.Done() {
			t.Errorf("one way: %v", err)
		}
	}
}

func TestCHAPRefusals(t *testing.T) {
	ok := Secret{"joe", "twelve bytes and more"}
	own := Secret{"tgt", "another secret entirely"}
	for name, c := range map[string]struct {
		i CHAPInitiator
		g CHAPTarget
	}{
		"wrong secret":    {CHAPInitiator{Own: Secret{"joe", "nonsense"}}, CHAPTarget{Lookup: users}},
		"unknown name":    {CHAPInitiator{Own: Secret{"jim", ""}}, CHAPTarget{Lookup: users}},
		"no algorithm":    {CHAPInitiator{Own: ok, Algorithms: []CHAPAlgorithm{CHAPMD5}}, CHAPTarget{Lookup: users, Algorithms: []CHAPAlgorithm{CHAPSHA256}}},
		"impostor":        {CHAPInitiator{Own: ok, Target: Secret{"tgt", "guess"}}, CHAPTarget{Lookup: users, Own: own}},
		"wrong target":    {CHAPInitiator{Own: ok, Target: Secret{"other", own.Secret}}, CHAPTarget{Lookup: users, Own: own}},
		"not configured":  {CHAPInitiator{Own: ok, Target: own}, CHAPTarget{Lookup: users}},
		"the same secret": {CHAPInitiator{Own: ok, Target: Secret{"tgt", ok.Secret}}, CHAPTarget{Lookup: users, Own: Secret{"tgt", ok.Secret}}},
	} {
		if err := chapRun(&c.i, &c.g); err == nil {
			t.Errorf("%s: passes", name)
		}
	}
}

func TestCHAPReflectionIsRefused(t *testing.T) {
	g := &CHAPTarget{Lookup: users, Own: Secret{"tgt", "another secret entirely"}}
	ch, err := g.Step([]KV{{"CHAP_A", "5"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := readChallenge(CHAPMD5, ch)
	if err != nil {
		t.Fatal(err)
	}
	r := encodeBinary(chapAnswer(CHAPMD5, c.id, "twelve bytes and more", c.bytes))
	_, err = g.Step([]KV{{"CHAP_N", "joe"}, {"CHAP_R", r}, ch[1], ch[2]})
	var ne *NegotiationError
	if !errors.As(err, &ne) || ne.Status != LoginAuthFailed || g.Done() {
		t.Fatal(err)
	}
}

func TestCHAPVectorWithMD5(t *testing.T) {
	// MD5 over 01 "secret" 00 01 02 03, computed with md5sum.
	got := hex.EncodeToString(chapAnswer(CHAPMD5, 1, "secret", []byte{0, 1, 2, 3}))
	if got != md5Vector {
		t.Fatal(got)
	}
}

const md5Vector = "e82cb2ed1efe04893c9cf73d4dd12e2d"

func TestSecretsDoNotPrint(t *testing.T) {
	s := Secret{"joe", "hidden"}
	if out := fmt.Sprintf("%v %+v %#v %s", s, s, s, s); strings.Contains(out, "hidden") {
		t.Fatal(out)
	}
}

func FuzzDecodeBinary(f *testing.F) {
	f.Add("0x0a0b")
	f.Add("0bAAEC")
	f.Add("0x123")
	f.Fuzz(func(t *testing.T, s string) {
		if b, err := DecodeBinary(s); err == nil && (len(b) == 0 || len(b) > MaxBinary) {
			t.Fatal(len(b))
		}
	})
}

func FuzzCHAPTarget(f *testing.F) {
	f.Add("5,7", "joe", "0x00", "1", "0x0102")
	f.Fuzz(func(t *testing.T, algs, n, r, i, c string) {
		g := &CHAPTarget{Lookup: users}
		if _, err := g.Step([]KV{{"CHAP_A", algs}}); err != nil {
			return
		}
		if _, err := g.Step([]KV{{"CHAP_N", n}, {"CHAP_R", r}, {"CHAP_I", i}, {"CHAP_C", c}}); err == nil {
			t.Fatal("a guess passed")
		}
	})
}
