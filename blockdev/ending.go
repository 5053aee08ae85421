package blockdev

// endings is how many submitters one batch of completions is of, as a rule at most.
const endings = 8

// Ending ends requests that have ended together, for an engine: it flushes each submitter's After once, behind all of them. The zero
// value is ready; Flush is called behind the last.
type Ending struct {
	after [endings]Flusher
	n     int
}

// Finish is Request.Finish, but for the flush.
func (e *Ending) Finish(r *Request, err error) {
	after := r.After // the request may be in use again behind its Done
	r.Err = err
	r.Done(r)
	if after == nil {
		return
	}
	for _, f := range e.after[:e.n] {
		if f == after {
			return
		}
	}
	if e.n == len(e.after) {
		e.Flush()
	}
	e.after[e.n] = after
	e.n++
}

// Flush tells those whose requests have ended that no more do just now.
func (e *Ending) Flush() {
	for i, f := range e.after[:e.n] {
		f.Flush()
		e.after[i] = nil
	}
	e.n = 0
}
