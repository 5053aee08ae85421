package e2e

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// A LUN number is given to another volume, in one step and in two, below 32 writes: each write is acknowledged by the old
// volume or fails and says why, and not a byte gets into the new one. When the old one is back, it can be written again.
func TestALUNIsRemappedBelowWrites(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			s := newStand(t, iwarp.Options{})
			old := s.Units[0]
			d, err := bmem.Open(bmem.Options{Size: diskSize, Logical: 512})
			must(t, err)
			defer func() { must(t, d.Close()) }()
			other, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: d, Name: "other", Serial: "e2e-other"})
			must(t, err)
			v := open(t, host(t, block.Options{MaxBackoff: 20 * time.Millisecond}, iwarp.Options{}), url(scheme, s.Portal("127.0.0.1", 1)))
			for round := range 3 {
				var wg sync.WaitGroup
				started := make(chan struct{}, 32)
				for k := range 32 {
					wg.Go(func() {
						for n := 0; ; n++ {
							if n == 2 {
								started <- struct{}{}
							}
							if _, err := v.WriteAt(pattern(8192, int64(k)), int64(k)*8192); err != nil {
								if !errors.Is(err, block.ErrOtherUnit) {
									t.Errorf("a write ends with %v", err)
								}
								return
							}
						}
					})
				}
				for range 32 {
					<-started
				}
				must(t, s.SCSI.RemoveLUN(0))
				if round == 1 {
					time.Sleep(20 * time.Millisecond) // nothing is mapped for a while
				}
				must(t, s.SCSI.AddLUN(0, other))
				wg.Wait()
				blank(t, s, d)
				must(t, errors.Join(s.SCSI.RemoveLUN(0), s.SCSI.AddLUN(0, old)))
				for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // the path is tried now and then
					if _, err = v.WriteAt(pattern(512, 1), 0); err == nil {
						break
					}
					if time.Now().After(deadline) {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// blank makes sure that nothing was ever written to a disk.
func blank(t *testing.T, s *served, d blockdev.Device) {
	t.Helper()
	b, err := s.Pool.Get(1 << 20)
	must(t, err)
	defer b.Release()
	for off := int64(0); off < diskSize; off += 1 << 20 {
		must(t, blockdev.Do(t.Context(), d, &blockdev.Request{Op: blockdev.Read, Offset: off, Length: 1 << 20, Data: []mem.Span{b.Span()}}))
		if !bytes.Equal(b.Bytes(), make([]byte, 1<<20)) {
			t.Fatal("writes have landed on another volume")
		}
	}
}
