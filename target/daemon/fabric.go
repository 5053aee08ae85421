package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// adapterRetry is the time after which missing adapters, and addresses that no adapter has, are looked for again. Tests shorten it.
var adapterRetry = 15 * time.Second

// adaptersHere says what there is for the default configuration. Tests replace it.
var adaptersHere = fabric.Adapters

// checkFabric looks at the providers.
func (c *Config) checkFabric() error {
	if len(c.Fabric) == 0 {
		return at("$.fabric", "fabric names no provider; leave the key out for the default, or name some of %s", strings.Join(fabric.Providers, ", "))
	}
	for i, p := range c.Fabric {
		path := func(key string) string { return fmt.Sprintf("$.fabric[%d].%s", i, key) }
		if len(c.Fabric) == 1 { // both forms
			path = func(key string) string { return "$.fabric." + key }
		}
		if err := checkKeys(p, "fabric: ", path); err != nil {
			return err
		}
		for _, o := range c.Fabric[:i] {
			switch {
			case o.Provider != p.Provider:
			case p.Provider == fabric.SHM && o.Sockets != p.Sockets:
			case p.Provider != fabric.Verbs:
				return at(path("provider"), "fabric: provider %s is there twice", p.Provider)
			case len(o.Devices) == 0 || len(p.Devices) == 0:
				return at(path("provider"), "fabric: provider %s is there twice; each entry is to name its devices", p.Provider)
			}
			for _, d := range p.Devices {
				if o.Provider == p.Provider && slices.Contains(o.Devices, d) {
					return at(path("devices"), "fabric: the device %s is in two entries", d)
				}
			}
		}
		if p.Provider != fabric.IWARP && p.CRC != "" {
			return at(path("crc"), "fabric: crc is of the frames of software iWARP; adapters have their own checksums")
		}
		if p.Provider != fabric.Verbs && (len(p.Devices) > 0 || p.Exposure != "" || p.ISERPort != 0 || p.NFSPort != 0 || p.AckTimeout != 0) {
			return at(path("devices"), "fabric: devices, exposure, iser_port, nfs_port and ack_timeout are of RDMA adapters (provider: verbs)")
		}
		if p.Provider != fabric.SHM && (p.Sockets != "" || p.Mode != "" || p.Group != "") {
			return at(path("sockets"), "fabric: sockets, mode and group are of shared memory (provider: shm)")
		}
		if _, err := p.mode(); err != nil {
			return at(path("mode"), "fabric: %v", err)
		}
		if err := c.checkOwnPorts(p, path); err != nil {
			return err
		}
		if err := fabric.CheckAckTimeout(time.Duration(p.AckTimeout)); err != nil {
			return at(path("ack_timeout"), "fabric: ack_timeout: %v", err)
		}
	}
	return nil
}

// mode is what the rights of sockets are to be, 0 for the provider's own choice.
func (p *ProviderConfig) mode() (fs.FileMode, error) {
	if p.Mode == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(p.Mode, 8, 32)
	if err != nil || n == 0 || n > 0o777 {
		return 0, fmt.Errorf("mode %q is none of a file; write it as \"0660\"", p.Mode)
	}
	return fs.FileMode(n), nil
}

