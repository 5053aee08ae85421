package daemon

import (
	"context"
	"os"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/iscsi/isns"
)

// registerISNS keeps targets and portals registered with the configured iSNS server until the context ends. The entity
// is the host's name: one daemon a host is what iSNS calls a network entity.
func (d *Daemon) registerISNS(ctx context.Context, server string) {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "sluiced"
	}
	if err := d.server.RegisterISNS(ctx, isns.Options{Server: server, Entity: host}); err != nil {
		d.log.Warn("iSNS registration was not taken back; it expires by itself", zap.String("server", server), zap.Error(err))
	}
}
