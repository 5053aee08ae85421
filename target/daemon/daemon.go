// Package daemon turns a configuration into portals, volumes, targets and exports, changes them while they are used, and
// takes them down in order. cmd/sluiced is its only user.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/group"
	"github.com/sluice-storage/sluice/internal/savefile"
	"github.com/sluice-storage/sluice/internal/version"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/target/srp"
	"github.com/sluice-storage/sluice/transport"
)

// Daemon is one running target.
type Daemon struct {
	log      *zap.Logger
	audit    *zap.Logger
	auditEnd func() error
	stateDir string
	drain    time.Duration // as it was at the start: a change takes effect with the next
	source   string        // the file, for people
	started  time.Time
	memory   *mem.Pool
	device   transport.Device // shares the portals' sockets; nil without one
	adapters []*adapters      // have listeners of their own
	server   *iscsi.Server
	srp      *srp.Server
	given    map[string]net.Listener // sockets of the service manager, by address
	drained  chan struct{}           // closed when an operator asks for the end
	drainOne sync.Once
	portalWG sync.WaitGroup

	adminAddr atomic.Value // net.Addr of the TLS listener
	failed    chan error   // a portal's listener failed while serving

	changeMu changeLock      // changes of what is served, one at a time; held around mu
	life     context.Context // of changes under way, until the daemon ends
	lifeEnd  context.CancelFunc
	// upgrading: an earlier version has served the volumes from this state directory. first: no daemon has. Both are for the time in which
	// New opens volumes; first lasts as long as a volume waits for its identity.
	upgrading, first bool
	undecided        bool        // a volume's identity could not be found
	closing          group.Group // of volumes that were removed

	// What is served. It changes with both locks held and is read with either. Nothing waits with mu held, so that a request that only
	// reads the state is answered while a medium hangs.
	mu      sync.Mutex
	cfg     *Config
	volumes map[string]*volume
	targets map[string]*scsi.Target
	// replacing are targets that a change has ended, until the change is complete: a new target of such a name takes over which LUNs
	// its hosts know.
	replacing map[string]*scsi.Target
	portals   map[string]*portal
	// srpPortals are those of srp, by address. offers, which has a lock of its own for those who log in, are the targets that are served there.
	srpPortals map[string]*srpPortal
	offersMu   sync.RWMutex
	offers     map[string]srpOffer
	// forms are the targets as they are served, with their secrets and without devices; unserved says why others are not.
	forms       map[string]targetForm
	unserved    map[string]string
	serving     bool
	ended       bool              // nothing changes any more
	files       *files            // nil without exports
	absent      map[string]string // why exports are not served, by name
	filesBefore *files            // the service that ended last; calls to a medium that hangs may go on in it
}

// New opens everything the configuration names, all or nothing: what was opened is closed again on an error. Nothing is
// served before Run. A configuration of LoadServing is read again for changes while serving; with another one nothing changes.
func New(cfg *Config, log *zap.Logger) (_ *Daemon, err error) {
	d := &Daemon{
		log: log, cfg: cfg, changeMu: make(changeLock, 1), stateDir: cfg.StateDir, drain: time.Duration(cfg.Timeouts.Drain), source: cfg.source, started: time.Now(), drained: make(chan struct{}), failed: make(chan error, 1),
		volumes: map[string]*volume{}, targets: map[string]*scsi.Target{}, replacing: map[string]*scsi.Target{}, portals: map[string]*portal{}, srpPortals: map[string]*srpPortal{}, offers: map[string]srpOffer{}, forms: map[string]targetForm{}, unserved: map[string]string{},
	}
	d.life, d.lifeEnd = context.WithCancel(context.Background())
	if err := errors.Join(os.MkdirAll(cfg.StateDir, 0o750), savefile.MkdirAll(mediaDir(cfg.StateDir))); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.closeAll(context.Background()))
		}
	}()
	for _, open := range []func(*Config) error{d.openServer, d.openVolumes, d.openTargets, d.openPortals, d.openSRP} {
		if err := open(cfg); err != nil {
			return nil, err
		}
	}
	files, o, err := d.openFiles(cfg, true)
	if err != nil {
		return nil, err
	}
	d.files = files
	d.settleOfferLocked(o)
	d.sweep()
	for addr := range d.given { // kept: a reload may bring its portal
		if d.portals[addr] == nil {
			d.log.Warn("a socket of the service manager is no portal's: a connection to it is never answered; give both the same address, or disable the socket unit", zap.String("address", addr))
		}
	}
	return d, nil
}