// groupID is the group of sockets, 0 for this process's.
func (p *ProviderConfig) groupID() (int, error) {
	if n, err := strconv.Atoi(p.Group); err == nil || p.Group == "" {
		return n, nil
	}
	g, err := user.LookupGroup(p.Group)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

// words are what is said of a provider.
type words struct{ cannot, unused, notServed, listens string }

func (p *ProviderConfig) words() words {
	if p.Provider == fabric.SHM {
		return words{cannot: "shared memory is configured and cannot be used; everything else is served", unused: "shared memory is not served on this host",
			notServed: "shared memory does not serve an address; everything else there is served", listens: "shared memory is served"}
	}
	return words{cannot: "RDMA adapters are configured and cannot be used; everything else is served",
		unused:    "the RDMA adapters of this machine are not used; software iWARP serves RDMA clients. `sluice rdma` says more of each",
		notServed: "RDMA adapters do not serve an address; everything else there is served", listens: "RDMA adapters listen"}
}

// adapters is a provider whose devices listen beside the sockets: RDMA adapters, shared memory. It is opened when that is possible. What is
// missing may come later, for one with a driver that is loaded late; everything else is served meanwhile.
type adapters struct {
	d   *Daemon
	cfg ProviderConfig

	mu    sync.Mutex
	dev   transport.Device
	ended bool
	said  map[string]string // the last complaint, by what it is about
}

// openFabric makes the devices. Software iWARP shares the portals' sockets; adapters have listeners of their own.
func (d *Daemon) openFabric(cfg FabricConfig) error {
	for _, p := range cfg {
		if p.Provider == fabric.IWARP {
			dev, err := fabric.New(p.Provider, fabric.Options{CRC: p.CRC, Log: d.log})
			if err != nil {
				return err
			}
			d.device = dev
			continue
		}
		a := &adapters{d: d, cfg: p, said: map[string]string{}}
		if p.implied && p.Provider == fabric.SHM {
			if os.Getenv("RUNTIME_DIRECTORY") == "" { // no service: who starts a daemon by hand says so
				continue
			}
		} else if p.implied {
			none, err := adaptersHere()
			if none {
				d.log.Debug("no RDMA adapters: software iWARP alone serves RDMA clients", zap.Error(err))
				continue
			}
			if err != nil { // what is missing may come: rdma_ucm is loaded when udev has seen the adapter, beside the daemon's start
				d.log.Warn("RDMA adapters are not used yet; software iWARP alone serves RDMA clients. `sluice doctor` says more", zap.Error(err))
				a.said[""] = err.Error()
			}
		}
		d.adapters = append(d.adapters, a)
		if _, err := a.device(); err == nil && p.implied && p.Provider == fabric.Verbs { // what is wrong is logged, and tried again
			d.log.Info("RDMA adapters serve beside software iWARP, because there are some; `fabric` in the configuration chooses")
		}
	}
	return nil
}

// device opens the provider, if it is not open.
func (a *adapters) device() (transport.Device, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dev != nil || a.ended {
		if a.ended {
			return nil, transport.ErrClosed
		}
		return a.dev, nil
	}
	dev, err := a.open()
	if err != nil {
		w := a.cfg.words()
		what := w.cannot
		if a.cfg.implied {
			what = w.unused
		}
		a.complainLocked("", what, err)
		return nil, err
	}
	a.said[""] = ""
	a.dev = dev
	return dev, nil
}

// open makes the device.
func (a *adapters) open() (transport.Device, error) {
	mode, err := a.cfg.mode()
	if err != nil {
		return nil, err
	}
	group, err := a.cfg.groupID()
	if err != nil {
		return nil, err
	}
	return fabric.New(a.cfg.Provider, fabric.Options{Devices: a.cfg.Devices, Exposure: a.cfg.Exposure, AckTimeout: time.Duration(a.cfg.AckTimeout),
		Sockets: a.cfg.Sockets, SocketMode: mode, SocketGroup: group, Log: a.d.log})
}

// complainLocked logs what is wrong with something once, and again when it is something else.
func (a *adapters) complainLocked(about, what string, err error, f ...zap.Field) {
	if a.said[about] == err.Error() {
		return
	}
	a.said[about] = err.Error()
	level := zap.WarnLevel
	if a.cfg.implied { // the default, which asks for what there is
		level = zap.InfoLevel
	}
	a.d.log.Log(level, what, append(f, zap.String("provider", a.cfg.Provider), zap.Error(err))...)
}

func (a *adapters) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	if a.dev == nil {
		return nil
	}
	return a.dev.Close()
}

// listen keeps listeners for an address until the context ends, and calls serve with each. An adapter may come later, lose its address
// or be taken out, and nothing else ends with that. Where TCP has the port, iWARP adapters do not listen: they would take it from TCP.
func (a *adapters) listen(ctx context.Context, address string, tcp bool, serve func(transport.Device, transport.Listener) error) {
	var wg sync.WaitGroup
	k := kept{at: map[string]bool{}}
	defer func() {
		wg.Wait()
		a.forget(address, &k)
	}()
	for ctx.Err() == nil {
		if l, known := a.places(ctx, address, tcp); known {
			for _, place := range k.renew(l) {
				wg.Go(func() { a.listenAt(ctx, place, &k, serve) })
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(adapterRetry):
		}
	}
}

// forget takes back what was said of an address that is not to be served any more, and of its places.
func (a *adapters) forget(address string, k *kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.said, address)
	for _, place := range k.listed {
		delete(a.said, place)
	}
}

// unbound are the addresses that adapters do not serve and should.
func (d *Daemon) unbound() (l []admin.Unbound) {
	for _, a := range d.adapters {
		a.mu.Lock()
		for address, problem := range a.said {
			if address != "" && problem != "" {
				l = append(l, admin.Unbound{Provider: a.cfg.Provider, Address: address, Problem: problem, Default: a.cfg.implied})
			}
		}
		a.mu.Unlock()
	}
	slices.SortFunc(l, func(a, b admin.Unbound) int { return strings.Compare(a.Address, b.Address) })
	return l
}

// kept are the places that listeners are kept at.
type kept struct {
	mu     sync.Mutex
	listed []string
	at     map[string]bool
}

