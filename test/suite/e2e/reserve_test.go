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

// reserveIn is an operation of client by; a preemption names its victim.
type reserveIn struct {
	kind   string
	by, of int
}

// reserveOut is how an operation ended.
type reserveOut uint8

const (
	refused reserveOut = iota // RESERVATION CONFLICT: it did nothing
	good
	aborted // TASK ABORTED: it has done all or nothing of what it was to do (SAM-5 section 5.6 leaves it open)
)

// reserveModel is not deterministic, for what is aborted may have taken effect.
var reserveModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{reservation{}} },
	Step: func(state, input, output any) []any {
		s, in := state.(reservation), input.(reserveIn)
		next, may := s.after(in)
		switch out := output.(reserveOut); {
		case out == aborted && may:
			return []any{s, next}
		case out == good && may:
			return []any{next}
		case out == good:
			return nil
		case out == refused && may:
			return nil
		}
		return []any{s}
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v %v", in, out) },
}).ToModel()

// after is what an operation makes of the reservation, and whether it may.
func (s reservation) after(in reserveIn) (next reservation, may bool) {
	may, next = true, s
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
	return next, may
}

// reserveStep runs one operation. Where a unit attention ended the command, which did nothing then, it is sent again.
func reserveStep(t *testing.T, v *block.Volume, in reserveIn) (reserveOut, error) {
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
			return good, nil
		case errors.Is(err, block.ErrReserved):
			return refused, nil
		case errors.As(err, &status) && status.Status == 0x40: // by another's PREEMPT AND ABORT
			return aborted, nil
		case errors.As(err, &s) && s.Key == 6:
			continue
		}
		return 0, err
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
				out, err := reserveStep(t, v, in)
				if err != nil {
					errs[k] = fmt.Errorf("%+v: %w", in, err)
					return
				}
				op.Output, op.Return = out, int64(time.Since(begin))
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
	done, cut := map[string]int{}, 0
	for _, op := range history {
		switch op.Output.(reserveOut) {
		case good:
			done[op.Input.(reserveIn).kind]++
		case aborted:
			cut++
		}
	}
	t.Logf("%d operations, GOOD: %v, aborted: %d", len(history), done, cut)
}
