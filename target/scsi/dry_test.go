package scsi

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/sluice-storage/sluice/mem"
)

// A command that has waited for memory gets what was set aside for it, the first time that it asks, also one that runs on a goroutine of
// its own: else it would ask again and again while others are served before it.
func TestACommandThatWaitedForMemoryGetsIt(t *testing.T) {
	const tries = 100
	for name, cdb := range map[string]string{
		"READ":             "28 00 00000000 00 0001 00",
		"WRITE":            "2a 00 00000000 00 0001 00",
		"WRITE AND VERIFY": "2e 02 00000000 00 0001 00",
		"MODE SENSE":       "5a 00 3f 00 00 00 00 01 00 00",
	} {
		t.Run(name, func(t *testing.T) {
			var denied atomic.Int64
			mem.SetDrought(&mem.Drought{Deny: func(int) bool { denied.Add(1); return true }})
			defer mem.SetDrought(nil)
			r := rigIn(t, mem.NewPool(64<<20), newDisk(1<<20, 512))
			denied.Store(0)
			var out []byte
			in := 512
			if cdb[0] == '2' && cdb[1] != '8' {
				out, in = make([]byte, 512), 0
			}
			for range tries {
				if res := r.run(r.n, out, in, cdb); res.Status != StatusGood {
					t.Fatalf("%v %04X", res.Status, res.asc())
				}
			}
			if n := denied.Load(); n > tries {
				t.Errorf("%d commands were denied memory %d times", tries, n)
			}
		})
	}
}

// A command that waits for memory is continued by a goroutine behind which nothing is flushed, whatever it was told the time before:
// else what it queues would wait for ever.
func TestWhatWaitedForMemoryIsNotBehind(t *testing.T) {
	n := &Nexus{}
	n.opt.Memory = mem.NewPool(1 << 20).Quota(1 << 20)
	var told []bool
	c := &Command{Nexus: n}
	c.x.run = runWait
	c.x.step = func(c *Command) stepResult {
		if told = append(told, c.Behind); len(told) == 1 {
			n.waitMem(c)
		}
		return stepWait
	}
	c.x.mu.Lock()
	c.kickAndUnlock(true)
	n.memFree()
	if !slices.Equal(told, []bool{true, false}) {
		t.Errorf("behind, by turns: %v", told)
	}
}
