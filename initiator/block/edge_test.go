package block

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// A target without COMPARE AND WRITE: parts of one block that one volume's writers write at the same time are all kept.
func TestPartsOfABlockWithoutCompareAndWrite(t *testing.T) {
	f := newFake(t)
	v := f.mustOpen(Options{Keepalive: time.Hour}, "")
	if v.Unit().MaxCompare != 0 {
		t.Fatal("the fake has COMPARE AND WRITE")
	}
	const each = 100
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for i := range 10 {
				if _, err := v.WriteAt(bytes.Repeat([]byte{byte(16*k + i)}, each), int64(k*each+50)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b := make([]byte, 8*each)
	if _, err := v.ReadAt(b, 50); err != nil {
		t.Fatal(err)
	}
	for k := range 8 {
		if !bytes.Equal(b[k*each:][:each], bytes.Repeat([]byte{byte(16*k + 9)}, each)) {
			t.Errorf("part %d is %v", k, b[k*each:][:each])
		}
	}
}
