package twohosts

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// The judge takes what a disk may show, and nothing else.
func TestTheJudge(t *testing.T) {
	const ms = int64(time.Millisecond)
	w := func(host int, f fate, v uint64, call, ret int64) op {
		return op{host: host, kind: write, fate: f, value: v, call: call * ms, ret: ret * ms}
	}
	r := func(v uint64, call int64) op {
		return op{host: 9, kind: read, value: v, call: call * ms, ret: (call + 1) * ms}
	}
	all := func(k kind, f fate, call int64) op {
		return op{host: 9, kind: k, fate: f, call: call * ms, ret: (call + 1) * ms}
	}
	fua := w(0, done, 5, 0, 1)
	fua.fua = true
	for name, c := range map[string]struct {
		power, ok bool
		again     int
		ops       []op
	}{
		"a read of the last write":                     {ok: true, ops: []op{w(0, done, 5, 0, 1), w(1, done, 6, 2, 3), r(6, 4)}},
		"a write that lands after a later one":         {ops: []op{w(0, done, 5, 0, 1), w(1, done, 6, 2, 3), r(5, 4)}},
		"a write that is lost":                         {ops: []op{w(0, done, 5, 0, 1), r(0, 4)}},
		"a write that failed and took effect":          {ok: true, ops: []op{w(0, maybe, 5, 0, 3), r(5, 4)}},
		"a write that failed and took none":            {ok: true, ops: []op{w(0, maybe, 5, 0, 3), r(0, 4)}},
		"a write that takes effect after it failed":    {ops: []op{w(0, maybe, 5, 0, 3), r(0, 4), r(5, 6)}},
		"one that was given up does":                   {ok: true, ops: []op{w(0, open, 5, 0, 3), r(0, 4), r(5, 6)}},
		"one that was given up does after a newer one": {ops: []op{w(0, open, 5, 0, 3), w(0, done, 6, 4, 6), r(6, 7), r(5, 9)}},
		"a write that is sent again around another's":  {ok: true, again: 1, ops: []op{w(0, done, 5, 0, 20), r(5, 2), w(1, done, 6, 4, 5), r(6, 7), r(5, 21)}},
		"one that failed after another took its place": {ok: true, again: 1, ops: []op{w(0, maybe, 5, 0, 20), r(5, 2), w(1, done, 6, 4, 5), r(6, 7), r(5, 21)}},
		"a write that comes again after its end":       {ops: []op{w(0, done, 5, 0, 20), w(1, done, 6, 21, 22), r(6, 23), r(5, 25)}},
		"a loss of power takes what was not flushed":   {power: true, ok: true, ops: []op{w(0, done, 5, 0, 1), all(crash, done, 2), r(0, 4)}},
		"or leaves it":                                    {power: true, ok: true, ops: []op{w(0, done, 5, 0, 1), all(crash, done, 2), r(5, 4)}},
		"it leaves no other":                              {power: true, ops: []op{w(0, done, 5, 0, 1), all(crash, done, 2), r(5, 4), r(0, 6)}},
		"it does not take what was flushed":               {power: true, ops: []op{w(0, done, 5, 0, 1), all(flush, done, 2), all(crash, done, 4), r(0, 6)}},
		"it may take what a failed flush was to save":     {power: true, ok: true, ops: []op{w(0, done, 5, 0, 1), all(flush, maybe, 2), all(crash, done, 4), r(0, 6)}},
		"it does not take what FUA saved":                 {power: true, ops: []op{fua, all(crash, done, 4), r(0, 6)}},
		"it leaves something in between":                  {power: true, ok: true, ops: []op{w(0, done, 5, 0, 1), w(0, done, 6, 2, 3), w(0, done, 7, 4, 5), all(crash, done, 6), r(6, 8)}},
		"it does not bring back what a flush has covered": {power: true, ops: []op{w(0, done, 5, 0, 1), w(0, done, 6, 2, 3), all(flush, done, 4), w(0, done, 7, 6, 7), all(crash, done, 8), r(5, 10)}},
	} {
		again, err := judge(c.ops, 1, c.power, judgement)
		if (err == nil) != c.ok || again != c.again {
			t.Errorf("%s: %v, %d writes count twice", name, err, again)
		}
		// What is left out of a long search takes no order away, and none of these mistakes hides behind it.
		if r := check(blockModel(c.power), plain(repeat(about(c.ops, 0, c.power), int64(sendsAgain[0]))), judgement); c.again == 0 && (r == porcupine.Ok) != c.ok {
			t.Errorf("%s: %v without what forbids little", name, r)
		}
	}
}
