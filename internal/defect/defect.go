// Package defect tells a panic that ends what it may have spoiled, the process, from one that ends the connection whose call it was.
package defect

import "fmt"

// Spoiled is what is panicked with where state that clients share may be half changed: the process ends then, and clients recover.
type Spoiled struct{ Cause any }

func (s Spoiled) Error() string {
	return fmt.Sprintf("state that clients share may be half changed: %v", s.Cause)
}

// Guard turns a panic into Spoiled. It is deferred by code that changes what clients share.
func Guard() { Rethrow(recover()) }

// Rethrow panics with Spoiled for what recover has returned, if that is not nil.
func Rethrow(p any) {
	if p == nil {
		return
	}
	if s, is := p.(Spoiled); is {
		panic(s)
	}
	panic(Spoiled{p})
}
