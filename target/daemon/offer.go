package daemon

import (
	"errors"
	"path"
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/nfs"
)

// offer is what can be served of a configuration's exports.
type offer struct {
	exports []nfs.Export
	absent  map[string]string // why others cannot, by name
}

// offered opens the exports of c by open, and leaves out those that open cannot open. At a start any may be left out: a directory whose file
// system is not mounted does not take volumes and other exports from their hosts. Later only those may that were not served before
// either, for a change is made as a whole.
func (d *Daemon) offered(c *Config, start bool, open func(...nfs.Export) error) (*offer, error) {
	o := &offer{c.exports(), map[string]string{}}
	for {
		err := open(o.exports...)
		var cannot *nfs.OpenError
		if !errors.As(err, &cannot) {
			return o, err
		}
		n := len(o.exports)
		o.exports = slices.DeleteFunc(o.exports, func(x nfs.Export) bool {
			why := cannot.Why[x.Path]
			leave := why != nil && (start || d.stillAbsent(c, x.Path))
			if leave {
				o.absent[x.Path] = why.Error()
			}
			return leave
		})
		if n-len(o.exports) < len(cannot.Why) {
			return nil, err
		}
	}
}

// stillAbsent reports whether the export of that name was not served before, and is to be what it was to be then.
func (d *Daemon) stillAbsent(c *Config, name string) bool {
	called := func(e ExportConfig) bool { return path.Clean(e.Name) == name }
	i, j := slices.IndexFunc(d.cfg.Exports, called), slices.IndexFunc(c.Exports, called)
	return d.absent[name] != "" && i >= 0 && j >= 0 && same(d.cfg.Exports[i], c.Exports[j])
}

// settleOfferLocked notes which exports are not served, and says it once.
func (d *Daemon) settleOfferLocked(o *offer) {
	was := d.absent
	if d.absent = nil; o == nil {
		return
	}
	for name, why := range o.absent {
		if was[name] != why {
			d.log.Error("an export is not served; mend what is wrong and reload", zap.String("export", name), zap.String("why", why))
		}
	}
	for _, x := range o.exports {
		if was[x.Path] != "" {
			d.log.Info("an export that was not served is served now", zap.String("export", x.Path))
		}
	}
	d.absent = o.absent
}
