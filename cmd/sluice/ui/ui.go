// Package ui is what the commands of sluice share in talking to people and scripts: tables, JSON, exit codes, progress.
package ui

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Exit codes that scripts can trust.
const (
	CodeFailed  = 1 // anything without a code of its own
	CodeUsage   = 2 // the command line is wrong
	CodeNoPeer  = 3 // no program answered at the address
	CodeRefused = 4 // the target refused, or has no such target, LUN or file
	CodeDiffer  = 5 // data were compared and differ
)

// ExitError is an error with the exit code it stands for.
type ExitError struct {
	Code int
	Err  error
}

func (e ExitError) Error() string { return e.Err.Error() }

// Unwrap is the error behind the code.
func (e ExitError) Unwrap() error { return e.Err }

// Usage marks an error of the command line.
func Usage(err error) error { return ExitError{CodeUsage, err} }

// Usagef makes an error of the command line.
func Usagef(format string, a ...any) error { return Usage(fmt.Errorf(format, a...)) }

// AddOutputFlag gives c and its children --output.
func AddOutputFlag(c *cobra.Command) {
	c.PersistentFlags().StringP("output", "o", "table", "how to print: table or json")
	// The only error is a flag that does not exist, and it was made a line above.
	if err := c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// JSON reports whether --output json was given; another value than table and json is an error.
func JSON(c *cobra.Command) (bool, error) {
	switch v, err := c.Flags().GetString("output"); {
	case err != nil:
		return false, err
	case v == "json":
		return true, nil
	case v == "table":
		return false, nil
	default:
		return false, Usagef("--output %q is neither table nor json", v)
	}
}

// Print writes v as indented JSON with --output json, and what table draws otherwise.
func Print(c *cobra.Command, v any, table func(*Table)) error {
	j, err := JSON(c)
	if err != nil {
		return err
	}
	if j {
		e := json.NewEncoder(c.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	t := &Table{w: tabwriter.NewWriter(c.OutOrStdout(), 0, 8, 2, ' ', 0)}
	table(t)
	return t.w.Flush()
}

// Table is rows of columns for people.
type Table struct{ w *tabwriter.Writer }

// Row adds one row.
func (t *Table) Row(cells ...any) {
	s := make([]string, len(cells))
	for i, c := range cells {
		s[i] = fmt.Sprint(c)
	}
	fmt.Fprintln(t.w, strings.Join(s, "\t"))
}

// Bytes writes a number of bytes for people: "1.5 GiB".
func Bytes(n int64) string {
	f, unit := float64(n), 0
	for f >= 1024 && unit < 4 {
		f, unit = f/1024, unit+1
	}
	names := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	if unit == 0 || f == float64(int64(f)) {
		return fmt.Sprintf("%d %s", int64(f), names[unit])
	}
	return fmt.Sprintf("%.1f %s", f, names[unit])
}

// Note prints a line for people on standard error, so that standard output stays what a script reads.
func Note(w io.Writer, format string, a ...any) { fmt.Fprintf(w, format+"\n", a...) }
