package rbd

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/internal/rangelock"
	"github.com/sluice-storage/sluice/blockdev/internal/workqueue"
	"github.com/sluice-storage/sluice/internal/ceph"
)

// Cluster says which cluster, and as whom. The zero value is client.admin by Ceph's own search for a configuration.
type Cluster struct {
	Conf     string            // path of a ceph.conf
	User     string            // "sluice" is client.sluice
	Keyring  string            // path of the user's key
	Settings map[string]string // further options of Ceph's
	// Timeout bounds each operation on an object, 20 s by default.
	Timeout time.Duration
}

func (c *Cluster) options() ceph.Options {
	o := ceph.Options{Conf: c.Conf, User: c.User, Keyring: c.Keyring, MonTimeout: monTimeout, OSDTimeout: c.Timeout, Settings: map[string]string{}}
	if o.OSDTimeout == 0 {
		o.OSDTimeout = DefaultTimeout
	}
	for k, v := range c.Settings {
		o.Settings[k] = v
	}
	return o
}

// Options describe which image to open, and how.
type Options struct {
	Cluster
	Pool      string // "rbd" by default
	Namespace string
	Image     string
	Snapshot  string // of the image, which is read-only
	ReadOnly  bool
	// Cache has librbd's own cache on, as far as the image and its pool allow it. Only one host may serve the image then.
	Cache bool
	// NoLock leaves the exclusive lock to librbd, which takes it with the first write and gives it to another client that asks.
	NoLock   bool
	Logical  int // 512 by default
	Physical int // 4096 by default
}

// Device is the engine.
type Device struct {
	name            string // pool/image
	source          string // image
	place, snapshot string // pool and namespace
	cluster         *ceph.Cluster
	pool            *ceph.IoCtx
	image           *ceph.Image
	update          *ceph.Update
	addrs           []string
	info            ceph.ImageInfo
	cache           bool
	locked          bool

	geo  blockdev.Geometry // all but Size and Generation
	size atomic.Int64
	gen  atomic.Uint64

	compares  compareEpochs
	locks     rangelock.Table
	queue     workqueue.Queue
	ring      *ceph.Ring[work]
	wait      waiting
	job       blockdev.Request // stands for all that is queued, where the owner of a connection starts it
	ending    blockdev.Ending  // of the ring's goroutine
	fenced    atomic.Bool
	running   sync.WaitGroup
	useMu     sync.Mutex
	closing   atomic.Bool // guarded by useMu where that decides
	refreshMu sync.Mutex
	ungrown   int64 // the size before the last Grow, guarded by refreshMu
	changed   atomic.Pointer[func()]
}

// compareEpochs lets reads, which take no lock, find out that a compare-and-write may have been seen half done.
type compareEpochs struct{ started, finished atomic.Uint64 }

// waiting are requests for which the ring has no slot, in order. The ring's lock guards it.
type waiting struct{ head, tail *blockdev.Request }

var (
	_ blockdev.Device        = (*Device)(nil)
	_ blockdev.Capable       = (*Device)(nil)
	_ blockdev.Resizable     = (*Device)(nil)
	_ blockdev.Growable      = (*Device)(nil)
	_ blockdev.Explainer     = (*Device)(nil)
	_ blockdev.Identified    = (*Device)(nil)
	_ blockdev.QueueReporter = (*Device)(nil)
	_ blockdev.Notifier      = (*Device)(nil)
)

func (o *Options) fill() error {
	if o.Pool == "" {
		o.Pool = "rbd"
	}
	if o.Logical == 0 {
		o.Logical = 512
	}
	if o.Physical == 0 {
		o.Physical = max(o.Logical, 4096)
	}
	o.ReadOnly = o.ReadOnly || o.Snapshot != ""
	switch {
	case o.Image == "":
		return errors.New("blockdev/rbd: an image is missing")
	case o.Logical != 512 && o.Logical != 4096 || o.Physical < o.Logical || o.Physical&(o.Physical-1) != 0:
		return fmt.Errorf("blockdev/rbd: blocks of %d and %d bytes; logical blocks have 512 or 4096, physical ones a power of two times that", o.Logical, o.Physical)
	}
	return nil
}

