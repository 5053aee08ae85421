package ui

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// groupMark is the annotation of a command that only holds others.
const groupMark = "group"

// IsGroup reports a command that only holds others: it runs to say what is missing.
func IsGroup(c *cobra.Command) bool { return c.Annotations[groupMark] != "" }

// ExplainUsage makes all commands from c down answer wrong use alike: before anything is done, with exit code 2, naming what is
// missing or too much, and with one line that works.
func ExplainUsage(root *cobra.Command) {
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return withExample(c, Usage(err)) })
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if _, err := JSON(c); err != nil {
			return withExample(c, err)
		}
		for _, check := range []func() error{c.ValidateRequiredFlags, c.ValidateFlagGroups} {
			if err := check(); err != nil {
				return withExample(c, Usage(err))
			}
		}
		return nil
	}
	explain(root)
}

func explain(c *cobra.Command) {
	for _, sub := range c.Commands() {
		explain(sub)
	}
	if !c.Runnable() && c.HasSubCommands() {
		asGroup(c)
		return
	}
	check, run := c.Args, c.RunE
	c.Args = func(c *cobra.Command, args []string) error {
		if c.HasSubCommands() && len(args) > 0 {
			return unknown(c, args[0])
		}
		if check == nil {
			return nil
		}
		if err := check(c, args); err != nil {
			return withExample(c, Usage(counted(c, args, err)))
		}
		return nil
	}
	if run != nil {
		c.RunE = func(c *cobra.Command, args []string) error { return withExample(c, run(c, args)) }
	}
}

// asGroup makes a command that only holds others refuse what is none of them.
func asGroup(c *cobra.Command) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[groupMark] = "yes"
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(c, args[0])
		}
		if !c.HasParent() {
			return c.Help()
		}
		return Usagef("%s wants one of its commands: %s; for example: %s", c.CommandPath(), strings.Join(names(c), ", "), exampleBelow(c))
	}
}

func names(c *cobra.Command) (l []string) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			l = append(l, sub.Name())
		}
	}
	return l
}

func exampleBelow(c *cobra.Command) string {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !IsGroup(sub) {
			return Example(sub)
		}
	}
	return c.CommandPath() + " --help"
}

func unknown(c *cobra.Command, word string) error {
	near := ""
	if c.SuggestionsMinimumDistance <= 0 {
		c.SuggestionsMinimumDistance = 2
	}
	if s := c.SuggestionsFor(word); len(s) > 0 {
		near = " (did you mean " + s[0] + "?)"
	}
	return Usagef("%s has no command %q%s; it has %s; for example: %s", c.CommandPath(), word, near, strings.Join(names(c), ", "), exampleBelow(c))
}

var optional = regexp.MustCompile(`\[[^\]]*\]`)

// wants are the arguments that a command's line of use names: those that must be there, and how many there may be, -1 for any.
func wants(c *cobra.Command) (must []string, most int) {
	_, rest, _ := strings.Cut(c.Use, " ")
	must = strings.Fields(optional.ReplaceAllString(rest, ""))
	if strings.Contains(rest, "...") {
		return must, -1
	}
	return must, len(must) + len(strings.Fields(strings.Join(optional.FindAllString(rest, -1), " ")))
}

// counted says which arguments are missing or too many, where it is that.
func counted(c *cobra.Command, args []string, err error) error {
	must, most := wants(c)
	_, use, _ := strings.Cut(c.Use, " ")
	switch {
	case len(args) < len(must):
		missing, verb := must[len(args):], "is"
		if len(missing) > 1 {
			verb = "are"
		}
		return fmt.Errorf("%s wants %s: %s %s missing", c.CommandPath(), use, strings.Join(missing, " and "), verb)
	case most == 0 && len(args) > 0:
		return fmt.Errorf("%s wants no arguments, and %q is one", c.CommandPath(), args[0])
	case most >= 0 && len(args) > most:
		return fmt.Errorf("%s wants %s: %q is too much", c.CommandPath(), use, args[most])
	}
	return err
}

// Example is one line that uses a command.
func Example(c *cobra.Command) string {
	first, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
	if first == "" {
		return c.CommandPath()
	}
	return strings.TrimSpace(first)
}

// withExample adds a line that works to an error about usage.
func withExample(c *cobra.Command, err error) error {
	var ee ExitError
	if err == nil || !errors.As(err, &ee) || ee.Code != CodeUsage || strings.Contains(err.Error(), "sluice ") && strings.Contains(err.Error(), "example") {
		return err
	}
	return Usage(fmt.Errorf("%w; for example: %s", err, Example(c)))
}
