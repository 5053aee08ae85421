package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// casIn is one operation on one block.
type casIn struct {
	read     bool
	old, new uint64
}

// casOut is its outcome: the value of a read, or what became of a comparison.
type casOut struct {
	value         uint64
	done, unknown bool
}

// register is a block with compare-and-swap. A comparison of unknown outcome took effect before its caller was told, or
// never will: that is what the fence promises.
var register = porcupine.NondeterministicModel{
	Init: func() []any { return []any{uint64(0)} },
	Step: func(state, input, output any) []any {
		s, in, out := state.(uint64), input.(casIn), output.(casOut)
		switch {
		case in.read && out.value == s:
			return []any{s}
		case in.read:
			return nil
		case out.unknown && s == in.old:
			return []any{s, in.new}
		case out.unknown:
			return []any{s}
		case out.done && s == in.old:
			return []any{in.new}
		case !out.done && s != in.old:
			return []any{s}
		}
		return nil
	},
}

func blockOf(v uint64) []byte {
	b := make([]byte, 512)
	for k := 0; k < 512; k += 8 {
		binary.BigEndian.PutUint64(b[k:], v)
	}
	return b
}

// Sessions of both transports compare and write the same blocks, and some of their wires are cut meanwhile: what all of
// them saw has one order.
func TestCompareAndWriteIsLinearizable(t *testing.T) {
	const (
		clients = 6
		blocks  = 3
		steps   = 40
	)
	s := newStand(t, iwarp.Options{})
	addr := s.Portal("127.0.0.1", 1)
	var mu sync.Mutex
	var history [blocks][]porcupine.Operation
	begin := time.Now()
	var wg sync.WaitGroup
	unknown := 0
	errs := make([]error, clients)
	for k := range clients {
		w := newRelay(t, addr)
		v := open(t, host(t, block.Options{Name: fmt.Sprintf("iqn.2026-01.org.example:client%d", k)}, iwarp.Options{}), url(schemes[k%2], w.addr()))
		rnd := rand.New(rand.NewSource(int64(k)))
		wg.Go(func() {
			var seen [blocks]uint64
			for step := range steps {
				if k < 4 && step%10 == 5 {
					w.after(rnd.Int63n(4 << 10))
				}
				b := rnd.Intn(blocks)
				op := porcupine.Operation{ClientId: k, Call: int64(time.Since(begin))}
				if rnd.Intn(3) == 0 {
					got := make([]byte, 512)
					if _, errs[k] = v.ReadAt(got, int64(b)*512); errs[k] != nil {
						return
					}
					seen[b] = binary.BigEndian.Uint64(got)
					if !bytes.Equal(got, blockOf(seen[b])) {
						errs[k] = errors.New("a block with two values in it")
						return
					}
					op.Input, op.Output = casIn{read: true}, casOut{value: seen[b]}
				} else {
					in := casIn{old: seen[b], new: uint64(k+1)<<32 | uint64(step+1)}
					out := casOut{}
					_, err := v.CompareAndWrite(t.Context(), int64(b)*512, blockOf(in.old), blockOf(in.new))
					switch {
					case err == nil:
						out.done, seen[b] = true, in.new
					case errors.Is(err, block.ErrOutcomeUnknown):
						out.unknown = true
					case !errors.Is(err, blockdev.ErrMiscompare):
						errs[k] = err
						return
					}
					op.Input, op.Output = in, out
				}
				op.Return = int64(time.Since(begin))
				mu.Lock()
				history[b] = append(history[b], op)
				if out, ok := op.Output.(casOut); ok && out.unknown {
					unknown++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		must(t, err)
	}
	m := register.ToModel()
	for b := range history {
		if r := porcupine.CheckOperationsTimeout(m, history[b], patience); r != porcupine.Ok {
			t.Errorf("block %d: the history of %d operations is not linearizable: %v", b, len(history[b]), r)
		}
	}
	t.Logf("%d outcomes were unknown", unknown)
}
