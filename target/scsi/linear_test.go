package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// blockOp is an operation on one block, whose content is one number.
type blockOp struct {
	kind     byte // r, w, c(ompare and write)
	old, now uint64
}

// TestBlocksAreLinearizable: reads, writes and COMPARE AND WRITE of many nexuses on few blocks have an order that explains
// every answer, also while other nexuses' commands are aborted.
func TestBlocksAreLinearizable(t *testing.T) {
	r := newRig(t)
	r.disk.async = true
	const nexuses, blocks, each = 4, 2, 40
	model := porcupine.Model{
		Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, blocks)
			for _, o := range h {
				b := o.Metadata.(int)
				parts[b] = append(parts[b], o)
			}
			return parts
		},
		Init: func() any { return uint64(0) },
		Step: func(state, in, out any) (bool, any) {
			s, o := state.(uint64), in.(blockOp)
			switch o.kind {
			case 'r':
				return out.(uint64) == s, s
			case 'w':
				return true, o.now
			}
			if out.(uint64) == 1 {
				return s == o.old, o.now
			}
			return s != o.old, s
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprint(in, out) },
	}
	fill := func(v uint64) []byte {
		b := make([]byte, 512)
		for i := 0; i < len(b); i += 8 {
			binary.BigEndian.PutUint64(b[i:], v)
		}
		return b
	}
	var mu sync.Mutex
	var history []porcupine.Operation
	begin := time.Now()
	var wg sync.WaitGroup
	for k := range nexuses {
		n := r.nexus(byte(k + 2))
		rnd := rand.New(rand.NewPCG(uint64(k), 7))
		wg.Go(func() {
			seen := [blocks]uint64{}
			for i := range each {
				b := rnd.IntN(blocks)
				op := blockOp{kind: "rwcc"[rnd.IntN(4)], old: seen[b], now: uint64(k+1)<<32 | uint64(i+1)}
				call := time.Since(begin).Nanoseconds()
				var out uint64
				at := put64(2, uint64(b))
				switch op.kind {
				case 'r':
					res := r.run(n, nil, 512, "88 00 0000000000000000 00000001 00 00", at)
					out = be64(res.in)
					if !bytes.Equal(res.in, fill(out)) {
						t.Error("a block that nobody wrote")
					}
					seen[b] = out
				case 'w':
					if res := r.run(n, fill(op.now), 0, "8a 00 0000000000000000 00000001 00 00", at); res.Status != StatusGood {
						t.Error(res.Status)
					}
					seen[b] = op.now
				case 'c':
					res := r.run(n, append(fill(op.old), fill(op.now)...), 0, "89 00 0000000000000000 000000 01 00 00", at)
					if res.Status == StatusGood {
						out, seen[b] = 1, op.now
					} else if res.key() != Miscompare {
						t.Errorf("%v %X", res.Status, res.key())
					}
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: k, Input: op, Call: call, Output: out,
					Return: time.Since(begin).Nanoseconds(), Metadata: b})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if !porcupine.CheckOperations(model, history) {
		t.Error("no order explains what was read")
	}
}
