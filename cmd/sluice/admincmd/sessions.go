package admincmd

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

func session() *cobra.Command {
	top := &cobra.Command{Use: "session", Short: "List and end sessions"}
	list := &cobra.Command{
		Use: "list", Short: "List who is logged in", Aliases: []string{"ls", "show"}, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ss, err := get[[]admin.Session](c, "/v1/sessions")
			if err != nil {
				return err
			}
			return ui.Print(c, ss, func(t *ui.Table) {
				t.Row("ID", "INITIATOR", "TARGET", "OVER", "THROUGH", "FROM", "SINCE", "RUNNING", "READ", "WRITTEN")
				for _, s := range ss {
					t.Row(s.ID, s.Initiator, s.Target, over(s), s.Path.String(), s.Peer, time.Since(s.Since).Round(time.Second), s.Inflight, ui.Bytes(int64(s.Read)), ui.Bytes(int64(s.Written)))
				}
			})
		},
	}
	end := &cobra.Command{
		Use: "close ID", Short: "End a session; a stock initiator logs in again by itself", Args: cobra.ExactArgs(1), Example: "  sluice session close 3",
		ValidArgsFunction: complete("/v1/sessions", func(s admin.Session) string { return s.ID }),
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := strconv.ParseUint(strings.TrimPrefix(args[0], "srp"), 10, 32); err == nil { // else the daemon says what is wrong
				if err := ui.ConfirmUnlessSure(c, "Session "+args[0]+" ends, with the commands that it runs"); err != nil {
					return err
				}
			}
			return change(c, http.MethodDelete, "/v1/sessions/"+esc(args[0]), nil)
		},
	}
	ui.Asks(end)
	top.AddCommand(list, end, trace())
	return top
}

// over is what a session goes over; of SRP, with the number of its channels.
func over(s admin.Session) string {
	if s.Channels > 1 {
		return s.Transport + "*" + strconv.Itoa(s.Channels)
	}
	return s.Transport
}

func trace() *cobra.Command {
	return &cobra.Command{
		Use: "trace ID", Short: "Print a session's flight recorder: its login, incidents, last commands and what runs", Args: cobra.ExactArgs(1), Example: "  sluice session trace 3",
		Long:              "Print a session's flight recorder: its login, incidents, last commands and what runs now. The last sessions that ended\ncan be asked about too.",
		ValidArgsFunction: complete("/v1/sessions", func(s admin.Session) string { return s.ID }),
		RunE: func(c *cobra.Command, args []string) error {
			tr, err := get[admin.Trace](c, "/v1/sessions/"+esc(args[0])+"/trace")
			if err != nil {
				return err
			}
			return ui.Print(c, tr, func(t *ui.Table) {
				const clock = "15:04:05.000"
				s := tr.Session
				t.Row("session", s.ID+" of "+s.Initiator+" with "+s.Target+" over "+s.Transport+" from "+s.Peer)
				if p := s.Path; p != nil {
					way := p.String()
					if p.GID != "" {
						way += ", from " + p.GID
					}
					if p.Exposure != "" {
						way += "; the initiator may reach of the daemon's memory: " + p.Exposure
					}
					t.Row("through", way)
				}
				if tr.Ended != "" {
					t.Row("ended", tr.Ended)
				}
				for _, e := range tr.Events {
					t.Row(e.At.Local().Format(clock), e.What)
				}
				line := func(k admin.TraceCommand) string {
					return fmt.Sprintf("%s  LUN %d  tag %#x  %v  %s", k.Command, k.LUN, k.Tag, time.Duration(k.Took).Round(time.Microsecond), k.Outcome)
				}
				for _, k := range tr.Commands {
					t.Row(k.At.Local().Format(clock), line(k))
				}
				for _, k := range tr.Inflight {
					t.Row("running", line(k))
				}
			})
		},
	}
}
