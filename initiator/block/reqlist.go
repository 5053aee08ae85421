package block

import "github.com/sluice-storage/sluice/blockdev"

// reqList is a queue of requests.
type reqList struct{ head, tail *request }

func (l *reqList) push(r *request) {
	r.next = nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

func (l *reqList) pushFront(r *request) {
	if r.next = l.head; l.head == nil {
		l.tail = r
	}
	l.head = r
}

func (l *reqList) pop() *request {
	r := l.head
	if r != nil {
		if l.head = r.next; l.head == nil {
			l.tail = nil
		}
		r.next = nil
	}
	return r
}

func (l *reqList) remove(r *request) bool {
	var prev *request
	for x := l.head; x != nil; prev, x = x, x.next {
		if x != r {
			continue
		}
		if prev == nil {
			l.head = x.next
		} else {
			prev.next = x.next
		}
		if l.tail == x {
			l.tail = prev
		}
		x.next = nil
		return true
	}
	return false
}

// insert puts r in the order of submission.
func (l *reqList) insert(r *request) {
	if l.tail == nil || l.tail.seq < r.seq {
		l.push(r)
		return
	}
	if r.seq < l.head.seq {
		l.pushFront(r)
		return
	}
	x := l.head
	for x.next != nil && x.next.seq < r.seq {
		x = x.next
	}
	r.next, x.next = x.next, r
	if l.tail == x {
		l.tail = r
	}
}

func (l *reqList) take() reqList {
	t := *l
	*l = reqList{}
	return t
}

// complete calls Done of every request of the list.
func (l *reqList) complete() {
	var after blockdev.Flusher
	for r := l.pop(); r != nil; r = l.pop() {
		if after != nil && after != r.After {
			after.Flush()
		}
		after = r.After // r may be in use again after its Done
		r.finish()
	}
	if after != nil {
		after.Flush()
	}
}

// endAlone ends one request, which is in no list, and completes it.
func (r *request) endAlone() {
	r.to(ended)
	l := reqList{r, r}
	r.next = nil
	l.complete()
}

func (r *request) finish() {
	r.to(idle)
	if r.waiter != nil {
		r.waiter <- struct{}{}
		return
	}
	r.Done(r.Request)
}
