package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
)

// face is how a volume or an export is shown. Its owner alone ends it.
type face interface {
	// users says what still uses it, to a person; nil if it can be taken away.
	users() error
	// clean reports whether all that was written is durable without a question to the target, which may be away.
	clean() bool
	// settle makes durable what was written.
	settle(context.Context) error
	// cut ends what waits for the target with errors, and all that comes.
	cut()
	// remove takes it away; forced, from under what uses it.
	remove(force bool) error
	// gone is closed when the kernel has ended it, or a person by other means.
	gone() <-chan struct{}
}

const (
	// usersLimit is how long an end waits for users to go: udev and blkid open each new device for a moment.
	usersLimit = 5 * time.Second
	// settleLimit is how long an end waits for the target to make durable what was written.
	settleLimit = 10 * time.Second
	// cutLimit is the same for an end by force, where no path to the target is up.
	cutLimit = 2 * time.Second
)

// order tells an owner to end its attachment.
type order struct {
	force  bool
	answer func(answer) // is told of a refusal; the end is told to all that wait for it
}

// owner decides when an attachment ends: it alone, whatever the face and wherever the order comes from (a command, the service
// manager's SIGTERM, an unmount). A device that is in use, or whose data cannot be made durable, is not taken away unless by force.
type owner struct {
	r    *Record
	kick chan struct{}

	mu      sync.Mutex
	held    bool               // the face has been made
	making  context.CancelFunc // while the face is made: an order ends that
	orders  []order
	waiters []func(answer) // want to hear of the end
	ended   *answer
	vol     *block.Volume // for who asks how it is
}

func newOwner(r *Record) *owner { return &owner{r: r, kick: make(chan struct{}, 1)} }

