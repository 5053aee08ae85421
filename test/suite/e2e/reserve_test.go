package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

const reservers = 6

// reservation is the model: who is registered, by number, and who holds the write exclusive reservation, 0 where there is none.
type reservation struct {
	registered [reservers + 1]bool
	holder     int
}

// reserveIn is an operation of client by; a preemption names its victim. Its outcome is whether it was GOOD.
type reserveIn struct {
	kind   string
	by, of int
}

var reserveModel = porcupine.Model{
	Init: func() any { return reservation{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, good := state.(reservation), input.(reserveIn), output.(bool)
		may := true
		next := s
		switch in.kind {
		case "register":
			next.registered[in.by] = true
		case "unregister":
			next.registered[in.by] = false
			if s.holder == in.by {
				next.holder = 0
			}
		case "reserve":
			may = s.registered[in.by] && (s.holder == 0 || s.holder == in.by)
			next.holder = in.by
		case "release":
			may = s.registered[in.by]
			if s.holder == in.by {
				next.holder = 0
			}
		case "preempt":
			may = s.registered[in.by] && s.registered[in.of]
			next.registered[in.of] = false
			if s.holder == in.of {
				next.holder = in.by
			}
		case "write":
			may = s.holder == 0 || s.holder == in.by
		}
		if good != may {
			return false, s
		}
		if !good {
			return true, s
		}
		return true, next
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v %v", in, out) },
}

// reserveStep runs one operation and says whether it was GOOD. A unit attention is taken and the command sent again, and so is one
// that another's PREEMPT AND ABORT has met while it waited for its turn: nothing of that took effect.
func reserveStep(t *testing.T, v *block.Volume, in reserveIn) (bool, error) {
	cdb, list := []byte{0x5F, 0, 1, 0, 0, 0, 0, 0, 24, 0}, make([]byte, 24)
	binary.BigEndian.PutUint64(list, uint64(in.by))
	switch in.kind {
	case "register":
		cdb[1], cdb[2] = 6, 0
		binary.BigEndian.PutUint64(list[8:], uint64(in.by))
	case "unregister":
		cdb[1], cdb[2] = 6, 0
	case "reserve":
		cdb[1] = 1
	case "release":
		cdb[1] = 2
	case "preempt":
		cdb[1] = 5 // and ABORT: what that aborts is told so (SAM-5 section 5.6, TAS one)
		binary.BigEndian.PutUint64(list[8:], uint64(in.of))
	case "write":
		cdb, list = []byte{0x2A, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nil // of no blocks: what counts is whether it may
	}
	for {
		_, err := v.Raw(t.Context(), cdb, list, false)
		var s *block.SenseError
		var status *block.StatusError
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, block.ErrReserved):
			return false, nil
		case errors.As(err, &s) && s.Key == 6, errors.As(err, &status) && status.Status == 0x40:
			continue
		}
		return false, err
	}
}

// Sessions of both transports register, reserve, preempt one another and write: what all of them
// were answered has one order.
func TestReservationsAreLinearizable(t *testing.T) {
	const steps = 40
	s := newStand(t, iwarp.Options{})
	addr := s.Portal("127.0.0.1", 1)
	var mu sync.Mutex
	var history []porcupine.Operation
	begin := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, reservers+1)
	for k := 1; k <= reservers; k++ {
		v := open(t, host(t, block.Options{Name: fmt.Sprintf("iqn.2026-01.org.example:client%d", k)}, iwarp.Options{}), url(schemes[k%2], addr))
		rnd := rand.New(rand.NewSource(int64(k)))
		wg.Go(func() {
			for range steps {
				in := reserveIn{by: k, kind: []string{"register", "register", "unregister", "reserve", "reserve", "release", "write", "write", "write"}[rnd.Intn(9)]}
				if rnd.Intn(8) == 0 {
					in.kind, in.of = "preempt", 1+(k+rnd.Intn(reservers-1))%reservers
				}
				op := porcupine.Operation{ClientId: k, Input: in, Call: int64(time.Since(begin))}
				good, err := reserveStep(t, v, in)
				if err != nil {
					errs[k] = fmt.Errorf("%+v: %w", in, err)
					return
				}
				op.Output, op.Return = good, int64(time.Since(begin))
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		must(t, err)
	}
	if r := porcupine.CheckOperationsTimeout(reserveModel, history, patience); r != porcupine.Ok {
		t.Errorf("the history of %d operations is not linearizable: %v", len(history), r)
	}
	good := map[string]int{}
	for _, op := range history {
		if op.Output.(bool) {
			good[op.Input.(reserveIn).kind]++
		}
	}
	t.Logf("%d operations, GOOD: %v", len(history), good)
}
