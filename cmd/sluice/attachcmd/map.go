package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/attachcmd/sluicetab"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// mapSideBySide bounds the volumes attached at a time: one target that does not answer must not hold up the others, and a
// table of hundreds must not start as many helpers at once.
const mapSideBySide = 8

// What map and unmap do with a volume.
const (
	doAttach = "attach" // or would, with --dry-run
	doKeep   = "keep"   // it is attached, or is not, as asked for
	doDetach = "detach"
	doFail   = "fail"
)

// step is what becomes of one volume.
type step struct {
	Name   string `json:"name"`
	Action string `json:"action"`
	Face   string `json:"face"`
	Path   string `json:"path,omitempty"`
	URL    string `json:"url"`
	Error  string `json:"error,omitempty"`
	err    error
	entry  *sluicetab.Entry
	rec    *Record
}

type mapOptions struct {
	table      string
	dryRun     bool
	foreground bool
}

const tableHelp = `The table has a line for each volume, with fields as crypttab(5) has them:

  # name   URL[,URL...]                                     credentials            options
  data     iser://192.0.2.1/iqn.2026-11.org.example:data/0
  db       iser://192.0.2.1/iqn.2026-11.org.example:db/0    /etc/sluice/db.cred    as=nbd,reconnect=forever
  scratch  iscsi://192.0.2.9/iqn.2026-11.org.example:x/3    -                      noauto,nofail,ro

Options: as=nbd|ublk|fuse|socket|auto, noauto (only when named), nofail (a failure does not count), ro, reconnect=30s|5m|forever,
crc=on|always|peer|off, provider=iwarp|verbs, exposure=windows|whole-slab, ack_timeout=60ms, initiator=IQN, socket=/PATH
(with as=socket), and _netdev, which says what is so anyway.`

func mapCommand() *cobra.Command {
	var o mapOptions
	c := &cobra.Command{
		Use:   "map [NAME...]",
		Short: "Attach the volumes of /etc/sluicetab",
		Long: `Attach the volumes of /etc/sluicetab: those that are named, or all that are not marked noauto. What is attached already
stays as it is, so the command can be run again. A volume that fails is told, the others are attached, and the exit code says
that one failed.

` + tableHelp + `

At boot sluice-map.service runs this; sluice-attach@NAME.service keeps one volume attached under the service manager's eyes.`,
		Example:           "  sluice map --dry-run\n  sluice map\n  sluice map scratch -o json",
		ValidArgsFunction: o.completeTable,
		RunE: func(c *cobra.Command, args []string) error {
			steps, err := o.plan(args, true)
			if err != nil {
				return err
			}
			if o.foreground {
				return o.serve(c.Context(), steps)
			}
			return o.carryOut(c, steps, func(s *step) {
				opt := optionsOf(s.entry)
				s.rec, _, s.err = opt.start(c.Context(), strings.Join(s.entry.URLs, ","), func(why string) bool {
					ui.Note(c.ErrOrStderr(), "%s: its helper waits for the target: %s", s.Name, why)
					return true
				})
			})
		},
	}
	o.flags(c)
	c.Flags().BoolVar(&o.foreground, "foreground", false, "serve one volume in this process until it is interrupted")
	return c
}

func unmapCommand() *cobra.Command {
	var o mapOptions
	c := &cobra.Command{
		Use:   "unmap [NAME...]",
		Short: "Detach the volumes of /etc/sluicetab",
		Long: `Detach the volumes of /etc/sluicetab: those that are named, or all. What is not attached is no error. A volume with a
mounted file system is refused; unmount it first.`,
		Example:           "  sluice unmap\n  sluice unmap scratch",
		ValidArgsFunction: o.completeTable,
		RunE: func(c *cobra.Command, args []string) error {
			steps, err := o.plan(args, false)
			if err != nil {
				return err
			}
			return o.carryOut(c, steps, func(s *step) { s.err = s.rec.end(false) })
		},
	}
	o.flags(c)
	return c
}

func (o *mapOptions) flags(c *cobra.Command) {
	c.Flags().StringVar(&o.table, "table", sluicetab.Path, "the table to read")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "say what would be done, and do nothing")
}

