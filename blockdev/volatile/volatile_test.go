package volatile_test

import (
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/volatile"
	"github.com/sluice-storage/sluice/mem"
)

func open(t testing.TB) *volatile.Device {
	d, err := volatile.Open(volatile.Options{Size: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Options{
		Open:   func(t testing.TB) blockdev.Device { return open(t) },
		Reopen: func(_ testing.TB, d blockdev.Device) blockdev.Device { return d.(*volatile.Device).Reopen() },
	})
}

func TestACutLosesSomeOfWhatWasNotFlushedAndNothingElse(t *testing.T) {
	const n = 256 << 10
	m := blockdevtest.NewMemory(t, n)
	ones := make([]byte, n)
	for i := range ones {
		ones[i] = 1
	}
	d := open(t)
	blockdevtest.Write(t, d, m, 0, ones, true)
	blockdevtest.Write(t, d, m, n, ones, false)
	blockdevtest.Flush(t, d)
	blockdevtest.Write(t, d, m, 2*n, ones, false)
	d.Cut(7)
	s := []mem.Span{m.All()}
	if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Read, Length: n, Data: s}); !errors.Is(err, volatile.ErrPower) {
		t.Fatalf("a read without power: %v", err)
	}
	d = d.Reopen()
	count := func(off int64) (whole, torn int) {
		b := blockdevtest.Read(t, d, m, off, n)
		for i := 0; i < n; i += 512 {
			sum := 0
			for _, c := range b[i : i+512] {
				sum += int(c)
			}
			switch sum {
			case 512:
				whole++
			case 0:
			default:
				torn++
			}
		}
		return whole, torn
	}
	for i, want := range []struct{ low, high int }{{512, 512}, {512, 512}, {1, 511}} {
		if whole, torn := count(int64(i * n)); whole < want.low || whole > want.high || torn != 0 {
			t.Errorf("part %d: %d sectors kept and %d torn, want %d to %d and none", i, whole, torn, want.low, want.high)
		}
	}
}

func TestAnArmedCutHitsInTheMiddleOfAFlush(t *testing.T) {
	d := open(t)
	m := blockdevtest.NewMemory(t, 64<<10)
	blockdevtest.Write(t, d, m, 0, make([]byte, 64<<10), false)
	d.CutAfter(100, 3)
	if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); !errors.Is(err, volatile.ErrPower) {
		t.Fatalf("a flush that lost power: %v", err)
	}
	blockdevtest.Flush(t, d.Reopen())
}
