package scsi

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// gateMove holds a command in its Data-Out and returns what lets it go on.
func gateMove(_ *Command, h *host) { h.hold = make(chan func(), 1) }

// SBC-3 section 4.11.2: while one erasure runs a second one is refused, also one whose parameter list was still on its way
// when the first began.
func TestOneErasureAtATime(t *testing.T) {
	r := newRig(t, func(o *LUOptions) { o.AllowFormat, o.AllowSanitize = true, true })
	overwrite := []byte{1, 0, 0, 4, 0xAA, 0xAA, 0xAA, 0xAA}
	hold(r.disk)
	var cs []*Command
	var hs []*host
	for range 2 {
		c, h := r.start(r.n, cdb("48 81 00 00 00 00 00 00 08 00"), overwrite, 0, gateMove)
		cs, hs = append(cs, c), append(hs, h)
	}
	for _, h := range hs {
		(<-h.hold)()
		h.wait(t)
	}
	refused := 0
	for _, c := range cs {
		if res := (result{c, nil}); res.key() == NotReady && res.asc() == ASCSanitizeInProgress {
			refused++
		} else if c.Status != StatusGood {
			t.Errorf("%v %X/%04X", c.Status, res.key(), res.asc())
		}
	}
	if refused != 1 {
		t.Errorf("%d of two were refused", refused)
	}
	<-r.disk.arrived
	r.disk.letGo()
	r.lu.background.Wait()
	if n := r.disk.count(); n != (8<<20)/pieceSize+1 {
		t.Errorf("%d requests for one pass", n)
	}
}

// What a SANITIZE promises holds for writes that were let in before it: they reach the medium before they are erased.
func TestNoEarlierWriteLandsOnWhatIsErased(t *testing.T) {
	r := newRig(t, func(o *LUOptions) { o.AllowSanitize = true })
	other := r.nexus(2)
	_, h := r.start(other, cdb("2a 00 00000008 00 0001 00"), pattern(512, 1), 0, gateMove)
	move := <-h.hold
	r.good(nil, 0, "48 82 00 00 00 00 00 00 00 00") // IMMED, BLOCK ERASE
	move()
	h.wait(t)
	r.lu.background.Wait()
	if !bytes.Equal(r.disk.data[8*512:9*512], make([]byte, 512)) {
		t.Error("the data of a write is there after the erasure")
	}
}

// within is a mover that does something in the middle of its Data-In.
type within struct {
	*host
	do func()
}

func (w within) DataIn(c *Command, off int, data []mem.Span) {
	w.do()
	w.host.DataIn(c, off, data)
}

// A move may wait for the initiator, and what it frees may run another command: no lock is held across it.
func TestNoLockIsHeldAcrossAMove(t *testing.T) {
	for name, cdbs := range map[string]string{"MODE SENSE": "1a 08 3f 00 ff 00", "RECEIVE COPY STATUS": "84 00 05 00 00 00 00 00 00 00 000000ff 00 00"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for _, i := range *r.n.luns.Load() {
				i.copies = []copyRecord{{id: 5}}
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				h := &host{t: t, in: make([]byte, 255), done: make(chan struct{})}
				c := &Command{CDB: cdb(cdbs), ExpectIn: 255, Attr: Simple, Mover: within{h, func() { r.good(nil, 255, cdbs) }}}
				r.n.Execute(c)
				h.wait(t)
				if c.Status != StatusGood {
					t.Errorf("%v", c.Status)
				}
			}()
			select {
			case <-done:
			case <-time.After(patience):
				t.Fatal("a command within the move waits for a lock")
			}
		})
	}
}

// SBC-3 section 4.11: each pass reaches the medium. In a cache, a later one would take the place of those before it.
func TestEachPassOfASanitizeIsFlushed(t *testing.T) {
	for name, c := range map[string]struct {
		cdb  string
		list []byte
		want int
	}{
		"OVERWRITE":           {"48 01 00 00 00 00 00 00 08 00", []byte{3, 0, 0, 4, 0xAA, 0xAA, 0xAA, 0xAA}, 3},
		"CRYPTOGRAPHIC ERASE": {"48 03 00 00 00 00 00 00 00 00", nil, 2},
	} {
		r := newRig(t, func(o *LUOptions) { o.AllowSanitize = true })
		r.good(c.list, 0, c.cdb)
		r.disk.mu.Lock()
		passes := slices.Compact(slices.DeleteFunc(slices.Clone(r.disk.log), func(o blockdev.Op) bool { return o == blockdev.Read }))
		r.disk.mu.Unlock()
		flushes := 0
		for i, op := range passes {
			if op == blockdev.Flush {
				flushes++
			} else if i%2 == 1 {
				t.Errorf("%s: %v follows another pass", name, op)
			}
		}
		if flushes != c.want {
			t.Errorf("%s: %d flushes of %d passes: %v", name, flushes, c.want, passes)
		}
	}
}