// order takes an order. One that comes while the face is being made ends the making.
func (o *owner) order(d order) {
	o.mu.Lock()
	o.orders = append(o.orders, d)
	if o.making != nil {
		o.making()
	}
	o.mu.Unlock()
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// signals makes orders of SIGTERM, SIGHUP and SIGINT until the returned function is called.
func (o *owner) signals() (stop func()) {
	c, done := make(chan os.Signal, 4), make(chan struct{})
	signal.Notify(c, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	go func() {
		for {
			select {
			case s := <-c:
				o.order(order{answer: func(a answer) { // the helper's log
					fmt.Fprintf(os.Stderr, "sluice: %v: %s stays attached: %s\n", s, o.r.Name, a.Error)
				}})
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(c); close(done) }
}

// begin is the context of making the face.
func (o *owner) begin(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.making = cancel
	if len(o.orders) > 0 {
		cancel()
	}
	return ctx
}

// hold owns the finished face until it has ended.
func (o *owner) hold(f face) error {
	o.mu.Lock()
	o.making, o.held = nil, true
	o.mu.Unlock()
	for {
		select {
		case <-f.gone():
			return o.remains(f)
		case <-o.kick:
		}
		o.mu.Lock()
		orders := o.orders
		o.orders = nil
		o.mu.Unlock()
		if len(orders) == 0 {
			continue
		}
		force := false
		for _, d := range orders {
			force = force || d.force
		}
		err := o.end(f, force)
		var stays *staysError
		if !errors.As(err, &stays) {
			return err
		}
		for _, d := range orders {
			d.answer(answerOf(stays.err))
		}
	}
}

// staysError says why an attachment goes on.
type staysError struct{ err error }

func (e *staysError) Error() string { return e.err.Error() }
func (e *staysError) Unwrap() error { return e.err }

// end takes the face away, or gives a staysError.
func (o *owner) end(f face, force bool) error {
	if force {
		err := o.forced(f)
		if err != nil {
			err = fmt.Errorf("%s has ended by force, and what was written last may be lost: %w", o.r.Name, err)
		}
		f.cut()
		return errors.Join(err, o.record().letGo(), f.remove(true))
	}
	if err := o.unused(f); err != nil {
		return &staysError{err}
	}
	first := settledFace(f)
	if away(first) {
		return &staysError{ui.ExitError{Code: ui.CodeNoPeer, Err: fmt.Errorf("the target of %s is away, and what was written may not be durable; sluice detach --force gives that up: %w", o.r.Name, first)}}
	}
	if err := f.remove(false); err != nil {
		return err
	}
	if first == nil {
		first = settledFace(f) // what the removal itself wrote
	}
	return notDurable(o.r.Name, first)
}

func notDurable(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s has ended, and what was written last could not be made durable: %w", name, err)
}

// forced makes durable what can be, before an end by force: the volume first, and then what the face's users still hold, for which
// there is as much time again, however long the first took.
func (o *owner) forced(f face) error {
	limit := settleLimit
	if o.pathless() {
		limit = cutLimit
	}
	if !f.clean() || f.users() != nil { // who uses it may have more, which only the kernel knows of
		if err := settleWithin(f, limit); err != nil {
			return err
		}
		if !o.pathless() {
			limit = settleLimit
		}
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, errSlow)
	defer cancel()
	if err := o.record().settleUsers(ctx); err != nil || f.clean() {
		return err
	}
	return f.settle(ctx)
}

// pathless reports that the target is known to be away.
func (o *owner) pathless() bool {
	o.mu.Lock()
	v := o.vol
	o.mu.Unlock()
	return v != nil && !slices.ContainsFunc(v.Paths(), func(p block.PathState) bool { return p.Up })
}

// remains is what is left to do when the face has ended by other means.
func (o *owner) remains(f face) error {
	err, rerr := notDurable(o.r.Name, settledFace(f)), f.remove(true)
	if err == nil {
		err = rerr
	}
	return err
}

// settledFace makes durable what is not.
func settledFace(f face) error {
	if f.clean() {
		return nil
	}
	return settleWithin(f, settleLimit)
}

func settleWithin(f face, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, errSlow)
	defer cancel()
	return f.settle(ctx)
}

var errSlow = errors.New("it does not answer")

// away reports whether an error is the target's absence, which may pass.
func away(err error) bool {
	return errors.Is(err, errSlow) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, block.ErrNoPath)
}

// unused waits for the face to be free of users, and says what keeps it.
func (o *owner) unused(f face) error {
	for deadline := time.Now().Add(usersLimit); ; time.Sleep(100 * time.Millisecond) { // a last close has no event
		err := o.keeps(f)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return o.named(err)
		}
		select {
		case <-f.gone():
			return nil
		default:
		}
	}
}

// named adds who uses the face to what says that it is used.
func (o *owner) named(err error) error {
	r := o.record()
	if r.Mount != "" && mounted(r.Mount) {
		return err // which says so
	}
	if by := r.standsOn().heldBy(); by != "" {
		return refused("%w; %s", err, by)
	}
	return err
}

// keeps says what keeps the face from being taken away at this moment.
func (o *owner) keeps(f face) error {
	r := o.record()
	if r.Face != faceDir && r.Mount != "" && mounted(r.Mount) {
		return refused("%s is mounted on %s; run sluice umount %s", r.Name, r.Mount, r.Mount)
	}
	if r.Loop != "" {
		if err := r.dropLoop(); err != nil {
			return refused("%s: %w", r.Name, err)
		}
	}
	return f.users()
}

// record is the record as it is now: mount and umount write there too.
func (o *owner) record() *Record {
	if r, err := find(o.r.Name); err == nil && r.PID == o.r.PID {
		return r
	}
	return o.r
}

// await has f told of the attachment's end.
func (o *owner) await(f func(answer)) {
	o.mu.Lock()
	ended := o.ended
	if ended == nil {
		o.waiters = append(o.waiters, f)
	}
	o.mu.Unlock()
	if ended != nil {
		f(*ended)
	}
}

// finish tells all that wait that the attachment has ended, and how.
func (o *owner) finish(err error) {
	a := answerOf(err)
	a.Ended = true
	o.mu.Lock()
	l := o.waiters
	o.waiters, o.ended = nil, &a
	o.mu.Unlock()
	for _, f := range l {
		f(a)
	}
}

// ordered reports whether the attachment has been asked to end.
func (o *owner) ordered() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.orders) > 0
}

// began reports whether the face has been made.
func (o *owner) began() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held
}

// shows lets who asks see the volume.
func (o *owner) shows(v *block.Volume) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.vol = v
}
