package iscsi

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// exchange runs text from a to b and back in PDUs of at most size bytes until neither has more to say.
func exchange(t interface{ Fatal(...any) }, stage Stage, a, b *Negotiator, size int) (toA, toB []KV, err error) {
	for range 1000 {
		if !a.Pending() && !b.Pending() {
			return toA, toB, nil
		}
		for _, d := range []struct {
			from, to *Negotiator
			kv       *[]KV
		}{{a, b, &toB}, {b, a, &toA}} {
			if d.from.Partial() {
				continue
			}
			text, more := d.from.Fill(nil, size)
			kv, err := d.to.Receive(stage, text, more)
			if err != nil {
				return toA, toB, err
			}
			*d.kv = append(*d.kv, kv...)
		}
	}
	t.Fatal("the negotiation does not end")
	return nil, nil, nil
}

func text(pairs ...string) []byte { return []byte(strings.Join(pairs, "\x00") + "\x00") }

func filled(n *Negotiator) string {
	b, _ := n.Fill(nil, 1<<20)
	return strings.ReplaceAll(string(b), "\x00", " ")
}

// The keys of ib_iser's first Send, in its order, to a target over iSER.
func TestLinuxOverISER(t *testing.T) {
	n := NewNegotiator(NegotiatorOptions{Target: true, ISER: true})
	n.WantInt("InitiatorRecvDataSegmentLength", 8192)
	n.WantInt("TargetRecvDataSegmentLength", 8192)
	n.WantInt("MaxBurstLength", 1<<20)
	kv, err := n.Receive(StageOperational, text("InitiatorName=iqn.2016-04.com.x:a", "TargetName=iqn.2016-04.com.x:b", "SessionType=Normal",
		"DefaultTime2Wait=2", "DefaultTime2Retain=0", "ErrorRecoveryLevel=0", "MaxConnections=1", "MaxBurstLength=16776192",
		"FirstBurstLength=262144", "InitialR2T=No", "ImmediateData=Yes", "HeaderDigest=CRC32C", "InitiatorRecvDataSegmentLength=262144",
		"TargetRecvDataSegmentLength=8192", "RDMAExtensions=Yes"), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(kv) != 3 || kv[0].Key != "SessionType" || kv[1].Value != "iqn.2016-04.com.x:a" {
		t.Fatal(kv)
	}
	got := filled(n)
	for _, want := range []string{"RDMAExtensions=Yes ", "InitiatorRecvDataSegmentLength=8192 ", "MaxBurstLength=1048576 ", "InitialR2T=No ", "HeaderDigest=None "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	p := n.Params()
	if !p.RDMA || p.MaxSend != 8192 || p.MaxRecv != 8192 || p.InitialR2T || !p.ImmediateData || p.FirstBurst != 262144 || p.BaseCoversAll {
		t.Fatalf("%+v", p)
	}
}

func TestRDMAOnPlainTCPIsDeclined(t *testing.T) {
	n := NewNegotiator(NegotiatorOptions{Target: true})
	if _, err := n.Receive(StageOperational, text("RDMAExtensions=Yes", "TargetRecvDataSegmentLength=8192", "MaxAHSLength=0"), false); err != nil {
		t.Fatal(err)
	}
	if got := filled(n); got != "RDMAExtensions=No TargetRecvDataSegmentLength=Irrelevant " {
		t.Fatal(got)
	}
}

func TestAnswersByRule(t *testing.T) {
	for _, c := range []struct{ offer, answer string }{
		{"HeaderDigest=CRC32C,None", "HeaderDigest=CRC32C"},
		{"HeaderDigest=X-foo,None", "HeaderDigest=None"},
		{"HeaderDigest=X-foo", "HeaderDigest=Reject"},
		{"MaxConnections=8", "MaxConnections=1"},
		{"MaxBurstLength=0x1000", "MaxBurstLength=4096"},
		{"MaxBurstLength=99", "MaxBurstLength=Reject"},
		{"MaxBurstLength=many", "MaxBurstLength=Reject"},
		{"InitialR2T=Maybe", "InitialR2T=Reject"},
		{"DataPDUInOrder=No", "DataPDUInOrder=Yes"},
		{"ErrorRecoveryLevel=2", "ErrorRecoveryLevel=0"},
		{"DefaultTime2Wait=5", "DefaultTime2Wait=5"},
		{"IFMarker=Yes", "IFMarker=Reject"},
		{"OFMarkInt=1~2", "OFMarkInt=Reject"},
		{"X-com.example.thing=1", "X-com.example.thing=NotUnderstood"},
		{"TaskReporting=FastAbort,RFC3720", "TaskReporting=RFC3720"},
	} {
		n := NewNegotiator(NegotiatorOptions{Target: true})
		if _, err := n.Receive(StageOperational, text(c.offer), false); err != nil {
			t.Fatal(err)
		}
		if got := filled(n); got != c.answer+" " {
			t.Errorf("%s: %s", c.offer, got)
		}
	}
}

func TestWhatALoginMustNotSay(t *testing.T) {
	for name, in := range map[string][]byte{
		"twice":         text("MaxBurstLength=4096", "MaxBurstLength=4096"),
		"not key=value": text("hello"),
		"key name":      text("9abc=1"),
		"long name":     text(strings.Repeat("k", 64) + "=1"),
		"long value":    text("X-a=" + strings.Repeat("v", MaxValue+1)),
		"wrong stage":   text("SendTargets=All"),
		"wrong sender":  text("TargetPortalGroupTag=1"),
		"no offer":      text("MaxBurstLength=Reject"),
		"declaration":   text("MaxRecvDataSegmentLength=1"),
		"flood":         []byte(strings.Repeat("X-a=1\x00", MaxKeys+1)),
		"too much":      make([]byte, MaxText+1),
	} {
		n := NewNegotiator(NegotiatorOptions{Target: true})
		var ne *NegotiationError
		if _, err := n.Receive(StageOperational, in, false); !errors.As(err, &ne) || ne.Status.Class() < 2 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInadmissibleAnswersAreRefused(t *testing.T) {
	for offer, answer := range map[string]string{"MaxBurstLength=4096": "MaxBurstLength=8192", "InitialR2T=Yes": "InitialR2T=No",
		"ImmediateData=No": "ImmediateData=Yes", "HeaderDigest=CRC32C": "HeaderDigest=None", "DefaultTime2Wait=5": "DefaultTime2Wait=4",
		"MaxConnections=1": "MaxConnections=Reject"} {
		n := NewNegotiator(NegotiatorOptions{})
		k, v, _ := strings.Cut(offer, "=")
		n.Want(k, v)
		n.Offer(k)
		if _, err := n.Receive(StageOperational, text(answer), false); err == nil {
			t.Errorf("%s answered by %s", offer, answer)
		}
	}
}

// Two of our own sides agree on the same parameters, whatever they want and however small the PDUs are.
func TestBothSidesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		iser := rapid.Bool().Draw(t, "iser")
		i, g := NewNegotiator(NegotiatorOptions{ISER: iser}), NewNegotiator(NegotiatorOptions{Target: true, ISER: iser})
		for _, n := range []*Negotiator{i, g} {
			for i := range Keys {
				switch k := &Keys[i]; k.Rule {
				case RuleMin, RuleMax, RuleNumber:
					n.Want(k.Name, strconv.FormatUint(rapid.Uint64Range(max(k.Min, 1), k.Max).Draw(t, k.Name), 10))
				case RuleAnd, RuleOr, RuleBool:
					if k.Name != "RDMAExtensions" {
						n.Want(k.Name, yesNo(rapid.Bool().Draw(t, k.Name)))
					}
				}
			}
		}
		for _, k := range Keys {
			if k.Where&InOperational == 0 || k.Where&ByInitiator == 0 || k.Rule == RuleText || k.Rule == RuleObsolete {
				continue
			}
			if rapid.Bool().Draw(t, "offer "+k.Name) || k.Name == "RDMAExtensions" {
				i.Offer(k.Name)
			}
		}
		if _, _, err := exchange(t, StageOperational, i, g, rapid.IntRange(1, 600).Draw(t, "size")); err != nil {
			t.Fatal(err)
		}
		if i.Open() || g.Open() {
			t.Fatal("an offer has no answer")
		}
		a, b := i.Params(), g.Params()
		if a.MaxSend != b.MaxRecv && a.RDMA {
			t.Fatalf("%+v\n%+v", a, b)
		}
		// What is each side's own, and declarations, differ by nature.
		for _, p := range []*Params{&a, &b} {
			p.MaxSend, p.MaxRecv, p.PeerAHS, p.PeerUnexpected, p.UnexpectedDeclared, p.BaseCoversAll, p.HelloRequired = 0, 0, 0, 0, false, false, false
		}
		if a != b {
			t.Fatalf("%+v\n%+v", a, b)
		}
	})
}

func FuzzNegotiator(f *testing.F) {
	f.Add(text("SessionType=Normal", "MaxBurstLength=0x1000", "RDMAExtensions=Yes"), []byte{}, true)
	f.Add(text("HeaderDigest=CRC32C,None"), text("CHAP_A=5"), false)
	f.Add([]byte("a=\x00=b\x00Reject"), []byte("InitialR2T=Irrelevant"), true)
	f.Fuzz(func(t *testing.T, a, b []byte, target bool) {
		n := NewNegotiator(NegotiatorOptions{Target: target, ISER: len(a)%2 == 0})
		n.Offer("HeaderDigest")
		n.Send("MaxBurstLength", "4096")
		for _, s := range []Stage{StageOperational, StageSecurity, StageFullFeature} {
			if _, err := n.Receive(s, a, true); err != nil {
				return
			}
			if _, err := n.Receive(s, b, false); err != nil {
				return
			}
		}
		p := n.Params()
		if p.MaxBurst < 512 || p.MaxBurst > max24 || p.MaxSend < 512 || p.FirstBurst > p.MaxBurst {
			t.Fatalf("%+v", p)
		}
	})
}
