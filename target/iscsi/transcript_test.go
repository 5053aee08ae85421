package iscsi

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts of testdata again")

// turn is one request of a dialogue.
type turn struct {
	csg, nsg iscsi.Stage
	transit  bool
	keys     []string
}

// Login dialogues as files: a change of the protocol shows as a difference that can be read.
func TestLoginTranscripts(t *testing.T) {
	const sec, op, full = iscsi.StageSecurity, iscsi.StageOperational, iscsi.StageFullFeature
	who := names(testInitiator, testTarget)
	for name, d := range map[string]struct {
		rdma  bool
		turns []turn
	}{
		"open-iscsi-tcp": {false, []turn{
			{sec, op, true, append(who, "InitiatorAlias=host", "SessionType=Normal", "AuthMethod=None")},
			{op, full, true, []string{"HeaderDigest=None", "DataDigest=None", "DefaultTime2Wait=2", "DefaultTime2Retain=0", "IFMarker=No", "OFMarker=No",
				"ErrorRecoveryLevel=0", "InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=16776192", "FirstBurstLength=262144", "MaxOutstandingR2T=1",
				"MaxConnections=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "MaxRecvDataSegmentLength=262144"}},
		}},
		"open-iscsi-iser": {true, []turn{
			{sec, op, true, append(who, "InitiatorAlias=host", "SessionType=Normal", "AuthMethod=None")},
			{op, full, true, []string{"DefaultTime2Wait=2", "DefaultTime2Retain=0", "IFMarker=No", "OFMarker=No", "ErrorRecoveryLevel=0", "InitialR2T=No", "ImmediateData=Yes",
				"MaxBurstLength=16776192", "FirstBurstLength=262144", "MaxOutstandingR2T=1", "MaxConnections=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes",
				"InitiatorRecvDataSegmentLength=262144", "TargetRecvDataSegmentLength=8192", "RDMAExtensions=Yes"}},
		}},
		"rfc7145-iser": {true, []turn{
			{op, full, true, append(who, "RDMAExtensions=Yes", "MaxOutstandingUnexpectedPDUs=4", "MaxAHSLength=0", "TaggedBufferForSolicitedDataOnly=Yes",
				"iSERHelloRequired=No", "HeaderDigest=CRC32C,None")},
		}},
		"discovery-iser": {true, []turn{
			{op, full, true, []string{"InitiatorName=" + testInitiator, "SessionType=Discovery", "MaxRecvDataSegmentLength=32768", "MaxBurstLength=4096"}},
		}},
		"digest-too-early": {false, []turn{
			{sec, op, true, append(who, "InitiatorAlias=", "SessionType=Normal", "HeaderDigest=None,CRC32C")},
		}},
		"nothing-offered": {false, []turn{{op, full, true, who}}},
		"wrong-target":    {false, []turn{{op, full, true, names(testInitiator, "iqn.2026-11.dev.sluice:nope")}}},
	} {
		t.Run(name, func(t *testing.T) {
			var p *peer
			if d.rdma {
				p = newTwinFixture(t).dialISER(iscsi.CMPrivate(true))
			} else {
				p = newFixture(t).dial()
			}
			var b strings.Builder
			for _, u := range d.turns {
				fmt.Fprintf(&b, "> %s to %s, T=%v\n", u.csg, u.nsg, u.transit)
				for _, k := range u.keys {
					fmt.Fprintf(&b, "    %s\n", k)
				}
				l, data := p.step(u.csg, u.nsg, u.transit, u.keys...)
				fmt.Fprintf(&b, "< %s to %s, T=%v, status %04x, TSIH set: %v\n", l.CSG, l.NSG, l.Transit, uint16(l.Status), l.TSIH != 0)
				for _, k := range text(data) {
					fmt.Fprintf(&b, "    %s\n", k)
				}
				if l.Status != 0 {
					break
				}
			}
			file := filepath.Join("testdata", "login-"+name+".txt")
			if *rewrite {
				must(t, os.MkdirAll("testdata", 0o755))
				must(t, os.WriteFile(file, []byte(b.String()), 0o644))
				return
			}
			want, err := os.ReadFile(file)
			must(t, err)
			if got := b.String(); got != string(want) {
				t.Errorf("the dialogue differs from %s (-rewrite writes it):\n%s", file, regexp.MustCompile(`(?m)^`).ReplaceAllString(got, "  "))
			}
		})
	}
}
