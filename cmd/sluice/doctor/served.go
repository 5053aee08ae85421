package doctor

import (
	"fmt"
	"strings"

	"github.com/sluice-storage/sluice/target/admin"
)

// daemon names what is configured and not served.
func (m machine) daemon() []Finding {
	if m.served == nil {
		return nil
	}
	has, err := m.served()
	if err != nil {
		return []Finding{{What: "daemon", State: note, Saw: err.Error(), Advice: "what it does not serve is named here when it can be asked"}}
	}
	fs := []Finding{{What: "daemon", State: good, Saw: fmt.Sprintf("has %d volumes, %d targets and %d exports", len(has.Volumes), len(has.Targets), len(has.Exports))}}
	for _, v := range has.Volumes {
		if v.Problem != "" {
			fs = append(fs, notServed("volume "+v.Name, v.Problem))
		} else if v.Slow != "" {
			fs = append(fs, Finding{What: "volume " + v.Name, State: note, Saw: "a few threads wait for its medium: " + v.Slow, Advice: allowRings})
		}
	}
	for _, t := range has.Targets {
		if t.Problem != "" {
			fs = append(fs, notServed("target "+t.Name, t.Problem))
		}
		if t.NotSRP != "" {
			fs = append(fs, notOverSRP(t.Name, t.NotSRP))
		}
	}
	for _, e := range has.Exports {
		if e.Problem != "" {
			fs = append(fs, notServed("export "+e.Name, e.Problem))
		}
	}
	for _, u := range has.Unbound {
		fs = append(fs, unbound(u))
	}
	return fs
}

// notServed is the daemon's sentence, which says what to do behind a semicolon where there is more to do than to mend what it names.
func notServed(what, problem string) Finding {
	if strings.HasSuffix(problem, " runs") { // an erasure
		return Finding{What: what, State: note, Saw: "not ready: " + problem, Advice: "it is ready when that is over"}
	}
	why, do, said := strings.Cut(problem, "; ")
	if !said {
		do = "mend that, and then: sluice reload"
	}
	return Finding{What: what, State: bad, Saw: "not served: " + why, Advice: do}
}

// unbound is an address that RDMA adapters do not serve: a note where the configuration does not ask for adapters.
func unbound(u admin.Unbound) Finding {
	why, do, said := strings.Cut(u.Problem, "; ")
	if !said {
		do = "free that port or choose another one; the daemon tries again by itself, and: sluice rdma"
	}
	f := Finding{What: "RDMA adapters at " + u.Address, State: bad, Saw: "not served by provider " + u.Provider + ": " + why, Advice: do}
	if u.Default {
		f.State = note
	}
	return f
}

// notOverSRP is a target that SRP has addresses for and does not serve: a note, because it may be meant.
func notOverSRP(target, problem string) Finding {
	why, do, said := strings.Cut(problem, "; ")
	if !said {
		do = "fine where its hosts use iSER; for hosts on SRP make a target without auth and redirect, whose initiators name their ports (docs/srp.md)"
	}
	return Finding{What: "SRP of target " + target, State: note, Saw: "not served: " + why, Advice: do}
}
