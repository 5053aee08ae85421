package attachcmd

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
)

// played is a face that does as the test says.
type played struct {
	did    []string
	used   error
	settle func(context.Context) error
	taken  error // of remove
	end    chan struct{}
}

func (p *played) users() error { return p.used }
func (p *played) settle_(ctx context.Context) error {
	if p.settle == nil {
		return nil
	}
	return p.settle(ctx)
}
func (p *played) cut()                  { p.did = append(p.did, "cut") }
func (p *played) gone() <-chan struct{} { return p.end }
func (p *played) remove(force bool) error {
	p.did = append(p.did, map[bool]string{true: "force", false: "remove"}[force])
	return p.taken
}

type faceOf struct{ *played }

func (f faceOf) clean() bool                      { return f.played.settle == nil }
func (f faceOf) settle(ctx context.Context) error { return f.settle_(ctx) }

// owned runs an owner over a face, gives it an order and returns the answer to it and whether the face was held to its end.
func owned(t *testing.T, p *played, force bool) (got answer, held error, ended bool) {
	t.Helper()
	t.Setenv("SLUICE_RUNTIME_DIR", t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		p.end = make(chan struct{})
		o := newOwner(&Record{Name: "a", Face: faceSocket})
		answers, over := make(chan answer, 2), make(chan error, 1)
		go func() {
			err := o.hold(faceOf{p})
			o.finish(err)
			over <- err
		}()
		tell := func(a answer) { answers <- a }
		o.await(tell)
		began := time.Now()
		o.order(order{force: force, answer: tell})
		got = <-answers
		if d := time.Since(began); d > endLimit || force && d > forceLimit-5*time.Second {
			t.Errorf("the answer comes after %v; the asker waits for %v", d, endLimit)
		}
		if got.Ended {
			held, ended = <-over, true
			return
		}
		close(p.end)
		<-over
	})
	return got, held, ended
}

// What goes wrong at the end is the answer of who asked for it; a target that is away, or a user, keeps the attachment.
func TestTheAnswerIsThatOfTheEnd(t *testing.T) {
	broken := errors.New("the medium failed")
	after := func(d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	slow := after(3 * time.Second)
	never := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	for _, tc := range []struct {
		what  string
		p     *played
		force bool
		ended bool
		code  int
		did   []string
	}{
		{"all is well", &played{}, false, true, 0, []string{"remove"}},
		{"a flush fails", &played{settle: func(context.Context) error { return broken }}, false, true, ui.CodeFailed, []string{"remove"}},
		{"the removal fails", &played{taken: broken}, false, true, ui.CodeFailed, []string{"remove"}},
		{"it is in use", &played{used: refused("in use")}, false, false, ui.CodeRefused, nil},
		{"it comes into use", &played{taken: &staysError{refused("in use")}}, false, false, ui.CodeRefused, []string{"remove"}},
		{"the target does not answer", &played{settle: never}, false, false, ui.CodeNoPeer, nil},
		{"the target is away", &played{settle: func(context.Context) error { return block.ErrNoPath }}, false, false, ui.CodeNoPeer, nil},
		{"the unit is another", &played{settle: func(context.Context) error { return blockdev.ErrMedium }}, false, true, ui.CodeFailed, []string{"remove"}},
		{"by force, in use", &played{used: refused("in use")}, true, true, 0, []string{"cut", "force"}},
		{"by force, the target is slow", &played{settle: slow}, true, true, 0, []string{"cut", "force"}},
		{"by force, the target is slow and it is in use", &played{settle: slow, used: refused("in use")}, true, true, 0, []string{"cut", "force"}},
		{"by force, it is in use and each flush takes most of the time", &played{settle: after(settleLimit - time.Second), used: refused("in use")}, true, true, 0, []string{"cut", "force"}},
		{"by force, away", &played{settle: never}, true, true, ui.CodeFailed, []string{"cut", "force"}},
	} {
		got, _, ended := owned(t, tc.p, tc.force)
		if ended != tc.ended || got.Code != tc.code || !slices.Equal(tc.p.did[:min(len(tc.did), len(tc.p.did))], tc.did) {
			t.Errorf("%s: ended %v, %+v, did %q", tc.what, ended, got, tc.p.did)
		}
	}
}

// An order that comes while the face is made ends the making, and is not forgotten.
func TestAnOrderThatComesWhileTheFaceIsMadeIsCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(&Record{Name: "a"})
		making := o.begin(t.Context())
		told := make(chan answer, 1)
		o.await(func(a answer) { told <- a })
		o.order(order{answer: func(answer) { t.Error("it is refused") }})
		<-making.Done()
		if !o.ordered() || o.began() {
			t.Error("the order is forgotten")
		}
		o.finish(nil)
		if a := <-told; !a.Ended || a.Error != "" {
			t.Errorf("%+v", a)
		}
		if again := o.begin(t.Context()); again.Err() == nil {
			t.Error("another try is made against the order")
		}
		o.await(func(a answer) { told <- a })
		if a := <-told; !a.Ended {
			t.Errorf("who asks late hears %+v", a)
		}
	})
}