// Open connects to the cluster as a client of its own, and opens an image that is there. blockdev.ErrBusy says that another client has its lock.
func Open(o Options) (_ *Device, err error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	if err := ceph.AvailableRBD(); err != nil {
		return nil, err
	}
	d := &Device{name: o.Pool + "/" + o.Image, source: o.Image, place: o.Pool + "/" + o.Namespace, snapshot: o.Snapshot}
	co := o.options()
	co.Settings["rbd_cache"] = fmt.Sprint(o.Cache)
	co.Settings["rbd_cache_policy"] = "writeback" // "writearound" forgets a write that fails behind its answer
	if d.cluster, err = ceph.Connect(co); err != nil {
		return nil, fmt.Errorf("blockdev/rbd: %w", wrap(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("blockdev/rbd: %w", err), d.release())
		}
	}()
	if d.addrs, err = d.cluster.BlocklistAddrs(); err != nil {
		return nil, err
	}
	if d.pool, err = d.cluster.Pool(o.Pool, o.Namespace); err != nil {
		return nil, wrap(err)
	}
	if d.image, err = d.pool.OpenImage(o.Image, o.Snapshot, o.ReadOnly); err != nil {
		return nil, wrap(err)
	}
	if d.info, err = d.image.Info(); err != nil {
		return nil, wrap(err)
	}
	if err := checkFeatures(d.name, &d.info, o.ReadOnly); err != nil {
		return nil, err
	}
	if err := d.checkCache(o.Cache); err != nil {
		return nil, err
	}
	if err := d.takeLock(&o); err != nil {
		return nil, err
	}
	d.prepare(&o)
	d.locks.Shift = stripeShift
	d.queue.Init()
	if d.ring, err = ceph.OpenRing[work](d.image, (*handler)(d)); err != nil {
		return nil, wrap(err)
	}
	for range workers {
		w := &worker{d: d}
		d.running.Go(w.run)
	}
	if err := d.checkFormat(); err != nil {
		return nil, err
	}
	if d.update, err = d.image.WatchUpdates(d.updated); err != nil {
		return nil, wrap(err)
	}
	return d, nil
}

// checkCache finds out whether the cache is on: the image and its pool have the last word.
func (d *Device) checkCache(want bool) error {
	v, err := d.image.Option("rbd_cache")
	if err != nil {
		return wrap(err)
	}
	// What images and pools say comes as it was written there; librbd takes "1" and "True" for true.
	if d.cache = v != "false" && v != "0"; d.cache && !want {
		return &FeatureError{d.name, "its own configuration, or its pool's, has rbd_cache on, and it is to be served without; take that away first " +
			"(rbd config image rm, rbd config pool rm)"}
	}
	return nil
}

// takeLock takes the exclusive lock. A client that was killed has it until the cluster has not heard of it for a while.
func (d *Device) takeLock(o *Options) error {
	if o.ReadOnly || o.NoLock || d.info.Features&ceph.FeatureExclusiveLock == 0 {
		return nil
	}
	for limit := time.Now().Add(lockPatience); ; time.Sleep(lockPause) {
		err := d.image.Lock()
		if err == nil {
			d.locked = true
			return nil
		}
		busy := errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ETIMEDOUT)
		if !busy {
			return wrap(err)
		}
		if time.Now().After(limit) {
			owner, oerr := d.image.LockOwner()
			if oerr != nil {
				owner = "unknown"
			}
			return fmt.Errorf("%w: image %s is locked by another client (%s): %w", blockdev.ErrBusy, d.name, owner, err)
		}
	}
}

func (d *Device) prepare(o *Options) {
	d.size.Store(int64(d.info.Size) / int64(o.Logical) * int64(o.Logical))
	d.geo = blockdev.Geometry{
		Logical: o.Logical, Physical: o.Physical, ReadOnly: o.ReadOnly, Thin: true, MaxDiscard: maxDiscard, WriteThrough: !d.cache,
	}
	// A request within an object, or a stripe unit, goes to one OSD.
	unit := d.info.ObjectSize
	if d.info.StripeUnit > 0 {
		unit = min(unit, d.info.StripeUnit)
	}
	d.geo.OptimalIO = int(min(unit, maxOptimalIO))
	if !o.ReadOnly {
		// librbd gives back whole multiples of this within a discard and leaves the rest as it is.
		d.geo.DiscardUnit = max(o.Logical, int(min(64<<10, d.info.ObjectSize)))
	}
}

