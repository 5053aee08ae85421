package ui

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Confirm asks a person whether to do what is said; without a terminal there is none to ask.
func Confirm(c *cobra.Command, what string) error {
	in, ok := c.InOrStdin().(*os.File)
	if fi, err := os.Stdin.Stat(); ok && in == os.Stdin && (err != nil || fi.Mode()&os.ModeCharDevice == 0) {
		return Usagef("%s: say --yes where nobody can be asked", what)
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s. Type yes to go on: ", what)
	var answer string
	if _, err := fmt.Fscanln(c.InOrStdin(), &answer); err != nil || !strings.EqualFold(answer, "yes") {
		return ExitError{Code: CodeRefused, Err: errors.New("not confirmed; nothing was done")}
	}
	return nil
}

// Asks gives a command the flag that Sure looks at.
func Asks(c *cobra.Command) {
	c.Flags().Bool("yes", false, "do not ask, as where there is no terminal")
}

// Sure reports whether a command that cuts hosts off is done without a question: with --yes, and where no person would see it. A
// script that was written to do so does so.
func Sure(c *cobra.Command) (bool, error) {
	yes, err := c.Flags().GetBool("yes")
	if err != nil || yes {
		return yes, err
	}
	in, ok := c.InOrStdin().(*os.File)
	if !ok {
		return false, nil
	}
	_, err = unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	return err != nil, nil
}

// ConfirmUnlessSure asks where Sure does not.
func ConfirmUnlessSure(c *cobra.Command, what string) error {
	sure, err := Sure(c)
	if err != nil || sure {
		return err
	}
	return Confirm(c, what)
}
