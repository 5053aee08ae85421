package doctor

// allowRings is what to do where io_uring cannot be had.
const allowRings = "a disk then has no more than 8 requests at a time: allow io_uring to the daemon (sysctl kernel.io_uring_disabled=0, a kernel of 5.12 or later, " +
	"the unit's SystemCallFilter=, the container's seccomp profile)"

// rings looks whether io_uring can be had here; the daemon may be forbidden what a shell is not, and is asked for itself.
func (m machine) rings() []Finding {
	f := Finding{What: "io_uring", State: good, Saw: "there"}
	if err := m.ring(); err != nil {
		f.State, f.Saw, f.Advice = note, err.Error(), allowRings
	}
	return []Finding{f}
}
