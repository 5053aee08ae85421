package operator

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// order is something that can be said again and again: which of its forms makes sense depends on what is.
type order struct {
	name  string
	forms int  // that follow one another; each is cut short at each call
	deep  bool // what it changes is seen by hosts alone
	next  func(m *model) step
}

var orders = []order{
	{"allow", 1, true, func(m *model) step {
		args, only := []string{"target", "allow", madeTarget, hosts[0]}, []int(nil)
		if m.targets[madeTarget].list[hosts[0]] == nil {
			args, only = append(args, "--lun", "1"), []int{1}
		}
		return step{args: args, apply: func(m *model) bool { return m.allow(madeTarget, hosts[0], only) }}
	}},
	{"secret --mutual by another name", 1, false, func(m *model) step {
		user := "disks"
		if m.targets[madeTarget].mutual[0] == user {
			user = "store"
		}
		return step{args: []string{"target", "secret", madeTarget, user, "--mutual"}, stdin: known[3] + "\n", apply: func(m *model) bool { return m.mutual(madeTarget, user, known[3]) }}
	}},
	{"secret --mutual and secret --remove", 2, false, func(m *model) step {
		if m.targets[madeTarget].mutual[0] != "" {
			user := m.targets[madeTarget].mutual[0]
			return step{args: []string{"target", "secret", madeTarget, user, "--remove"}, apply: func(m *model) bool { return m.removeSecret(madeTarget, user) }}
		}
		return step{args: []string{"target", "secret", madeTarget, "disks", "--mutual"}, stdin: known[3] + "\n", apply: func(m *model) bool { return m.mutual(madeTarget, "disks", known[3]) }}
	}},
	{"target delete and target create", 3, false, func(m *model) step {
		if m.targets[madeTarget] == nil {
			return step{args: []string{"target", "create", madeTarget}, apply: func(m *model) bool { return m.createTarget(madeTarget, nil) }}
		}
		if m.targets[madeTarget].state == states[0] { // of which a later target of the name has nothing
			return step{args: []string{"target", "set-group", madeTarget, "1", states[2]}, apply: func(m *model) bool { return m.group(madeTarget, states[2]) }}
		}
		return step{args: []string{"target", "delete", madeTarget, "--yes"}, apply: func(m *model) bool { return m.deleteTarget(madeTarget) }}
	}},
}

// TestAnOrderThatIsCutShortIsDoneOrNot kills the daemon in each call to the file system that an order makes: at the next start it
// is done or not, and everything is served.
func TestAnOrderThatIsCutShortIsDoneOrNot(t *testing.T) {
	need.Root(t)
	need.Tool(t, "iscsi-readcapacity16", "libiscsi-bin")
	if watched == nil {
		need.Tool(t, "mkfs.xfs", "xfsprogs")
		t.Fatal("fanotify(7) does not let root see the daemon's calls")
	}
	for _, d := range orders {
		t.Run(d.name, func(t *testing.T) { cutShort(t, d) })
	}
}

func cutShort(t *testing.T, d order) {
	s, m, err := prepare()
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\nthe daemon's log ends\n%s", err, tail(s.logged()))
		}
	}
	defer func() { must(errors.Join(s.down(syscall.SIGKILL), os.RemoveAll(s.dir))) }()
	must(s.up())
	do := func(st step) {
		t.Helper()
		_, err := s.sluice([]byte(st.stdin), st.args...)
		must(err)
		if !st.apply(m) {
			t.Fatalf("%v should be refused", st.args)
		}
	}
	do(step{args: []string{"target", "create", madeTarget, "--initiator", hosts[0]}, apply: func(m *model) bool { return m.createTarget(madeTarget, hosts[:1]) }})
	do(step{args: []string{"target", "secret", madeTarget, "alice"}, stdin: known[1] + "\n", apply: func(m *model) bool { return m.secret(madeTarget, "alice", known[1], nil) }})
	for i, missed := 0, 0; missed < d.forms; i++ {
		n, st := 1+i/d.forms, d.next(m)
		after := m.clone()
		if !st.apply(after) {
			t.Fatalf("%v should be refused", st.args)
		}
		shot := watched.arm(n)
		_, err := s.sluice([]byte(st.stdin), st.args...)
		if err == nil {
			m = after
		}
		if err != nil { // the daemon may be dead before who has killed it says so
			select {
			case <-shot:
			case <-time.After(30 * time.Second):
			}
		}
		select {
		case <-shot:
			missed = 0
		default:
			if _, late := watched.disarm(); !late {
				missed++ // it makes fewer calls; the next form of the order may make more
				must(err)
				continue
			}
			missed = 0 // killed in a call behind its answer
		}
		must(s.over())
		must(s.upAgain())
		var errs []error
		for _, may := range []*model{m, after} {
			err := s.check(may, d.deep)
			if errs = append(errs, err); err == nil {
				m, errs = may, nil
				break
			}
		}
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%v, killed in call %d, is neither done nor not:\n%v\n%s", st.args, n, err, tail(s.logged()))
		}
	}
	must(s.check(m, true))
}
