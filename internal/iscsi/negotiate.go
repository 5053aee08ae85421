package iscsi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Values that answer without being a value (RFC 7143 section 6.2).
const (
	notUnderstood = "NotUnderstood"
	irrelevant    = "Irrelevant"
	reject        = "Reject"
)

// KV is one pair for the owner of a negotiation: a declaration of text or a step of an exchange such as CHAP.
type KV struct{ Key, Value string }

// NegotiatorOptions say on which side and on what kind of connection a negotiation runs.
type NegotiatorOptions struct {
	Target bool // this side is the target
	ISER   bool // the connection is an iSER one: RDMAExtensions may become Yes and digests are None
}

// Negotiator runs one side's negotiation over any number of PDUs: it parses text that may be split with the C bit,
// applies the rules of the table, queues answers and keeps results. Not safe for concurrent use.
type Negotiator struct {
	o         NegotiatorOptions
	discovery bool
	in        []byte // text of earlier PDUs of the sequence, C bit set
	out       []byte // text queued
	want      map[string]string
	offered   map[string]string // our offers without an answer yet, and our declarations
	sent      map[string]bool
	got       map[string]bool
	result    map[string]string // of negotiated keys
	peer      map[string]string // declared by the peer
	pairs     int
}

// NewNegotiator returns a negotiator that supports what the table's Want column says.
func NewNegotiator(o NegotiatorOptions) *Negotiator {
	n := &Negotiator{o: o, want: map[string]string{}, offered: map[string]string{}, sent: map[string]bool{}, got: map[string]bool{},
		result: map[string]string{}, peer: map[string]string{}}
	for i := range Keys {
		if k := &Keys[i]; k.Want != "" {
			n.want[k.Name] = k.Want
		}
	}
	n.want["RDMAExtensions"] = yesNo(o.ISER)
	if o.ISER {
		n.want["HeaderDigest"], n.want["DataDigest"] = "None", "None"
	}
	return n
}

func yesNo(b bool) string {
	if b {
		return "Yes"
	}
	return "No"
}

// Want sets what this side supports of a key: a list in order of preference, a bound of a number, a Boolean. It is the
// value of Offer and the limit of answers.
func (n *Negotiator) Want(key, value string) { n.want[key] = value }

// WantInt is Want with a number.
func (n *Negotiator) WantInt(key string, v int) { n.Want(key, strconv.Itoa(v)) }

// Offer queues this side's wanted value of a key as an offer or declaration.
func (n *Negotiator) Offer(key string) { n.Send(key, n.want[key]) }

// Send queues a pair of the caller's.
func (n *Negotiator) Send(key, value string) {
	if k := LookupKey(key); k != nil && k.Rule != RuleText {
		n.offered[key] = value
	}
	n.sent[key] = true
	n.queue(key, value)
}

func (n *Negotiator) queue(key, value string) {
	n.out = append(n.out, key...)
	n.out = append(n.out, '=')
	n.out = append(n.out, value...)
	n.out = append(n.out, 0)
}

// Fill appends at most limit bytes of queued text to b and reports whether some is left: the PDU's C bit.
func (n *Negotiator) Fill(b []byte, limit int) (text []byte, more bool) {
	take := min(limit, len(n.out))
	b = append(b, n.out[:take]...)
	n.out = append(n.out[:0], n.out[take:]...)
	return b, len(n.out) > 0
}

// Pending reports whether text is queued.
func (n *Negotiator) Pending() bool { return len(n.out) > 0 }

// Open reports whether an offer of ours still waits for an answer that the rules require.
func (n *Negotiator) Open() bool {
	for key, v := range n.offered {
		k := LookupKey(key)
		if k.declared() || k.Rule == RuleAnd && v == "No" || k.Rule == RuleOr && v == "Yes" {
			continue
		}
		return true
	}
	return false
}

// Partial reports whether text came whose end is still to come: the answer must be an empty PDU (section 6.2).
func (n *Negotiator) Partial() bool { return len(n.in) > 0 }

// Receive takes the data segment of one PDU of a stage; more is its C bit. It returns the pairs that are the owner's to
// act on, in order, once the sequence is complete, and queues answers to the rest. An error ends the negotiation.
func (n *Negotiator) Receive(stage Stage, text []byte, more bool) ([]KV, error) {
	if len(n.in)+len(text) > MaxText {
		return nil, n.fail("", "6.2", LoginOutOfResources, fmt.Sprintf("more than %d bytes of text", MaxText))
	}
	if more {
		n.in = append(n.in, text...)
		return nil, nil
	}
	if len(n.in) > 0 {
		text = append(n.in, text...)
	}
	n.in = nil
	pairs, err := n.split(text)
	if err != nil {
		return nil, err
	}
	// What other keys depend on comes first, wherever the peer put it: Linux names RDMAExtensions last.
	var owner []KV
	for _, first := range []bool{true, false} {
		for _, p := range pairs {
			if first != (p.Key == "RDMAExtensions" || p.Key == "SessionType") {
				continue
			}
			mine, err := n.one(stage, p)
			if err != nil {
				return nil, err
			}
			if mine {
				owner = append(owner, p)
			}
		}
	}
	return owner, nil
}