// openServer opens the log of changes, the fabrics and what sessions are served by.
func (d *Daemon) openServer(cfg *Config) (err error) {
	if d.audit, d.auditEnd, err = auditLogger(cfg.Log, d.log); err != nil {
		return err
	}
	if err := d.openFabric(cfg.Fabric); err != nil {
		return err
	}
	d.memory = mem.NewPool(int64(cfg.Memory))
	discovery, err := cfg.DiscoveryAuth.auth()
	if err != nil {
		return fmt.Errorf("discovery_auth: %w", err)
	}
	d.server, err = iscsi.NewServer(iscsi.Options{
		Memory: d.memory, Device: d.device, Log: d.log, Audit: d.audit, DiscoveryAuth: discovery,
		Limits:   iscsi.Limits{Connections: cfg.Limits.Connections, PerHost: cfg.Limits.PerHost},
		Timeouts: iscsi.Timeouts{Login: time.Duration(cfg.Timeouts.Login), Peer: time.Duration(cfg.Timeouts.Peer), Drain: time.Duration(cfg.Timeouts.Drain)},
	})
	if err != nil {
		return err
	}
	if d.srp, err = srp.NewServer(srp.Options{
		Memory: d.memory, Find: d.findSRP, Log: d.log, Audit: d.audit, Connections: cfg.Limits.Connections, PerHost: cfg.Limits.PerHost,
		Login: time.Duration(cfg.Timeouts.Login), Peer: time.Duration(cfg.Timeouts.Peer), Drain: time.Duration(cfg.Timeouts.Drain),
	}); err != nil {
		return err
	}
	d.given, err = inherited()
	return err
}

// openVolumes opens the volumes, which get or find their identities with that.
func (d *Daemon) openVolumes(cfg *Config) error {
	if err := d.prepareIdentities(); err != nil {
		return err
	}
	d.finishDeletions()
	if d.first && cfg.embedded {
		if err := d.makeDefault(); err != nil {
			return err
		}
	}
	for _, v := range cfg.Volumes {
		vol, err := d.startVolume(v)
		if err != nil {
			return err
		}
		d.volumes[v.Name] = vol
	}
	return d.identified()
}

// scsiState is where the device server keeps what survives a restart.
func (d *Daemon) scsiState() string { return filepath.Join(d.stateDir, "scsi") }

// Run serves until the context ends, an operator drains the daemon or a portal fails, and then takes everything down.
func (d *Daemon) Run(ctx context.Context) error {
	d.mu.Lock()
	for _, p := range d.portals {
		d.servePortal(p)
	}
	for _, p := range d.srpPortals {
		d.serveSRP(p)
	}
	d.serveFiles()
	d.serving = true
	isns, adm := d.cfg.ISNS, d.cfg.Admin // a reload may come from here on
	d.log.Info("serving", zap.String("version", version.String()), zap.Int("volumes", len(d.volumes)), zap.Int("targets", len(d.targets)), zap.String("state_dir", d.stateDir))
	d.mu.Unlock()
	wctx, stopWatch := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { d.watchdog(wctx, d.Healthy) })
	endAdmin, err := d.serveAdmin(adm)
	if err != nil {
		stopWatch()
		watch.Wait()
		return errors.Join(err, d.closeAll(context.Background()))
	}
	watch.Go(func() { d.watchSpace(wctx) })
	if isns != "" {
		watch.Go(func() { d.registerISNS(wctx, isns) })
	}
	d.notify(sd.SdNotifyReady)
	select {
	case <-ctx.Done():
	case <-d.drained:
	case err = <-d.failed:
	}
	d.notify(sd.SdNotifyStopping)
	d.log.Info("ending", zap.Duration("drain", d.drain))
	end, cancel := context.WithTimeout(context.Background(), d.drain+stopLimit)
	defer cancel()
	err = errors.Join(err, d.closeAll(end), endAdmin(end))
	stopWatch()
	waitFor(end, &watch) // a check of the room below a volume may hang with its medium
	d.log.Info("ended")
	return err
}

// serveAdmin opens the administrative socket, and the listener that a asks for; what it returns closes them.
func (d *Daemon) serveAdmin(a AdminConfig) (func(context.Context) error, error) {
	l, err := admin.Listen(filepath.Join(d.stateDir, "admin.sock"))
	if err != nil {
		return nil, err
	}
	s := admin.New(d, d.metricsHandler(), d.log, d.audit)
	done := make(chan error, 2)
	n := 1
	if a.Listen != "" {
		key, err := secretPath(a.Key)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		c, err := admin.TLS{Cert: a.Cert, Key: key, ClientCA: a.ClientCA}.Config()
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		tl, err := net.Listen("tcp", a.Listen)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("admin.listen: %w", err), l.Close())
		}
		n++
		go func() { done <- s.ServeTLS(tl, c) }()
		d.log.Info("administration open", zap.Stringer("address", tl.Addr()))
		d.adminAddr.Store(tl.Addr())
	}
	go func() { done <- s.Serve(l) }()
	return func(ctx context.Context) error {
		err := s.Close(ctx)
		for range n {
			err = errors.Join(err, <-done)
		}
		if d.auditEnd != nil {
			err = errors.Join(err, d.auditEnd())
		}
		return err
	}, nil
}

// Healthy asks every volume's device for its geometry and takes the configuration lock: a daemon that hangs there is not
// doing its work. The watchdog and /healthz use it.
func (d *Daemon) Healthy(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		d.mu.Lock()
		for _, v := range d.volumes {
			_ = v.dev.Geometry()
		}
		d.mu.Unlock()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the daemon's own lock or a device does not answer: %w", ctx.Err())
	}
}
