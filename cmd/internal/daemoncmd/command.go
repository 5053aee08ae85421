// Package daemoncmd is sluiced's command line. It is apart from its main, so that what writes manual pages and completions
// can read it.
package daemoncmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/version"
	"github.com/sluice-storage/sluice/target/daemon"
)

// Exit codes: scripts and systemd tell a bad file from a failure while serving.
const (
	exitFailed = 1
	exitConfig = 2 // a wrong command line too
)

// usageError is a command line that is wrong.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// ExitCode is what the process ends with when its command returned err.
func ExitCode(err error) int {
	var ce *daemon.ConfigError
	var ue usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ce), errors.As(err, &ue):
		return exitConfig
	default:
		return exitFailed
	}
}

type flags struct {
	config, stateDir, level string
	check, printDefault     bool
}

// Command makes sluiced's one command.
func Command() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "sluiced [--config FILE]",
		Short: "Serve block volumes over iSER and iSCSI, and directories over NFS",
		Long: `sluiced serves what its configuration names. Without --config it serves an embedded default: one sparse 1 GiB
volume in the state directory, on 127.0.0.1:3260, as iqn.2026-11.io.sluice:default LUN 0. One port takes iSER (RDMA
over the built-in software RNIC) and iSCSI/TCP alike.

  SIGTERM, SIGINT   finish what is running, within timeouts.drain, and end
  SIGHUP            read the configuration again; sessions that a change does not touch do not notice
  SIGUSR1           log more; once more: log as configured again`,
		Example: `  sluiced                                   # the embedded default
  sluiced --config /etc/sluice/sluiced.yaml
  sluiced --config sluiced.yaml --check     # say what is wrong with a file, serve nothing
  sluiced --print-default > sluiced.yaml    # a file to begin with`,
		Version: version.Long(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("sluiced wants no arguments, and %q is one; for example: sluiced --config %s", args[0], args[0])}
			}
			return nil
		},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return run(c, f) },
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; for example: sluiced --config /etc/sluice/sluiced.yaml", err)}
	})
	c.Flags().StringVarP(&f.config, "config", "c", "", "configuration file (YAML)")
	c.Flags().StringVar(&f.stateDir, "state-dir", "", "state directory, instead of the file's state_dir")
	c.Flags().StringVar(&f.level, "log-level", "", "debug, info, warn or error, instead of the file's log.level")
	c.Flags().BoolVar(&f.check, "check", false, "check the configuration and end")
	c.Flags().BoolVar(&f.printDefault, "print-default", false, "print the embedded configuration and end")
	return c
}

func run(c *cobra.Command, f flags) error {
	if f.printDefault {
		_, err := c.OutOrStdout().Write(daemon.DefaultYAML())
		return err
	}
	cfg, err := daemon.LoadServing(f.config, f.stateDir, f.level)
	if err != nil {
		return err
	}
	if f.check {
		users, err := cfg.CheckSecrets()
		for _, u := range users {
			fmt.Fprintf(c.ErrOrStderr(), "warning: user %s %s\n", u, daemon.Unbound)
		}
		for _, note := range cfg.SRPNotes() {
			fmt.Fprintln(c.ErrOrStderr(), "note:", note)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "%d volumes, %d targets, %d exports: the configuration is good\n", len(cfg.Volumes), len(cfg.Targets), len(cfg.Exports))
		return nil
	}
	log, level, err := daemon.NewLogger(cfg.Log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // standard error may be a terminal, which cannot sync
	// Signals are caught before anything is opened: a SIGTERM that comes early must not leave a half-made volume.
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	usr := make(chan os.Signal, 1)
	signal.Notify(usr, syscall.SIGUSR1)
	d, err := daemon.New(cfg, log)
	if err != nil {
		return err
	}
	go func() {
		for {
			select {
			case <-stop.Done():
				return
			case <-hup:
				if err := d.ReloadFile(); err != nil {
					log.Error("reload", zap.Error(err))
				}
			case <-usr:
				daemon.ToggleDebug(level, cfg.Log.Level)
				log.Info("log level changed", zap.Stringer("level", level.Level()))
			}
		}
	}()
	return d.Run(stop)
}