// identity reports whether a key says who logs in to what.
func (k *Key) identity() bool {
	return k.Name == "InitiatorName" || k.Name == "TargetName" || k.Name == "SessionType"
}

func (n *Negotiator) split(text []byte) ([]KV, error) {
	var pairs []KV
	for len(text) > 0 {
		end := slices.Index(text, 0)
		var item []byte
		if end < 0 {
			item, text = text, nil
		} else {
			item, text = text[:end], text[end+1:]
		}
		if len(item) == 0 {
			continue
		}
		if n.pairs++; n.pairs > MaxKeys {
			return nil, n.fail("", "6.2", LoginOutOfResources, fmt.Sprintf("more than %d keys", MaxKeys))
		}
		key, value, ok := strings.Cut(string(item), "=")
		if !ok || !goodKeyName(key) {
			return nil, n.fail(clip(key), "6.1", LoginInitiatorError, "text that is not key=value with a legal key name")
		}
		if len(value) > MaxValue {
			return nil, n.fail(key, "6.1", LoginInitiatorError, fmt.Sprintf("a value of %d bytes", len(value)))
		}
		pairs = append(pairs, KV{key, value})
	}
	return pairs, nil
}

func goodKeyName(s string) bool {
	if s == "" || len(s) > MaxKeyName {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z':
		case i > 0 && (c >= '0' && c <= '9' || strings.IndexByte(".-+@_#", c) >= 0):
		default:
			return false
		}
	}
	return true
}

func (n *Negotiator) fail(key, clause string, s LoginStatus, detail string) error {
	return &NegotiationError{Key: key, Clause: clause, Status: s, Detail: detail}
}

// one handles a pair; it reports whether the pair is the owner's.
func (n *Negotiator) one(stage Stage, p KV) (bool, error) {
	k := LookupKey(p.Key)
	special := p.Value == notUnderstood || p.Value == irrelevant || p.Value == reject
	if k == nil {
		if !special && !n.got[p.Key] {
			n.got[p.Key] = true
			n.queue(p.Key, notUnderstood)
		}
		return false, nil
	}
	if special && n.sent[p.Key] {
		return false, n.refused(k, p.Value)
	}
	if err := n.allowed(k, stage); err != nil {
		return false, err
	}
	said, again := n.peer[k.Name]
	again = again && n.o.Target && k.identity()
	if again && said == p.Value {
		// libiscsi says its name again in each request of a login. Nothing is negotiated again by that (section 6.3).
		return false, nil
	}
	if again || n.got[k.Name] && !k.Repeats {
		return false, n.fail(k.Name, "6.3", LoginInitiatorError, "the key came twice")
	}
	n.got[k.Name] = true
	if special {
		return false, n.fail(k.Name, "6.2", LoginInitiatorError, fmt.Sprintf("%q answers a key that was not offered", p.Value))
	}
	if k.Rule == RuleText {
		n.peer[k.Name] = p.Value
		if k.Name == "SessionType" {
			n.discovery = p.Value == "Discovery"
		}
		return true, nil
	}
	if k.declared() {
		return false, n.declaration(k, p.Value)
	}
	if offer, ok := n.offered[k.Name]; ok {
		delete(n.offered, k.Name)
		return false, n.answer(k, offer, p.Value)
	}
	return false, n.request(k, p.Value)
}

// refused handles NotUnderstood, Irrelevant and Reject in answer to what this side sent.
func (n *Negotiator) refused(k *Key, value string) error {
	delete(n.offered, k.Name)
	// Reject of an offer ends the negotiation of that key, and nothing else of the table can be agreed without it
	// (section 6.2); keys of RFC 7145 may be unknown to a target and then have their defaults.
	if value == reject && !k.declared() && !k.NeedsRDMA {
		s := LoginInitiatorError
		if k.Name == "AuthMethod" {
			s = LoginAuthFailed
		}
		return n.fail(k.Name, "6.2", s, "the peer rejects every value offered")
	}
	if !k.declared() {
		n.result[k.Name] = k.Default
	}
	return nil
}

