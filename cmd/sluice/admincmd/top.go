package admincmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

func top() *cobra.Command {
	var interval time.Duration
	var once bool
	c := &cobra.Command{
		Use: "top", Short: "Watch volumes, exports and sessions: rates, latencies, queue depths", Args: cobra.NoArgs,
		Long: `Watch volumes, exports and sessions: what they do in a second, how long the middle (P50) and the slowest hundredth (P99) of the
commands took, and how many run now.

  s      sort by load, latency, name
  p      pause, and go on
  q      quit

With --once it measures one interval and prints that, as a table or as --output json.`,
		Example: "  sluice top\n  sluice top --once --interval 5s --output json",
		RunE: func(c *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return ui.Usagef("--interval %v is shorter than 100ms", interval)
			}
			j, err := ui.JSON(c)
			if err != nil {
				return err
			}
			if once || j {
				return topOnce(c, interval)
			}
			if fi, err := os.Stdout.Stat(); err != nil || fi.Mode()&os.ModeCharDevice == 0 {
				return ui.Usagef("standard output is no terminal; say --once")
			}
			return topLive(c, interval)
		},
	}
	c.Flags().DurationVar(&interval, "interval", time.Second, "how often the daemon is asked")
	c.Flags().BoolVar(&once, "once", false, "print one interval and end")
	return c
}

func readStats(ctx context.Context, a *client) (s admin.Stats, err error) {
	err = a.do(ctx, http.MethodGet, "/v1/stats", nil, &s)
	return s, err
}

func topOnce(c *cobra.Command, interval time.Duration) error {
	a := dial(c)
	first, err := readStats(c.Context(), a)
	if err != nil {
		return err
	}
	select {
	case <-time.After(interval):
	case <-c.Context().Done():
		return c.Context().Err()
	}
	second, err := readStats(c.Context(), a)
	if err != nil {
		return err
	}
	r := between(first, second)
	r.sort(byLoad)
	if j, err := ui.JSON(c); err != nil || j {
		return errors.Join(err, ui.Print(c, r, nil))
	}
	_, err = fmt.Fprint(c.OutOrStdout(), r.table())
	return err
}

// topModel is the live view. Its one reading at a time is under way or waited for.
type topModel struct {
	ctx           context.Context
	client        *client
	every         time.Duration
	last          *admin.Stats
	now           rates
	order         order
	paused        bool
	err           error
	width, height int
}

type readMsg struct {
	s   admin.Stats
	err error
}

func topLive(c *cobra.Command, interval time.Duration) error {
	m := &topModel{ctx: c.Context(), client: dial(c), every: interval}
	end, err := tea.NewProgram(m, tea.WithContext(c.Context())).Run()
	if errors.Is(err, tea.ErrProgramKilled) && c.Context().Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	return end.(*topModel).err
}

func (m *topModel) read() tea.Msg {
	s, err := readStats(m.ctx, m.client)
	return readMsg{s, err}
}

// Init asks for the first reading.
func (m *topModel) Init() tea.Cmd { return m.read }

// Update takes keys, sizes and readings.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		case "s":
			m.order = (m.order + 1) % orders
			m.now.sort(m.order)
		case "p":
			m.paused = !m.paused
		}
	case readMsg:
		if msg.err != nil {
			m.err = msg.err
			return m, tea.Quit
		}
		if m.last != nil && !m.paused {
			m.now = between(*m.last, msg.s)
			m.now.sort(m.order)
		}
		m.last = &msg.s
		return m, tea.Tick(m.every, func(time.Time) tea.Msg { return m.read() })
	}
	return m, nil
}

// View draws the whole screen.
func (m *topModel) View() tea.View {
	var b strings.Builder
	fmt.Fprintf(&b, "sluice top: %d volumes, %d sessions, buffers %s of %s, by %s", len(m.now.Volumes), len(m.now.Sessions),
		ui.Bytes(m.now.Memory.Used), ui.Bytes(m.now.Memory.Limit), m.order)
	if m.paused {
		b.WriteString(", paused")
	}
	b.WriteString("\n\n" + m.now.table() + "\nq quit  s sort  p pause\n")
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if keys := lines[len(lines)-1]; m.height > 0 && len(lines) > m.height {
		lines = append(lines[:m.height-1], keys)
	}
	for i, l := range lines {
		if r := []rune(l); m.width > 0 && len(r) > m.width {
			lines[i] = string(r[:m.width])
		}
	}
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen = true
	return v
}

// table is volumes, exports and sessions for people.
func (r *rates) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...any) {
		for _, c := range cells {
			fmt.Fprint(w, c, "\t")
		}
		fmt.Fprintln(w)
	}
	row("READ/S", "WRITE/S", "READ B/S", "WRITE B/S", "QUEUE", "READ P50", "P99", "WRITE P50", "P99", "ERRORS", " VOLUME")
	for _, v := range r.Volumes {
		row(rate(v.Reads), rate(v.Writes), ui.Bytes(int64(v.ReadBytes)), ui.Bytes(int64(v.WriteBytes)), v.InProgress,
			span(v.Read.P50), span(v.Read.P99), span(v.Write.P50), span(v.Write.P99), v.Errors, " "+v.Name)
	}
	if len(r.Exports) > 0 {
		_ = w.Flush() // into memory
		b.WriteString("\n")
		row("OPS/S", "READ B/S", "WRITE B/S", "READ P50", "P99", "WRITE P50", "P99", "OTHER P50", "P99", " EXPORT")
		for _, e := range r.Exports {
			row(rate(e.Ops), ui.Bytes(int64(e.ReadBytes)), ui.Bytes(int64(e.WriteBytes)), span(e.Read.P50), span(e.Read.P99), span(e.Write.P50), span(e.Write.P99), span(e.Other.P50), span(e.Other.P99), " "+e.Name)
		}
	}
	_ = w.Flush()
	b.WriteString("\n")
	row("ID", "OVER", "COMMANDS/S", "READ B/S", "WRITE B/S", "RUNNING", " INITIATOR")
	for _, s := range r.Sessions {
		row(s.ID, s.Transport, rate(s.Commands), ui.Bytes(int64(s.ReadBytes)), ui.Bytes(int64(s.WriteBytes)), s.InProgress, " "+s.Initiator)
	}
	_ = w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func rate(f float64) string {
	if f >= 100 || f == 0 {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.1f", f)
}

// span writes a latency with three digits at most.
func span(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%dus", d.Round(time.Microsecond).Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", d.Seconds()*1e3)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}
