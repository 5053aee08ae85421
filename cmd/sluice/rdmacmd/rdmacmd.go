// Package rdmacmd is "sluice rdma": the RDMA adapters of this machine, and what Sluice does with them.
package rdmacmd

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/internal/fabricflag"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// Report is what the command says.
type Report struct {
	Adapters []fabric.Adapter `json:"adapters"`
	// Sockets are those of daemons on this host that offer shared memory.
	Sockets []fabric.Socket `json:"sockets"`
	// Why says why there are none, and what to do.
	Why string `json:"why,omitempty"`
}

// Command is "sluice rdma".
func Command() *cobra.Command { return command(fabric.List, fabric.Adapters, fabric.Sockets) }

func command(list func(fabric.Options) ([]fabric.Adapter, error), usable func() (bool, error), sockets func() []fabric.Socket) *cobra.Command {
	var o fabric.Options
	c := &cobra.Command{
		Use:   "rdma [ADAPTER...]",
		Short: "List the RDMA adapters of this machine, what Sluice does with each, and who offers shared memory",
		Long: `List RDMA adapters, their ports and addresses, what they can do, and what Sluice does with each: what a target lets its
clients reach of the daemon's memory, and what an initiator lets a target reach. An adapter that could only expose all memory is not
used, and what to write to use it all the same is shown; with --exposure whole-slab the list says what is done then. A machine without
adapters needs none: software iWARP is built in. docs/rdma.md goes from an adapter in the machine to the first verified I/O.

Daemons on this host may offer shared memory (docs/shm.md): each socket is listed with the port of the service that it stands for, and
whether this user may connect.`,
		Example: "  sluice rdma\n  sluice rdma mlx5_0 --output json\n  sluice rdma --exposure whole-slab",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			l, err := list(fabric.Options{})
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp // the command says why
			}
			var names []string
			for _, a := range l {
				if !slices.Contains(args, a.Name) {
					names = append(names, a.Name+"\t"+a.Fabric)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, names []string) error {
			if err := fabricflag.Explain(fabric.Check(fabric.Verbs, o)); err != nil {
				return err
			}
			r, err := look(list, usable, o)
			if len(names) == 0 {
				r.Sockets = sockets()
			}
			if err == nil {
				err = r.choose(names)
			}
			if err != nil {
				return err
			}
			if r.Why != "" {
				ui.Note(c.ErrOrStderr(), "%s", r.Why)
			}
			return ui.Print(c, r, func(t *ui.Table) {
				show(t, r.Adapters)
				for _, s := range r.Sockets {
					t.Row("shared memory", "port "+s.Port, cmp.Or(s.Problem, "this user may connect")+": "+s.Path)
				}
			})
		},
	}
	fabricflag.AddExposure(c.Flags(), &o.Exposure)
	return c
}

// choose leaves the adapters that are named.
func (r *Report) choose(names []string) error {
	var have []string
	for _, a := range r.Adapters {
		have = append(have, a.Name)
	}
	for _, n := range names {
		if !slices.Contains(have, n) {
			return ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("there is no RDMA adapter %s; there are: %s", n, cmp.Or(strings.Join(have, ", "), "none"))}
		}
	}
	if len(names) > 0 {
		r.Adapters = slices.DeleteFunc(r.Adapters, func(a fabric.Adapter) bool { return !slices.Contains(names, a.Name) })
	}
	return nil
}

func look(list func(fabric.Options) ([]fabric.Adapter, error), usable func() (bool, error), o fabric.Options) (Report, error) {
	r := Report{Adapters: []fabric.Adapter{}, Sockets: []fabric.Socket{}}
	l, err := list(o)
	if err == nil && len(l) > 0 {
		r.Adapters = l
		return r, nil
	}
	none, why := usable()
	switch {
	case why != nil && (none || err == nil):
		r.Why = "no RDMA adapter can be used: " + why.Error() + ". Software iWARP is built in and needs none"
		return r, nil
	case err == nil:
		r.Why = "there is no RDMA adapter. Software iWARP is built in and needs none"
		return r, nil
	}
	return r, fmt.Errorf("list the RDMA adapters: %w", err)
}

func show(t *ui.Table, l []fabric.Adapter) {
	for _, a := range l {
		driver := a.Driver
		if a.Firmware != "" {
			driver += ", firmware " + a.Firmware
		}
		t.Row(a.Name, a.Fabric, driver)
		if a.Problem != "" {
			t.Row("", "cannot be used", a.Problem)
		}
		for _, p := range a.Ports {
			t.Row("", fmt.Sprintf("port %d", p.Number), fmt.Sprintf("%s, %s, MTU %d", p.State, p.Link, p.MTU))
			for _, g := range p.GIDs {
				t.Row("", fmt.Sprintf("GID %d", g.Index), strings.TrimSpace(fmt.Sprintf("%s %s %s", readable(g.GID), g.Kind, g.Interface)))
			}
		}
		if a.Problem != "" {
			continue
		}
		t.Row("", "can", fmt.Sprintf("%d pieces of memory a request, %d RDMA Reads at a time, %s", a.MaxSGE, a.MaxReads,
			map[bool]string{true: "memory windows", false: "no memory windows of type 2"}[a.Windows]))
		use(t, "as a target", "its clients may reach of the daemon's memory: ", a.Target, a.AsTarget, a.TargetToUse)
		use(t, "as an initiator", "a target may reach of this machine's memory: ", a.Initiator, a.AsInit, a.InitiatorToUse)
	}
}

// use says what is done with an adapter in one role, and how it comes to be used where it is not.
func use(t *ui.Table, role, reach, words string, used bool, write string) {
	if used {
		t.Row("", role, reach+words)
		return
	}
	t.Row("", role, words)
	if write != "" {
		t.Row("", "", "-> where the peers are trusted with that: "+write)
	}
}

// readable shows an IPv4 address that a GID holds as one.
func readable(gid string) string {
	if a, err := netip.ParseAddr(gid); err == nil && a.Is4In6() {
		return a.Unmap().String()
	}
	return gid
}
