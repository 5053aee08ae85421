package admincmd

import (
	"errors"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

// LiveConfig is what the daemon that c's flags mean serves now, as YAML, and who that daemon is.
func LiveConfig(c *cobra.Command) (yaml []byte, who admin.Info, err error) {
	a := dial(c)
	if err = a.do(c.Context(), http.MethodGet, "/v1/info", nil, &who); err != nil {
		return nil, who, err
	}
	err = a.do(c.Context(), http.MethodGet, "/v1/config", nil, &yaml)
	return yaml, who, err
}

// Served is what a daemon has; what it does not serve has a problem.
type Served struct {
	Volumes []admin.Volume
	Targets []admin.Target
	Exports []admin.Export
	Unbound []admin.Unbound
}

// AskServed asks the daemon what it has.
func AskServed(c *cobra.Command) (s Served, err error) {
	if s.Volumes, err = get[[]admin.Volume](c, "/v1/volumes"); err != nil {
		return s, err
	}
	if s.Targets, err = get[[]admin.Target](c, "/v1/targets"); err != nil {
		return s, err
	}
	if s.Exports, err = get[[]admin.Export](c, "/v1/exports"); err != nil {
		return s, err
	}
	info, err := get[admin.Info](c, "/v1/info")
	s.Unbound = info.Unbound
	return s, err
}

// PlannedChanges are the lines that a reload of that daemon would print; it does nothing.
func PlannedChanges(c *cobra.Command) (d admin.Done, err error) {
	err = dial(c).do(c.Context(), http.MethodPost, "/v1/config/reload?dry_run=true", nil, &d)
	return d, err
}

// NoDaemon reports whether err says that no daemon listens, and that c's flags named none.
func NoDaemon(c *cobra.Command, err error) bool {
	var code ui.ExitError
	return errors.As(err, &code) && code.Code == ui.CodeNoPeer && !c.Flags().Changed("socket") && !c.Flags().Changed("admin")
}