// checkFormat refuses an encryption of librbd's that only librbd can read: that of a clone, whose parent is encrypted otherwise or not at all.
// LUKS itself is what an initiator could have written, and can open.
func (d *Device) checkFormat() error {
	if d.size.Load() == 0 {
		return nil
	}
	b := make([]byte, d.geo.Logical)
	err := d.readAt(b, 0)
	if err == nil && strings.HasPrefix(string(b), "RBDL\xba\xbe") {
		return &FeatureError{d.name, "it is a clone with an encryption format of its own (rbd encryption format), which only librbd can read; " +
			"flatten it, or encrypt it at the initiator"}
	}
	return err
}

// Geometry implements blockdev.Device.
func (d *Device) Geometry() blockdev.Geometry {
	g := d.geo
	g.Size, g.Generation = d.size.Load(), d.gen.Load()
	return g
}

// Can implements blockdev.Capable.
func (d *Device) Can(op blockdev.Op) bool {
	if op == blockdev.Discard {
		return d.geo.DiscardUnit > 0
	}
	return op >= blockdev.Read && op <= blockdev.Status
}

// Path implements blockdev.Explainer.
func (d *Device) Path() string {
	cache, lock, state := "no cache", "no exclusive lock", ""
	if d.cache {
		cache = "librbd's cache"
	}
	if d.locked {
		lock = "exclusive lock"
	}
	if d.fenced.Load() {
		state = ", blocklisted: nothing goes until it is opened again"
	}
	return fmt.Sprintf("image %s, librados %s as client.%d, %s, %s (%s)%s", d.name, d.cluster.Version(), d.cluster.InstanceID(), cache, lock,
		featureNames(d.info.Features), state)
}

// Identity implements blockdev.Identified: the cluster's, the pool's and the image's own names, which renaming keeps.
func (d *Device) Identity() (string, error) {
	if d.info.ID == "" {
		return "", nil // the first format of images has none
	}
	fsid, err := d.cluster.FSID()
	if err != nil {
		return "", wrap(err)
	}
	h := sha256.Sum256([]byte("rbd " + fsid + " " + d.place + " " + d.info.ID + " " + d.snapshot))
	return hex.EncodeToString(h[:16]), nil
}

// Distinct implements blockdev.Identified.
func (d *Device) Distinct() (bool, error) { return d.info.ID != "", nil }

// Queue implements blockdev.QueueReporter.
func (d *Device) Queue() (blockdev.Queue, bool) {
	s := d.ring.Stats()
	return blockdev.Queue{Kernel: true, Requests: s.Requests, Calls: s.Calls, UnderWay: s.UnderWay}, true
}

// Addresses are those of this device's own client, in the form that "ceph osd blocklist add" takes. Who is to take the image over shuts these out
// first.
func (d *Device) Addresses() []string { return d.addrs }

// WaitForMap waits until this device's client has the newest map of the OSDs: what it asks later is done by OSDs that know who is shut out.
func (d *Device) WaitForMap() error { return wrap(d.cluster.WaitForLatestOSDMap()) }

// use keeps the image open until d.running.Done is called; not where the device is closing.
func (d *Device) use() error {
	d.useMu.Lock()
	defer d.useMu.Unlock()
	if d.closing.Load() {
		return blockdev.ErrClosed
	}
	d.running.Add(1)
	return nil
}

// Close implements blockdev.Device. What librbd's cache holds is written.
func (d *Device) Close() error {
	d.useMu.Lock()
	d.closing.Store(true)
	d.useMu.Unlock()
	if err := d.release(); err != nil {
		return fmt.Errorf("blockdev/rbd: %w", err)
	}
	return nil
}

// release gives back what Open has taken, as far as it came.
func (d *Device) release() error {
	var errs []error
	d.closing.Store(true)
	if d.update != nil {
		errs = append(errs, d.update.Close())
	}
	if d.ring != nil {
		d.queue.Close() // the workers end what is queued
		d.running.Wait()
		errs = append(errs, d.ring.Close())
	}
	if d.locked {
		errs = append(errs, d.image.Unlock())
	}
	if d.image != nil {
		errs = append(errs, d.image.Close())
	}
	if d.pool != nil {
		d.pool.Close()
	}
	if d.cluster != nil {
		d.cluster.Shutdown()
	}
	if d.fenced.Load() {
		// It cannot say goodbye to a cluster that hears nothing of it any more.
		errs = deleteFenced(errs)
	}
	return errors.Join(errs...)
}

func deleteFenced(errs []error) []error {
	var l []error
	for _, err := range errs {
		if err != nil && !errors.Is(err, unix.ESHUTDOWN) && !errors.Is(err, unix.ENOTCONN) {
			l = append(l, err)
		}
	}
	return l
}
