package attachments

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/storm"
)

// TestStormAttachments does to attachments what comes, in any order: each end is judged by its row of the table, and what was durable
// stays.
func TestStormAttachments(t *testing.T) {
	t.Parallel()
	l, steps := here(), 5
	if storm.Long() {
		steps = 20
	}
	for round := range storm.Rounds(t, len(l)) {
		f := &l[round%len(l)]
		t.Run(fmt.Sprintf("round=%d/%s", round, f.name), func(t *testing.T) {
			t.Parallel()
			f.needs(t)
			p := &play{stand: start(t), f: f, r: rand.New(rand.NewPCG(storm.Seed(t), uint64(round)))}
			p.up()
			p.begin()
			for range steps {
				p.step()
			}
			p.last = true
			p.end(force)
			storm.Count(t, "rounds", 1)
		})
	}
}

// play is one attachment and what is known of it.
type play struct {
	*stand
	f     *face
	r     *rand.Rand
	a     attachment
	u     user
	away  bool
	dirty bool   // something was written that nothing has made durable
	now   byte   // what was written last
	may   []byte // what the target may have
	last  bool   // it does not begin again
}

func (p *play) begin() {
	p.t.Helper()
	if p.away {
		p.up()
		p.away = false
	}
	p.must(p.f.attach(p.stand, "--reconnect", "forever")...)
	p.a = p.attached()["a"]
}

func (p *play) step() {
	t := p.t
	switch n := p.r.IntN(10); {
	case n < 4 && !p.away: // write
		if p.u == nil {
			u, err := p.f.use(p.a.Path)
			if err != nil {
				t.Fatal(err)
			}
			p.u = u
		}
		p.now++
		do, flushed := p.u.write, true
		if p.r.IntN(2) == 0 && p.f.name != "directory" {
			do, flushed = p.u.put, false
		}
		if err := do(p.now); err != nil {
			t.Fatalf("a write: %v", err)
		}
		if p.dirty = !flushed; flushed {
			p.may = nil
		}
		p.may = append(p.may, p.now)
	case n < 6:
		if p.u != nil && !p.away { // a last close writes what the kernel holds
			p.u.close()
			p.u = nil
		}
	case n < 7 && p.away:
		p.up()
		p.away = false
		if p.f.name != "directory" {
			p.until("the helper sees that the target is back", func() bool { return p.attached()["a"].Away == "" })
		}
	case n < 7:
		p.down()
		p.away = true
		storm.Count(t, "kills of the target", 1)
		if p.f.name != "directory" {
			p.until("the helper sees that the target is away", func() bool { return p.attached()["a"].Away != "" })
		}
	default:
		p.end(acts[p.r.IntN(len(acts))])
	}
}

// end does one of the table's acts, and begins again where it is one.
func (p *play) end(act string) {
	t := p.t
	state := unused
	if p.u != nil {
		state = inUse
	} else if p.dirty {
		state = unflushed
	}
	i := slices.IndexFunc(rows, func(r row) bool { return r.away == p.away && r.state == state && slices.Contains(r.faces, p.f.name) })
	want := rows[i].cells[slices.Index(acts, act)]
	what := fmt.Sprintf("%s, away=%v, %s", act, p.away, state)
	code := 0
	switch act {
	case detach:
		_, code = p.sluice("detach", "a")
	case force:
		_, code = p.sluice("detach", "a", "--force")
	case sigterm:
		if want.stays {
			return // it has no event but its log's line; the table's own test reads that
		}
		if err := syscall.Kill(p.a.PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.until(what+": the helper ends", func() bool { return len(p.attached()) == 0 })
	case sigkill:
		if err := syscall.Kill(p.a.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		storm.Count(t, "kills of helpers", 1)
		p.until(what+": the helper is gone", func() bool { return p.attached()["a"].Broken })
		_, code = p.sluice("detach", "a")
	}
	if act != sigterm && code != want.code {
		t.Errorf("%s: the exit code is %d and not %d", what, code, want.code)
	}
	storm.Count(t, "ends", 1)
	if want.stays {
		return
	}
	p.nothing(p.a.PID)
	if p.u != nil {
		p.u.close()
		p.u = nil
	}
	p.free(p.a.Path)
	p.dirty = false
	if len(p.may) > 0 {
		r, err := os.Open(filepath.Join(p.dir, p.f.kept))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		got := make([]byte, block)
		if _, err := io.ReadFull(r, got); err != nil || !slices.Contains(p.may, got[0]) || got[block-1] != got[0] {
			t.Errorf("%s: the target has %d and %d, and not one of %v: %v", what, got[0], got[block-1], p.may, err)
		}
		p.may = []byte{got[0]}
	}
	if !p.last {
		p.begin()
	}
}