// renew says which places are new.
func (k *kept) renew(listed []string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = listed
	var l []string
	for _, place := range listed {
		if !k.at[place] {
			k.at[place] = true
			l = append(l, place)
		}
	}
	return l
}

// leave reports whether a place without a listener has left the list; it is not kept then.
func (k *kept) leave(place string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Contains(k.listed, place) {
		return false
	}
	delete(k.at, place)
	return true
}

// errTCPHasIt is why an iWARP adapter does not listen.
var errTCPHasIt = errors.New("an iWARP adapter shares TCP's ports, and this one serves TCP; give the adapter ports of its own (iser_port, nfs_port of its entry in `fabric`), " +
	"or let software iWARP serve its clients, which speak the same protocol")

// places is where adapters are to listen for an address, if that is known.
func (a *adapters) places(ctx context.Context, address string, tcp bool) (out []string, known bool) {
	dev, err := a.device()
	if err != nil {
		return nil, false // told
	}
	x, can := dev.(transport.Placer)
	if !can {
		return []string{address}, true
	}
	l, err := x.Places(ctx, address)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			a.complainLocked(address, a.cfg.words().notServed, err, zap.String("address", address))
		}
		return nil, false
	}
	if !slices.ContainsFunc(l, func(p transport.Place) bool { return p.Address == address }) {
		delete(a.said, address)
	}
	for _, p := range l {
		if p.SharesTCP && tcp {
			a.complainLocked(p.Address, a.cfg.words().notServed, errTCPHasIt, zap.String("address", p.Address), zap.String("device", p.Device))
			continue
		}
		out = append(out, p.Address)
	}
	return out, true
}

// listenAt keeps one listener while its place is listed: the address may go, or become one that an iWARP adapter would take from TCP. A
// listener that is open stays until it ends, with its connections.
func (a *adapters) listenAt(ctx context.Context, address string, k *kept, serve func(transport.Device, transport.Listener) error) {
	for ctx.Err() == nil {
		dev, err := a.device()
		var l transport.Listener
		if err == nil {
			if l, err = dev.Listen(ctx, address); err == nil {
				a.mu.Lock()
				a.said[address] = ""
				a.mu.Unlock()
				a.d.log.Info(a.cfg.words().listens, zap.String("provider", a.cfg.Provider), zap.Stringer("address", l.Addr()))
				err = serve(dev, l)
			}
			if err != nil && ctx.Err() == nil {
				a.mu.Lock()
				a.complainLocked(address, a.cfg.words().notServed, err, zap.String("address", address))
				a.mu.Unlock()
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(adapterRetry):
		}
		if k.leave(address) {
			a.mu.Lock()
			delete(a.said, address)
			a.mu.Unlock()
			return
		}
	}
}

// serveAdapters serves a portal on the adapters that have its address.
func (d *Daemon) serveAdapters(ctx context.Context, p *portal) {
	for _, a := range d.adapters {
		address, tcp := withPort(listening(p.cfg.Address, p.l.Addr().String()), a.cfg.ISERPort)
		d.portalWG.Go(func() {
			a.listen(ctx, address, tcp, func(dev transport.Device, l transport.Listener) error {
				err := d.server.ServeRDMA(ctx, dev, l, iscsi.Portal{Group: d.groupOf(p), Beside: p.l.Addr()})
				if errors.Is(err, iscsi.ErrClosed) {
					return nil
				}
				return err
			})
		})
	}
}

// withPort gives an address a port of the adapters' own, if there is one, and reports whether it is still the one that was.
func withPort(address string, port int) (string, bool) {
	host, was, err := net.SplitHostPort(address)
	if p := strconv.Itoa(port); err == nil && port != 0 && p != was {
		return net.JoinHostPort(host, p), false
	}
	return address, true
}

func (d *Daemon) groupOf(p *portal) uint16 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return p.cfg.Group
}

// serveFiles serves the files on the adapters that have the address.
func (a *adapters) serveFiles(ctx context.Context, f *files, address string) {
	address, same := withPort(address, a.cfg.NFSPort)
	a.listen(ctx, address, same && f.rdma != nil, func(dev transport.Device, l transport.Listener) error {
		err := f.rpc.ServeRDMA(dev, l)
		if errors.Is(err, rpcserver.ErrServerClosed) {
			return nil
		}
		return err
	})
}

// devices are those that are open.
func (d *Daemon) devices() []transport.Device {
	var l []transport.Device
	if d.device != nil {
		l = append(l, d.device)
	}
	for _, a := range d.adapters {
		a.mu.Lock()
		if a.dev != nil {
			l = append(l, a.dev)
		}
		a.mu.Unlock()
	}
	return l
}
