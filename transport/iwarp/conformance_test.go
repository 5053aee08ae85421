package iwarp

import (
	"testing"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// conform opens pairs for the suite of the contract.
func conform(o Options) func(t testing.TB) transporttest.Pair {
	return func(t testing.TB) transporttest.Pair {
		mk := func() transport.Device {
			d := New(o)
			t.Cleanup(func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			})
			return d
		}
		return transporttest.Pair{Dialer: mk(), Listener: mk(), Addr: "127.0.0.1:0", Addr6: "[::1]:0"}
	}
}

func TestKeepsEveryRule(t *testing.T) {
	for name, o := range map[string]Options{
		"default":    {},
		"segments":   {CRC: CRCOn, FPDU: FPDUSegment},
		"peerToPeer": {PeerToPeer: true},
		"noBatch":    {NoBatch: true},
		"noZeroCopy": {NoZeroCopy: true},
		"noInline":   {NoInline: true},
	} {
		t.Run(name, func(t *testing.T) { transporttest.Run(t, conform(o)) })
	}
}