func (o *mapOptions) completeTable(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	es, err := o.read()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for _, e := range es {
		out = append(out, e.Name+"\t"+strings.Join(e.URLs, ","))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (o *mapOptions) read() ([]sluicetab.Entry, error) {
	b, err := os.ReadFile(o.table)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refused("there is no %s; sluice map --help shows what it holds", o.table)
	}
	if err != nil {
		return nil, err
	}
	es, err := sluicetab.Parse(o.table, b)
	if err != nil {
		return nil, refused("%w", err)
	}
	return es, nil
}

// plan says for each volume that is meant what is to be done.
func (o *mapOptions) plan(names []string, on bool) ([]*step, error) {
	es, err := o.read()
	if err != nil {
		return nil, err
	}
	byName := map[string]*sluicetab.Entry{}
	var chosen []*sluicetab.Entry
	for i := range es {
		byName[es[i].Name] = &es[i]
		if len(names) == 0 && !(on && es[i].NoAuto) {
			chosen = append(chosen, &es[i])
		}
	}
	for _, n := range names {
		e := byName[n]
		if e == nil {
			return nil, refused("%s has no volume %q", o.table, n)
		}
		chosen = append(chosen, e)
	}
	rs, err := list()
	if err != nil {
		return nil, err
	}
	steps := []*step{}
	for _, e := range chosen {
		s, err := stepOf(e, rs, on)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

func stepOf(e *sluicetab.Entry, rs []*Record, on bool) (*step, error) {
	shown, _, err := describe(strings.Join(e.URLs, ","))
	if err != nil {
		return nil, err
	}
	s := &step{Name: e.Name, Face: e.Face, URL: shown, entry: e, Action: doKeep}
	for _, r := range rs {
		if r.Name == e.Name {
			s.rec, s.Face, s.Path = r, r.Face, r.Path
		}
	}
	want, err := optionsOf(e).inWords()
	if err != nil {
		return nil, err
	}
	switch {
	case on && (s.rec == nil || s.rec.Broken):
		s.Action = doAttach
	case on && s.rec.URL != shown:
		s.Action, s.err = doFail, refused("%s is attached from another URL, %s; run sluice unmap %s first", e.Name, s.rec.URL, e.Name)
	case on && e.Face != faceAuto && e.Face != s.rec.Face:
		s.Action, s.err = doFail, refused("%s is attached as a %s, and the table says %s; run sluice unmap %s first", e.Name, s.rec.Face, e.Face, e.Name)
	case on && s.rec.Options != nil && !slices.Equal(s.rec.Options, want): // a helper of an earlier version has not said
		s.Action, s.err = doFail, refused("%s is attached with %s, and the table says %s; run sluice unmap %s first", e.Name, strings.Join(s.rec.Options, ","), strings.Join(want, ","), e.Name)
	case on && e.Socket != "" && e.Socket != s.rec.Path:
		s.Action, s.err = doFail, refused("%s is attached at %s, and the table says %s; run sluice unmap %s first", e.Name, s.rec.Path, e.Socket, e.Name)
	case !on && s.rec != nil:
		s.Action = doDetach
	}
	return s, nil
}

func optionsOf(e *sluicetab.Entry) *options {
	o := &options{name: e.Name, face: e.Face, socket: e.Socket, readOnly: e.ReadOnly}
	o.conn.Provider, o.conn.Exposure, o.conn.AckTimeout = e.Provider, e.Exposure, e.AckTimeout
	o.conn.CRC, o.conn.Initiator, o.conn.Credentials, o.conn.Reconnect = e.CRC, e.Initiator, e.Credentials, e.Reconnect
	if o.conn.CRC == "" {
		o.conn.CRC = "on"
	}
	return o
}

// serve is the body of sluice-attach@NAME.service.
func (o *mapOptions) serve(ctx context.Context, steps []*step) error {
	if len(steps) != 1 {
		return ui.Usagef("--foreground serves one volume; name it")
	}
	s := steps[0]
	if s.Action != doAttach {
		return errors.Join(s.err, refused("%s is attached already, by process %d", s.Name, s.rec.PID))
	}
	return optionsOf(s.entry).helper(ctx, strings.Join(s.entry.URLs, ","))
}

// carryOut does what was planned, some volumes side by side, prints what became of each, and fails if one failed that may
// not.
func (o *mapOptions) carryOut(c *cobra.Command, steps []*step, do func(*step)) error {
	var wg sync.WaitGroup
	room := make(chan struct{}, mapSideBySide)
	for _, s := range steps {
		if o.dryRun || s.Action != doAttach && s.Action != doDetach {
			continue
		}
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			do(s)
			switch {
			case s.err != nil:
				s.Action = doFail
			case s.rec != nil:
				s.Face, s.Path = s.rec.Face, s.rec.Path
			}
		})
	}
	wg.Wait()
	var failed []error
	for _, s := range steps {
		if s.err != nil {
			s.Error = s.err.Error()
			if !s.entry.NoFail {
				failed = append(failed, s.err)
			}
		}
	}
	err := ui.Print(c, steps, func(t *ui.Table) {
		t.Row("NAME", "ACTION", "FACE", "PATH", "URL")
		for _, s := range steps {
			t.Row(s.Name, s.Action, s.Face, dash(s.Path), s.URL)
		}
	})
	for _, s := range steps {
		if s.err != nil {
			ui.Note(c.ErrOrStderr(), "sluice: %s: %v", s.Name, s.err)
		}
	}
	if err != nil || len(failed) == 0 {
		return err
	}
	code := ui.CodeFailed
	var e ui.ExitError
	if errors.As(failed[0], &e) {
		code = e.Code
	}
	return ui.ExitError{Code: code, Err: fmt.Errorf("%d of %d volumes failed", len(failed), len(steps))}
}
