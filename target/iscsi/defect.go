package iscsi

import (
	"errors"
	"fmt"
	"runtime"
	"strings"

	"go.uber.org/zap"
)

// A defect of this program ends the connection whose PDU met it, if it shows while the PDU is parsed or in what belongs
// to that connection alone. Its initiator logs in again. A defect in what sessions share (the device server, the
// server's lists, memory, the fabric) ends the process, because what is half changed there must not be written on with.

// errDefect is why a connection ends whose PDU met a defect of this program.
var errDefect = errors.New("iscsi: a PDU of this connection met a defect of this program; the log has the place")

// hold takes c.mu on the goroutine that owns the connection, which lets go of it even if it panics.
func (c *conn) hold() {
	c.mu.Lock()
	c.held = true
}

func (c *conn) letGo() {
	c.held = false
	c.mu.Unlock()
}

// guard is deferred around the handling of PDUs by the owner.
func (c *conn) guard(err *error) {
	p := recover()
	if p == nil {
		return
	}
	place, own := whose()
	if !own {
		c.srv.opt.Log.Error("a defect of this program in what sessions share ends the process", zap.Any("panic", p), zap.String("place", place), zap.Stack("stack"))
		_ = c.srv.opt.Log.Sync()
		panic(p)
	}
	if c.held {
		c.letGo()
	}
	c.srv.opt.Log.Error("a defect of this program ends a connection", zap.Any("panic", p), zap.String("place", place), zap.Stringer("remote", c.remote), zap.Stack("stack"))
	c.rec.Note("a defect of this program: %v, in %s", p, place)
	*err = errDefect
}

// whose looks at the stack of a panic, from guard. It returns the place, and whether nothing between that place and the
// owner's loop is shared.
func whose() (place string, own bool) {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	const module = "github.com/sluice-storage/sluice/"
	for {
		f, more := frames.Next()
		fn, ours := strings.CutPrefix(f.Function, module)
		if strings.HasPrefix(fn, "internal/state.") {
			ours = false // an illegal move is the defect of who asked for it, and Move has changed nothing
		}
		if ours && place == "" {
			place = fmt.Sprintf("%s (%s:%d)", fn, f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line)
		}
		switch {
		case !ours: // the runtime and the library are whose calls they are
		case strings.HasPrefix(fn, "target/iscsi.(*Server)"):
			return place, false
		case strings.HasPrefix(fn, "target/iscsi.(*tcpDatamover).first"), strings.HasPrefix(fn, "target/iscsi.(*tcpDatamover).loop"), strings.HasPrefix(fn, "target/iscsi.(*iserDatamover).received"):
			return place, true
		case strings.HasSuffix(fn, ").flushLocked"), strings.HasSuffix(fn, ").FlushLocked"):
			return place, false // the lock comes and goes there
		case strings.HasPrefix(fn, "internal/owner."), strings.HasPrefix(fn, "target/flight."): // a connection's queue and recorder
		case !strings.HasPrefix(fn, "target/iscsi.") && !strings.HasPrefix(fn, "internal/iscsi."):
			return place, false
		}
		if !more {
			return place, false
		}
	}
}