func (n *Negotiator) allowed(k *Key, stage Stage) error {
	var phase uint8
	switch stage {
	case StageSecurity:
		phase = InSecurity
	case StageOperational:
		phase = InOperational
	default:
		phase = InFull
	}
	if k.Where&phase == 0 {
		return n.fail(k.Name, "6.3", LoginInitiatorError, fmt.Sprintf("the key is not allowed in %s", stage))
	}
	sender := ByTarget
	if n.o.Target {
		sender = ByInitiator
	}
	if k.Where&sender == 0 {
		return n.fail(k.Name, k.Clause, LoginInitiatorError, "the key is not this side's to send")
	}
	return nil
}

func (n *Negotiator) declaration(k *Key, value string) error {
	if k.Rule == RuleBool {
		if value != "Yes" && value != "No" {
			return n.fail(k.Name, k.Clause, LoginInitiatorError, fmt.Sprintf("%q is neither Yes nor No", clip(value)))
		}
	} else if _, ok := k.number(value); !ok {
		return n.fail(k.Name, k.Clause, LoginInitiatorError, fmt.Sprintf("%q is not a number in range", clip(value)))
	}
	n.peer[k.Name] = value
	return nil
}

// number parses a decimal or hexadecimal value and checks the table's range.
func (k *Key) number(s string) (uint64, bool) {
	v, ok := ParseNumber(s)
	return v, ok && (v >= k.Min && v <= k.Max || v == 0 && k.ZeroOK)
}

// ParseNumber reads a decimal or hexadecimal constant of up to 64 bits (section 6.1).
func ParseNumber(s string) (uint64, bool) {
	base := 10
	if strings.HasPrefix(s, "0x") || strings.HasPrefix(s, "0X") {
		s, base = s[2:], 16
	}
	if s == "" || s[0] == '+' || strings.IndexByte(s, '_') >= 0 {
		return 0, false
	}
	v, err := strconv.ParseUint(s, base, 64)
	return v, err == nil
}

// request handles an offer of the peer's and queues the answer.
func (n *Negotiator) request(k *Key, value string) error {
	want, limited := n.want[k.Name]
	answer := reject
	switch {
	case k.NotDiscovery && n.discovery, k.NeedsRDMA && n.result["RDMAExtensions"] != "Yes" && !n.discovery:
		answer = irrelevant
	case k.Rule == RuleObsolete:
	case k.Rule == RuleList:
		answer = n.choose(k, value, want)
		if answer == reject && k.Name == "AuthMethod" {
			return n.fail(k.Name, "12", LoginAuthFailed, fmt.Sprintf("none of the methods %q is offered here", clip(value)))
		}
	case k.Rule == RuleAnd || k.Rule == RuleOr:
		if value == "Yes" || value == "No" {
			v, w := value == "Yes", want == "Yes"
			switch {
			case !limited:
				answer = value
			case k.Rule == RuleAnd:
				answer = yesNo(v && w)
			default:
				answer = yesNo(v || w)
			}
		}
	default:
		if v, ok := k.number(value); ok {
			if w, ok := k.number(want); ok && limited {
				if k.Rule == RuleMin {
					v = min(v, w)
				} else {
					v = max(v, w)
				}
			}
			answer = strconv.FormatUint(v, 10)
		}
	}
	if answer == reject || answer == irrelevant {
		n.result[k.Name] = k.Default
	} else {
		n.result[k.Name] = answer
	}
	n.sent[k.Name] = true
	n.queue(k.Name, answer)
	return nil
}

func (n *Negotiator) choose(k *Key, offer, want string) string {
	// RFC 7145 section 6.1: over iSER digests are None whatever was offered; open-iscsi does offer CRC32C.
	if n.o.ISER && (k.Name == "HeaderDigest" || k.Name == "DataDigest") {
		return "None"
	}
	support := strings.Split(want, ",")
	for v := range strings.SplitSeq(offer, ",") {
		if slices.Contains(support, v) {
			return v
		}
	}
	return reject
}

// answer checks the peer's answer against our offer (section 6.2.2: an inadmissible selection is a protocol error).
func (n *Negotiator) answer(k *Key, offer, value string) error {
	ok := false
	switch k.Rule {
	case RuleList:
		ok = slices.Contains(strings.Split(offer, ","), value) ||
			value == "None" && n.o.ISER && (k.Name == "HeaderDigest" || k.Name == "DataDigest")
	case RuleAnd:
		ok = value == "No" || value == "Yes" && offer == "Yes"
	case RuleOr:
		ok = value == "Yes" || value == "No" && offer == "No"
	case RuleMin, RuleMax:
		v, good := k.number(value)
		o, _ := k.number(offer)
		ok = good && (k.Rule == RuleMin && v <= o || k.Rule == RuleMax && v >= o)
	case RuleObsolete:
		ok = value == "No"
	}
	if !ok {
		return n.fail(k.Name, "6.2.2", LoginInitiatorError, fmt.Sprintf("%q is no admissible answer to %q", clip(value), offer))
	}
	n.result[k.Name] = value
	return nil
}
