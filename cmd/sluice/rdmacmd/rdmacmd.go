// Package rdmacmd is "sluice rdma": the RDMA adapters of this machine, and what Sluice does with them.
package rdmacmd

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// Report is what the command says.
type Report struct {
	Adapters []fabric.Adapter `json:"adapters"`
	// Why says why there are none, and what to do.
	Why string `json:"why,omitempty"`
}

// Command is "sluice rdma".
func Command() *cobra.Command { return command(fabric.List, fabric.Adapters) }

func command(list func(fabric.Options) ([]fabric.Adapter, error), usable func() (bool, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "rdma",
		Short: "List the RDMA adapters of this machine and what Sluice does with each",
		Long: `List RDMA adapters, their ports and addresses, what they can do, and what Sluice does with each: what a target lets its
clients reach of the daemon's memory, and what an initiator lets a target reach. A machine without adapters needs none: software
iWARP is built in. docs/rdma.md goes from an adapter in the machine to the first verified I/O.`,
		Example: "  sluice rdma\n  sluice rdma --output json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := look(list, usable)
			if err != nil {
				return err
			}
			if r.Why != "" {
				ui.Note(c.ErrOrStderr(), "%s", r.Why)
			}
			return ui.Print(c, r, func(t *ui.Table) { show(t, r.Adapters) })
		},
	}
}

func look(list func(fabric.Options) ([]fabric.Adapter, error), usable func() (bool, error)) (Report, error) {
	r := Report{Adapters: []fabric.Adapter{}}
	l, err := list(fabric.Options{})
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
		t.Row("", "as a target", "its clients may reach of the daemon's memory: "+a.Target)
		t.Row("", "as an initiator", "a target may reach of this machine's memory: "+a.Initiator)
	}
}

// readable shows an IPv4 address that a GID holds as one.
func readable(gid string) string {
	if a, err := netip.ParseAddr(gid); err == nil && a.Is4In6() {
		return a.Unmap().String()
	}
	return gid
}
